"""What a data set may ever cost, and what is left of it."""

import dataclasses
import decimal
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation
from scipy import optimize

from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import changed_units, relation_of
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.ledger.spending import CAP, Spending, spending_of

_SLACK = 1e-12
"""Relative, in σ: for the rounding of Σσ⁻², and a thousand times less than the
margin by which `accounting.noise_multiplier` rounds up. Without it a cap of 8
would refuse the one release of ε = 8 that it is for."""
_LEAST_EPSILON = 1e-6
"""Less than this is nothing left."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cap:
  """The guarantee that all releases of a data set are to keep, together.

  Formal guarantees: as long as `allows` is asked before each release, all that
  is released is (max_epsilon, max_delta)-DP in the relation, by composition:
  where all releases are Gaussian, σ = (Σσ_i⁻²)^(−1/2) stays at or above the σ
  that one release of max_epsilon at max_delta would have. The δ that a release
  was stated at plays no part.

  Attributes:
    max_epsilon: ε of everything together.
    max_delta: δ of everything together.
    neighboring_relation: which data sets count as neighbours.
  """

  max_epsilon: float
  max_delta: float
  neighboring_relation: NeighboringRelation

  def __post_init__(self):
    accounting.check_budget(self.max_epsilon, self.max_delta)
    changed_units(self.neighboring_relation)  # what it refuses

  @functools.cached_property
  def least_noise(self) -> float:
    """The smallest σ that all releases together may amount to."""
    return accounting.noise_multiplier(self.max_epsilon, self.max_delta)

  def allows(self, entries: Sequence[dict[str, Any]], *events: DpEvent) -> bool:
    """Whether the cap holds when `events` come on top of `entries`."""
    spent = spending_of(entries, self.neighboring_relation)
    return self._holds(spent.plus(*events))

  def _holds(self, spent: Spending) -> bool:
    if spent.has_samples:
      return spent.epsilon(self.max_delta) <= self.max_epsilon
    least = self.least_noise * (1 - _SLACK)
    return spent.noise_multiplier is None or spent.noise_multiplier >= least

  def is_looser_than(self, other: "Cap") -> bool:
    """Whether this one lets out more."""
    mine, theirs = (
      cap.least_noise * changed_units(cap.neighboring_relation)
      for cap in (self, other)
    )
    return mine < theirs * (1 - _SLACK)

  def left(
    self,
    entries: Sequence[dict[str, Any]],
    delta: float,
    relation: NeighboringRelation,
  ) -> float:
    """The largest ε of one more full-batch release, rounded down.

    Args:
      entries: what was released already.
      delta: δ of that release.
      relation: its neighbouring relation.

    Returns:
      ε, which `allows` would accept, in five digits (three where random batches
      were released); 0 if there is none.
    """
    spent = spending_of(entries, self.neighboring_relation)
    sigma = spent.noise_multiplier
    precision = self.least_noise**-2 - (sigma**-2 if sigma else 0.0)
    if precision <= 0:
      return 0.0
    unit = changed_units(self.neighboring_relation) / changed_units(relation)
    most = accounting.epsilon_of(precision**-0.5 * unit, delta)

    def after(epsilon: float) -> Spending:
      sigma = accounting.noise_multiplier(epsilon, delta)
      return spent.plus(GaussianDpEvent(sigma * changed_units(relation)))

    def excess(epsilon: float) -> float:
      return after(epsilon).epsilon(self.max_delta) - self.max_epsilon

    digits = 5
    if spent.has_samples:  # the exact remainder of the Gaussians is too much
      if excess(_LEAST_EPSILON) > 0:
        return 0.0
      if excess(most) > 0:
        found = optimize.root_scalar(
          excess, method="brentq", bracket=(_LEAST_EPSILON, most), rtol=1e-4
        )
        most = float(found.root)
      digits = 3
    down = decimal.Context(prec=digits, rounding=decimal.ROUND_FLOOR)
    # A little more, for the roundings on the way here; what is then too much
    # by a rounding is found by asking.
    epsilon = down.create_decimal(most * (1 + 1e-8))
    while epsilon >= _LEAST_EPSILON:
      if self._holds(after(float(epsilon))):
        return float(epsilon)
      epsilon = down.next_minus(epsilon)
    return 0.0

  def left_in_words(
    self,
    entries: Sequence[dict[str, Any]],
    delta: float,
    relation: NeighboringRelation,
  ) -> str:
    """The same as `left`, for people."""
    epsilon = self.left(entries, delta, relation)
    if epsilon == 0:
      return "nothing is left"
    return (
      f"one release of epsilon {epsilon:g} at delta {printable(delta)}"
      f" ({relation.name}) is left"
    )

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    return {
      "kind": CAP,
      "max_epsilon": self.max_epsilon,
      "max_delta": self.max_delta,
      "neighboring_relation": self.neighboring_relation.name,
    }

  def __str__(self) -> str:
    """In words."""
    epsilon, delta = map(printable, (self.max_epsilon, self.max_delta))
    relation = self.neighboring_relation.name
    return f"epsilon {epsilon} at delta {delta} ({relation})"


def cap_of(entries: Sequence[dict[str, Any]]) -> Cap | None:
  """The cap that holds, if any."""
  known = caps(entries)
  return known[-1] if known else None


def caps(entries: Iterable[dict[str, Any]]) -> list[Cap]:
  """All caps that were ever set, oldest first; the last one holds."""
  return [
    Cap(
      max_epsilon=entry["max_epsilon"],
      max_delta=entry["max_delta"],
      neighboring_relation=relation_of(entry["neighboring_relation"]),
    )
    for entry in entries
    if entry.get("kind") == CAP
  ]
