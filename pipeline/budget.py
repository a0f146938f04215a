"""What the entries of a ledger add up to, and what a cap leaves of it.

An entry that let something private out lists the mechanisms that paid for it:

    {"kind": "gaussian", "noise_multiplier": σ, "count": k}
    {"kind": "sampled gaussian", "noise_multiplier": σ, "count": k,
     "probability": q, "num_steps": T}

k Gaussian mechanisms, each with noise of σ times its L2 sensitivity to one
example added or removed, whatever relation its ε was stated in; or k times T of
them, on Poisson samples. The Gaussians compose exactly, through Σσ⁻², and with
the others by privacy loss distributions. A mechanism of any other kind is an
error, never zero.
"""

import dataclasses
import decimal
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dp_accounting import NeighboringRelation

from configs.errors import InputError
from linear_dp import accounting
from linear_dp.accounting import printable
from linear_dp.sampled_accounting import (
  PoissonSampling,
  SampledGaussian,
  epsilon_of_composition,
)

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
    gaussians: σ of every Gaussian release, in the relation.
    sampled: releases on random parts of the rows.
    relation: which data sets count as neighbours.
    not_private: charges for baselines and for noise from a seed, which nothing
      can compose.
  """

  charges: int
  gaussians: tuple[float, ...]
  sampled: tuple[SampledGaussian, ...]
  relation: NeighboringRelation
  not_private: int

  @property
  def noise_multiplier(self) -> float | None:
    """σ that the Gaussian releases amount to; None where there are none."""
    return accounting.compose(self.gaussians) if self.gaussians else None

  def epsilon(self, delta: float) -> float:
    """ε spent at δ, rounded up; 0 when nothing was released."""
    return epsilon_of_composition(
      self.gaussians, self.sampled, delta, self.relation
    )

  def plus(self, mechanisms: Iterable["Payment"]) -> "Spending":
    """What it would be with more releases."""
    gaussians, sampled = list(self.gaussians), list(self.sampled)
    for mechanism in mechanisms:
      if isinstance(mechanism, Gaussian):
        gaussians += mechanism.under(self.relation)
      else:
        sampled += [mechanism.steps] * mechanism.count
    return dataclasses.replace(
      self, gaussians=tuple(gaussians), sampled=tuple(sampled)
    )


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
  """`count` releases, each of several steps on Poisson samples.

  Attributes:
    steps: the noise of a step, and what is sampled.
    count: how many of them, each with noise and samples of its own.
  """

  steps: SampledGaussian
  count: int = 1

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    return {
      "kind": "sampled gaussian",
      "noise_multiplier": self.steps.noise_multiplier,
      "count": self.count,
      **dataclasses.asdict(self.steps.sampling),
    }


Payment = Gaussian | Sampled


def compose(
  entries: Sequence[dict[str, Any]], relation: NeighboringRelation
) -> Spending:
  """Composes the entries of a ledger.

  Raises:
    InputError: an entry holds a mechanism that this version cannot compose.
  """
  charges = [e for e in entries if e.get("kind") != "cap"]
  nothing = Spending(
    charges=len(charges),
    gaussians=(),
    sampled=(),
    relation=relation,
    not_private=sum(not e.get("private") for e in charges),
  )
  return nothing.plus(
    m for e in charges if e.get("private") for m in _mechanisms(e)
  )


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

  @functools.cached_property
  def least_noise(self) -> float:
    """The smallest σ that all releases together may amount to."""
    return accounting.noise_multiplier(self.max_epsilon, self.max_delta)

  def allows(
    self,
    entries: Sequence[dict[str, Any]],
    mechanisms: Iterable[Payment] = (),
  ) -> bool:
    """Whether the cap holds when `mechanisms` come on top of `entries`."""
    return self._holds(
      compose(entries, self.neighboring_relation).plus(mechanisms)
    )

  def _holds(self, spent: Spending) -> bool:
    if spent.sampled:
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
    spent = compose(entries, self.neighboring_relation)
    sigma = spent.noise_multiplier
    precision = self.least_noise**-2 - (sigma**-2 if sigma else 0.0)
    if precision <= 0:
      return 0.0
    unit = changed_units(self.neighboring_relation) / changed_units(relation)
    most = accounting.epsilon_of(precision**-0.5 * unit, delta)

    def fits(epsilon: float) -> bool:
      sigma = accounting.noise_multiplier(epsilon, delta)
      again = Gaussian(noise_multiplier=sigma * changed_units(relation))
      return self._holds(spent.plus([again]))

    if spent.sampled:
      return _largest(fits, most)
    down = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
    # A little more, for the roundings on the way here; what is then too much
    # by a rounding is found by asking.
    epsilon = down.create_decimal(most * (1 + 1e-8))
    while epsilon >= _LEAST_EPSILON:
      if fits(float(epsilon)):
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


def _largest(fits: Callable[[float], bool], most: float) -> float:
  """The largest ε that fits, in three digits, rounded down; 0 for none."""
  if not fits(_LEAST_EPSILON):
    return 0.0
  low, high = most / 2, most
  while not fits(low):  # seldom: each asks for another composition
    low, high = low / 2, low
  while high > low * (1 + 5e-4):
    middle = (low + high) / 2
    low, high = (middle, high) if fits(middle) else (low, middle)
  down = decimal.Context(prec=3, rounding=decimal.ROUND_FLOOR)
  return float(down.create_decimal(low))


def _mechanisms(entry: dict[str, Any]) -> list[Payment]:
  try:
    return [_parse(mechanism) for mechanism in entry["mechanisms"]]
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"Entry {entry['entry'][:12]} of the ledger was paid for by something"
      f" that this version cannot compose ({error}); use the version of"
      " oneshot-dp that wrote it."
    ) from error


def _parse(mechanism: dict[str, Any]) -> Payment:
  kind = mechanism["kind"]
  if kind not in ("gaussian", "sampled gaussian"):
    raise ValueError(f"a mechanism of kind {kind!r}")
  sigma, count = mechanism["noise_multiplier"], mechanism["count"]
  if not (0 < sigma < math.inf and isinstance(count, int) and count > 0):
    raise ValueError(f"{count!r} of noise multiplier {sigma!r}")
  if kind == "gaussian":
    return Gaussian(noise_multiplier=float(sigma), count=count)
  probability, num_steps = mechanism["probability"], mechanism["num_steps"]
  if not (isinstance(probability, float) and isinstance(num_steps, int)):
    raise ValueError(f"{num_steps!r} steps of probability {probability!r}")
  sampling = PoissonSampling(probability=probability, num_steps=num_steps)
  steps = SampledGaussian(noise_multiplier=float(sigma), sampling=sampling)
  return Sampled(steps=steps, count=count)
