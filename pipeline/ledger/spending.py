"""What the entries of a ledger add up to.

An entry that let something private out says what paid for it as `dp_event`, in
the classes and fields of dp_accounting (`linear_dp.accounting.events`). Entries
of before that field have a list of `mechanisms` in its place, which is read as
before. Anything else is an error, never zero.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian
from oneshot_dp.linear_dp.accounting.dominating import dominating_noise, share
from oneshot_dp.linear_dp.accounting.events import (
  Steps,
  changed_units,
  composed,
  epsilon_of_event,
  event_from_json,
  parts_of,
)
from oneshot_dp.linear_dp.accounting.vocabulary import (
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)

CAP, BASELINE, PUBLISHED = "cap", "baseline", "published"
"""Kinds of entries that no ε is spent by."""
SAMPLING_SHARE = 0.1
"""The part of δ that random batches may use up, where nothing else is said."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
  """The composition of the private releases in a ledger.

  Attributes:
    events: the releases, oldest first.
    parts: of each, as `parts_of` has them: what a ledger is long in.
    relation: which data sets count as neighbours.
    choices: how often somebody chose what to release next: once for each entry,
      and once for all that is asked for at a time.
    charges: how many entries there are, private or not, caps aside.
    not_private: charges for baselines and for noise from a seed, which nothing
      can compose.
  """

  events: tuple[DpEvent, ...]
  parts: tuple[tuple[list[float], list[Steps]], ...]
  relation: NeighboringRelation
  choices: int
  charges: int
  not_private: int

  @property
  def has_samples(self) -> bool:
    """Whether random parts of the rows were released."""
    return any(sampled for _, sampled in self.parts)

  @property
  def starts_with_samples(self) -> bool:
    """Whether they were in the first release."""
    return bool(self.parts and self.parts[0][1])

  def noise_multiplier(self, sampling_delta: float = 0.0) -> float | None:
    """σ, in the relation, of one Gaussian release that costs as much; or None.

    Formal guarantees: however each release was chosen by those before it, all
    of them are as private as that release, at a δ larger by `sampling_delta`.
    """
    places = itertools.count(1)
    sigmas = []
    units = changed_units(self.relation)
    for gaussians, sampled in self.parts:
      sigmas += [sigma / units for sigma in gaussians]
      if sampled:
        slack = share(sampling_delta, next(places))
        noise = dominating_noise(tuple(sampled), slack, self.relation)
        sigmas.append(noise)
    return gaussian.compose(sigmas) if sigmas else None

  def epsilon(self, delta: float, sampling_delta: float | None = None) -> float:
    """ε at δ, rounded up: the least cap that would have let all of this out.

    What was chosen at once, before anything was seen, is composed by its own
    law; anything else as a filter must, with a part of δ for random batches: by
    default a tenth, where there are any.
    """
    if self.choices <= 1:
      return epsilon_of_event(composed(self.events), delta, self.relation)
    if sampling_delta is None:
      sampling_delta = SAMPLING_SHARE * delta if self.has_samples else 0.0
    sigma = self.noise_multiplier(sampling_delta)
    assert sigma is not None
    return gaussian.epsilon_of(sigma, delta - sampling_delta)

  def plus(self, *events: DpEvent, at_once: bool = True) -> "Spending":
    """What it would be with more releases, chosen at once or one by one."""
    choices = min(len(events), 1) if at_once else len(events)
    return dataclasses.replace(
      self,
      events=(*self.events, *events),
      parts=(*self.parts, *map(parts_of, events)),
      choices=self.choices + choices,
    )


def spending_of(
  entries: Sequence[dict[str, Any]], relation: NeighboringRelation
) -> Spending:
  """Composes the entries of a ledger; InputError where this version cannot."""
  charges = [entry for entry in entries if entry.get("kind") != CAP]
  private = [entry for entry in charges if entry.get("private")]
  paid = [_event_and_parts(entry) for entry in private]
  return Spending(
    events=tuple(event for event, _ in paid),
    parts=tuple(parts for _, parts in paid),
    relation=relation,
    choices=len(private),
    charges=len(charges),
    not_private=len(charges) - len(private),
  )


def event_of(entry: dict[str, Any]) -> DpEvent:
  """What paid for an entry, of this version or an earlier one; InputError."""
  return _event_and_parts(entry)[0]


def _event_and_parts(
  entry: dict[str, Any],
) -> tuple[DpEvent, tuple[list[float], list[Steps]]]:
  try:
    if "mechanisms" in entry and "dp_event" in entry:
      raise ValueError("both 'mechanisms' and 'dp_event'")
    if "mechanisms" in entry:
      event = ComposedDpEvent([_of_before(m) for m in entry["mechanisms"]])
    else:
      event = event_from_json(entry["dp_event"])
    parts = parts_of(event)
    if not any(parts):
      raise ValueError("nothing at all")
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"Entry {entry['entry'][:12]} of the ledger was paid for by something"
      f" that this version cannot compose ({error}); use the version of"
      " oneshot-dp that wrote it."
    ) from error
  return event, parts


def _of_before(mechanism: dict[str, Any]) -> DpEvent:
  kind = mechanism["kind"]
  if kind not in ("gaussian", "sampled gaussian"):
    raise ValueError(f"a mechanism of kind {kind!r}")
  event: DpEvent = GaussianDpEvent(mechanism["noise_multiplier"])
  if kind == "sampled gaussian":
    step = PoissonSampledDpEvent(mechanism["probability"], event)
    event = SelfComposedDpEvent(step, mechanism["num_steps"])
  return SelfComposedDpEvent(event, mechanism["count"])
