"""What the entries of a ledger add up to.

An entry that let something private out says what paid for it as `dp_event`, in
the classes and fields of dp_accounting (`linear_dp.accounting.events`). Entries
of before that field have a list of `mechanisms` in its place, which is read as
before. Anything else is an error, never zero.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from dp_accounting import (
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import (
  changed_units,
  epsilon_of_event,
  event_from_json,
  parts_of,
)
from oneshot_dp.linear_dp.accounting.gaussian import compose

CAP, BASELINE, PUBLISHED = "cap", "baseline", "published"
"""Kinds of entries that no ε is spent by."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
  """The composition of the private releases in a ledger.

  Attributes:
    events: the releases, oldest first.
    relation: which data sets count as neighbours.
    charges: how many entries there are, private or not, caps aside.
    not_private: charges for baselines and for noise from a seed, which nothing
      can compose.
  """

  events: tuple[DpEvent, ...]
  relation: NeighboringRelation
  charges: int
  not_private: int

  @functools.cached_property
  def noise_multiplier(self) -> float | None:
    """σ, in the relation, of all releases on all rows; None for none."""
    gaussians, _ = parts_of(self._event)
    units = changed_units(self.relation)
    return compose(s / units for s in gaussians) if gaussians else None

  @functools.cached_property
  def has_samples(self) -> bool:
    """Whether random parts of the rows were released."""
    return bool(parts_of(self._event)[1])

  def epsilon(self, delta: float) -> float:
    """ε spent at δ, rounded up; 0 when nothing was released."""
    return epsilon_of_event(self._event, delta, self.relation)

  def plus(self, *events: DpEvent) -> "Spending":
    """What it would be with more releases."""
    return dataclasses.replace(self, events=(*self.events, *events))

  @property
  def _event(self) -> DpEvent:
    return ComposedDpEvent(list(self.events))


def spending_of(
  entries: Sequence[dict[str, Any]], relation: NeighboringRelation
) -> Spending:
  """Composes the entries of a ledger.

  Raises:
    InputError: an entry was paid for by what this version cannot compose.
  """
  charges = [entry for entry in entries if entry.get("kind") != CAP]
  private = [entry for entry in charges if entry.get("private")]
  return Spending(
    events=tuple(event_of(entry) for entry in private),
    relation=relation,
    charges=len(charges),
    not_private=len(charges) - len(private),
  )


def event_of(entry: dict[str, Any]) -> DpEvent:
  """What paid for an entry, of this version or an earlier one.

  Raises:
    InputError: this version cannot compose it.
  """
  try:
    if "mechanisms" in entry and "dp_event" in entry:
      raise ValueError("both 'mechanisms' and 'dp_event'")
    if "mechanisms" in entry:
      event = ComposedDpEvent([_of_before(m) for m in entry["mechanisms"]])
    else:
      event = event_from_json(entry["dp_event"])
    if not any(parts_of(event)):
      raise ValueError("nothing at all")
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"Entry {entry['entry'][:12]} of the ledger was paid for by something"
      f" that this version cannot compose ({error}); use the version of"
      " oneshot-dp that wrote it."
    ) from error
  return event


def _of_before(mechanism: dict[str, Any]) -> DpEvent:
  kind = mechanism["kind"]
  if kind not in ("gaussian", "sampled gaussian"):
    raise ValueError(f"a mechanism of kind {kind!r}")
  event: DpEvent = GaussianDpEvent(mechanism["noise_multiplier"])
  if kind == "sampled gaussian":
    step = PoissonSampledDpEvent(mechanism["probability"], event)
    event = SelfComposedDpEvent(step, mechanism["num_steps"])
  return SelfComposedDpEvent(event, mechanism["count"])
