"""What the entries of a ledger add up to.

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
import math
from collections.abc import Iterable, Sequence
from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.sampled import (
  PoissonSampling,
  SampledGaussian,
  epsilon_of_composition,
)


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
