"""What a data set may ever cost, and what is left of it."""

import dataclasses
import decimal
from collections.abc import Iterable, Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import (
  changed_units,
  parts_of,
  relation_of,
)
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.vocabulary import (
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
)
from oneshot_dp.pipeline.ledger.spending import (
  CAP,
  SAMPLING_SHARE,
  Spending,
  spending_of,
)

_SLACK = 1e-12
"""Relative, in σ: for the rounding of Σσ⁻², and a thousand times less than the
margin by which `accounting.noise_multiplier` rounds up. Without it a cap of 8
would refuse the one release of ε = 8 that it is for."""
_LEAST_EPSILON = 1e-6
"""Less than this is nothing left."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cap:
  """The guarantee that all releases of a data set are to keep, together.

  Formal guarantees: a cap is a filter. Set before the first release, and with
  `allows` asked before each, it makes all that is released (max_epsilon,
  max_delta)-DP in the relation, however each release was chosen by those before
  it. All of them amount to one Gaussian release (`Spending.noise_multiplier`)
  of at least the σ that max_epsilon takes at max_delta − r, and to r, which is
  there for random batches. r is known before anything is seen: sampling_delta,
  or by default a tenth of max_delta where random batches are in the first
  release (or in any, when the cap was set), and 0 where not: then those that
  come later cost what their steps would on all rows. What is asked for first,
  at once, may cost the whole cap by its own law; if that is more than the
  filter has, nothing follows. The δ that a release was stated at plays no part.

  Attributes:
    max_epsilon: ε of everything together.
    max_delta: δ of everything together.
    neighboring_relation: which data sets count as neighbours.
    sampling_delta: r; None is the default.

  Raises:
    InputError: there is no such guarantee, or r is no part of max_delta.
  """

  max_epsilon: float
  max_delta: float
  neighboring_relation: NeighboringRelation
  sampling_delta: float | None = None

  def __post_init__(self):
    accounting.check_budget(self.max_epsilon, self.max_delta)
    changed_units(self.neighboring_relation)  # what it refuses
    if self.sampling_delta is not None and not (
      0 <= self.sampling_delta < self.max_delta
    ):
      raise InputError(
        f"sampling_delta={self.sampling_delta} must be at least 0 and less than"
        f" max_delta={self.max_delta}, which it is a part of."
      )

  def allows(
    self,
    entries: Sequence[dict[str, Any]],
    *events: DpEvent,
    at_once: bool = True,
  ) -> bool:
    """Whether the cap holds when `events` come on top of `entries`.

    `at_once`: all of them are asked for now, and not one by one.
    """
    spent = spending_of(entries, self.neighboring_relation)
    return self._holds(spent.plus(*events, at_once=at_once))

  def spent(self, entries: Sequence[dict[str, Any]]) -> float:
    """The ε that the least such cap would have for the same entries."""
    spent = spending_of(entries, self.neighboring_relation)
    return spent.epsilon(self.max_delta, self._part(spent))

  def is_looser_than(self, other: "Cap") -> bool:
    """Whether this one may let out anything that the other would not.

    What is proven of a cap is proven of a relation, of the σ that all releases
    amount to and of the δ that is there for random batches, all fixed before
    anything is seen. So another relation is looser, and another δ for random
    batches, too: less of it leaves more to the rest.
    """
    return (
      self.neighboring_relation is not other.neighboring_relation
      or self._least_noise(0.0) < other._least_noise(0.0) * (1 - _SLACK)
      or self.max_delta > other.max_delta
      or self.sampling_delta != other.sampling_delta
    )

  def left(
    self,
    entries: Sequence[dict[str, Any]],
    delta: float,
    relation: NeighboringRelation,
  ) -> float:
    """The largest ε of one more full-batch release, rounded down.

    In five digits, which `allows` would accept; 0 if there is none.
    """
    spent = spending_of(entries, self.neighboring_relation)
    part = self._part(spent.plus(GaussianDpEvent(1.0)))  # whatever its σ
    sigma = spent.noise_multiplier(part)
    precision = self._least_noise(part) ** -2 - (sigma**-2 if sigma else 0.0)
    if precision <= 0:
      return 0.0
    unit = changed_units(self.neighboring_relation) / changed_units(relation)
    most = accounting.epsilon_of(precision**-0.5 * unit, delta)
    down = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
    # A little more, for the roundings on the way here; what is then too much
    # by a rounding is found by asking.
    epsilon = down.create_decimal(most * (1 + 1e-8))
    while epsilon >= _LEAST_EPSILON:
      sigma = accounting.noise_multiplier(float(epsilon), delta)
      one_more = GaussianDpEvent(sigma * changed_units(relation))
      if self._holds(spent.plus(one_more)):
        return float(epsilon)
      epsilon = down.next_minus(epsilon)
    return 0.0

  def _holds(self, spent: Spending) -> bool:
    at_once = spent.choices == 1 and spent.has_samples
    if at_once and spent.epsilon(self.max_delta) <= self.max_epsilon:
      return True
    part = self._part(spent)
    sigma = spent.noise_multiplier(part)
    return sigma is None or sigma >= self._least_noise(part) * (1 - _SLACK)

  def _part(self, spent: Spending) -> float:
    """r: of max_delta, for random batches."""
    if spent.choices <= 1 and not spent.has_samples:
      return 0.0
    if self.sampling_delta is not None:
      return self.sampling_delta
    return SAMPLING_SHARE * self.max_delta * spent.starts_with_samples

  def _least_noise(self, part: float) -> float:
    """The smallest σ that all releases together may amount to."""
    return accounting.noise_multiplier(self.max_epsilon, self.max_delta - part)

  def why_samples_cost_more(
    self, entries: Sequence[dict[str, Any]], *events: DpEvent
  ) -> str:
    """What a refusal of random batches adds, where no δ is kept for them."""
    after = spending_of(entries, self.neighboring_relation).plus(*events)
    if self._part(after) or not any(parts_of(each)[1] for each in events):
      return ""
    return (
      "; this cap keeps no part of delta for random batches, which therefore"
      " cost what full batches would (see --sampling-delta of `budget set`)"
    )

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    return {
      "kind": CAP,
      "max_epsilon": self.max_epsilon,
      "max_delta": self.max_delta,
      "neighboring_relation": self.neighboring_relation.name,
      "sampling_delta": self.sampling_delta,
    }

  def __str__(self) -> str:
    """In words."""
    epsilon, delta = map(printable, (self.max_epsilon, self.max_delta))
    words = f"epsilon {epsilon} at delta {delta}"
    if self.sampling_delta is not None:
      words += f", {self.sampling_delta:g} of it for random batches"
    return f"{words} ({self.neighboring_relation.name})"


def left_in_words(
  epsilon: float, delta: float, relation: NeighboringRelation
) -> str:
  """What `Cap.left` gives, for people."""
  if epsilon == 0:
    return "nothing is left"
  return (
    f"one release of epsilon {epsilon:g} at delta {printable(delta)}"
    f" ({relation.name}) is left"
  )


def cap_of(entries: Sequence[dict[str, Any]]) -> Cap | None:
  """The cap that holds, if any; it was set when it was, for all to see."""
  places = [i for i, entry in enumerate(entries) if entry.get("kind") == CAP]
  if not places:
    return None
  (cap,) = caps([entries[places[-1]]])
  if cap.sampling_delta is None:
    before = spending_of(entries[: places[-1]], cap.neighboring_relation)
    if before.has_samples:
      part = SAMPLING_SHARE * cap.max_delta
      cap = dataclasses.replace(cap, sampling_delta=part)
  return cap


def caps(entries: Iterable[dict[str, Any]]) -> list[Cap]:
  """All caps that were ever set, oldest first; the last one holds."""
  return [
    Cap(
      max_epsilon=entry["max_epsilon"],
      max_delta=entry["max_delta"],
      neighboring_relation=relation_of(entry["neighboring_relation"]),
      sampling_delta=entry.get("sampling_delta"),
    )
    for entry in entries
    if entry.get("kind") == CAP
  ]
