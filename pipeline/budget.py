"""What the entries of a ledger add up to, and what a cap leaves of it.

An entry that let something private out lists the mechanisms that paid for it:

    {"kind": "gaussian", "noise_multiplier": σ, "count": k}

k Gaussian mechanisms, each with noise of σ times its L2 sensitivity to one
example added or removed, whatever relation its ε was stated in. All of them
compose exactly, through Σσ⁻². A mechanism of any other kind is an error, never
zero.
"""

import dataclasses
import decimal
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from dp_accounting import NeighboringRelation

from configs.errors import InputError
from linear_dp import accounting
from linear_dp.accounting import printable

_SLACK = 1e-12
"""Relative, in σ: for the rounding of Σσ⁻², and a thousand times less than the
margin by which `accounting.noise_multiplier` rounds up. Without it a cap of 8
would refuse the one release of ε = 8 that it is for."""
_LEAST_EPSILON = 1e-6
"""Less than this is nothing left."""


def changed_units(relation: NeighboringRelation) -> int:
  """Examples that differ between neighbours: one out, one out and one in."""
  return 2 if relation is NeighboringRelation.REPLACE_ONE else 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending:
  """The composition of the private releases in a ledger.

  Attributes:
    charges: how many entries there are, private or not, caps aside.
    noise_multiplier: σ of the one Gaussian release that they amount to; None
      when nothing private has been released.
    not_private: charges for baselines and for noise from a seed, which nothing
      can compose.
  """

  charges: int
  noise_multiplier: float | None
  not_private: int

  def epsilon(self, delta: float) -> float:
    """ε spent at δ, rounded up; 0 when nothing was released."""
    if self.noise_multiplier is None:
      return 0.0
    return accounting.epsilon_of(self.noise_multiplier, delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussian:
  """`count` Gaussian mechanisms of one noise multiplier.

  Attributes:
    noise_multiplier: σ > 0, the noise's standard deviation over the L2
      sensitivity to one privacy unit added or removed.
    count: how many of them, each with noise of its own.
  """

  noise_multiplier: float
  count: int = 1

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    return {"kind": "gaussian", **dataclasses.asdict(self)}

  def under(self, relation: NeighboringRelation) -> list[float]:
    """σ of each, over the sensitivity in a relation.

    One unit replaced is one removed and one added: at most twice the
    sensitivity, and exactly that for the class sums.
    """
    return [self.noise_multiplier / changed_units(relation)] * self.count


def compose(
  entries: Sequence[dict[str, Any]], relation: NeighboringRelation
) -> Spending:
  """Composes the entries of a ledger, exactly.

  Raises:
    InputError: an entry holds a mechanism that this version cannot compose.
  """
  charges = [e for e in entries if e.get("kind") != "cap"]
  sigmas = _sigmas(entries, relation)
  return Spending(
    charges=len(charges),
    noise_multiplier=accounting.compose(sigmas) if sigmas else None,
    not_private=sum(not e.get("private") for e in charges),
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cap:
  """The guarantee that all releases of a data set are to keep, together.

  Formal guarantees: as long as `allows` is asked before each release, all that
  is released is (max_epsilon, max_delta)-DP in the relation, by exact
  composition: σ = (Σσ_i⁻²)^(−1/2) stays at or above the σ that one release of
  max_epsilon at max_delta would have. The δ that a release was stated at plays
  no part.

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

  @functools.cached_property
  def least_noise(self) -> float:
    """The smallest σ that all releases together may amount to."""
    return accounting.noise_multiplier(self.max_epsilon, self.max_delta)

  def allows(
    self,
    entries: Sequence[dict[str, Any]],
    mechanisms: Iterable[Gaussian] = (),
  ) -> bool:
    """Whether the cap holds when `mechanisms` come on top of `entries`."""
    relation = self.neighboring_relation
    sigmas = _sigmas(entries, relation)
    sigmas += [s for m in mechanisms for s in m.under(relation)]
    if not sigmas:
      return True
    return accounting.compose(sigmas) >= self.least_noise * (1 - _SLACK)

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
    """The largest ε of one more release, in five digits, rounded down.

    Args:
      entries: what was released already.
      delta: δ of that release.
      relation: its neighbouring relation.

    Returns:
      ε, which `allows` would accept; 0 if there is none.
    """
    spent = compose(entries, self.neighboring_relation).noise_multiplier
    precision = self.least_noise**-2 - (spent**-2 if spent else 0.0)
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
      again = Gaussian(noise_multiplier=sigma * changed_units(relation))
      if self.allows(entries, [again]):
        return float(epsilon)
      epsilon = down.next_minus(epsilon)
    return 0.0

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    return {
      "kind": "cap",
      "max_epsilon": self.max_epsilon,
      "max_delta": self.max_delta,
      "neighboring_relation": self.neighboring_relation.name,
    }

  def __str__(self) -> str:
    """In words."""
    epsilon, delta = map(printable, (self.max_epsilon, self.max_delta))
    relation = self.neighboring_relation.name
    return f"epsilon {epsilon} at delta {delta} ({relation})"


def caps(entries: Iterable[dict[str, Any]]) -> list[Cap]:
  """All caps that were ever set, oldest first; the last one holds."""
  return [
    Cap(
      max_epsilon=entry["max_epsilon"],
      max_delta=entry["max_delta"],
      neighboring_relation=NeighboringRelation[entry["neighboring_relation"]],
    )
    for entry in entries
    if entry.get("kind") == "cap"
  ]


def _sigmas(
  entries: Iterable[dict[str, Any]], relation: NeighboringRelation
) -> list[float]:
  """σ of every Gaussian mechanism in the entries, in a relation."""
  return [
    sigma
    for entry in entries
    if entry.get("kind") != "cap" and entry.get("private")
    for mechanism in _mechanisms(entry)
    for sigma in mechanism.under(relation)
  ]


def _mechanisms(entry: dict[str, Any]) -> list[Gaussian]:
  try:
    return [_parse(mechanism) for mechanism in entry["mechanisms"]]
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"Entry {entry['entry'][:12]} of the ledger was paid for by something"
      f" that this version cannot compose ({error}); use the version of"
      " oneshot-dp that wrote it."
    ) from error


def _parse(mechanism: dict[str, Any]) -> Gaussian:
  if mechanism["kind"] != "gaussian":
    raise ValueError(f"a mechanism of kind {mechanism['kind']!r}")
  sigma, count = mechanism["noise_multiplier"], mechanism["count"]
  if not (sigma > 0 and isinstance(count, int) and count > 0):
    raise ValueError(f"{count!r} of noise multiplier {sigma!r}")
  return Gaussian(noise_multiplier=float(sigma), count=count)
