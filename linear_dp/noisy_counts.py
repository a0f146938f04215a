r"""The other door: accuracies on private labels, as noisy counts.

The statistic is the vector c of all counts of right answers of all heads that
are evaluated together, at once and among the first five. What leaves is

    clip((c + round(Z)) / n, 0, 1),   Z ~ N(0, (σ·√m)²)^m,   m = len(c)

*Sensitivity.* An example with another in its place, or nothing, which no head
gets right, moves each count by −1, 0 or 1: in each relation ‖c − c′‖₂ ≤ √m, and
a row that all heads get right, and then none, attains it.

*Privacy.* c is a vector of integers, so c + round(Z) = round(c + Z) is
post-processing of the Gaussian mechanism, and so are the division by the public
n and the clipping. Where n is private too (a part of a split has the rows whose
own bytes say so), it is one more count, and what is divided by is n + round(Z),
of the same vector. Where a unit may have many rows, each of its k counts for
1/k (rounded down to steps of 1/B, so that counts are integers still), a unit
for 1 at most, and a share is one of units, whose number is counted likewise.
With at most five classes every label is among the first
five: that share is 1, whatever the data, and is not counted.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement
from oneshot_dp.linear_dp.accounting.vocabulary import (
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
)
from oneshot_dp.linear_dp.evaluate import Accuracy, SecretHits
from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource

_ALWAYS_AMONG = 5
"""Classes up to which top-5 accuracy says nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountPlan:
  """What one evaluation may cost, all of its counts together."""

  epsilon: float
  delta: float
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.REPLACE_SPECIAL
  )

  def __post_init__(self):
    accounting.check_budget(self.epsilon, self.delta)
    changed_units(self.neighboring_relation)  # what it refuses
    accounting.check_noise_multiplier(
      self.noise_multiplier, self.epsilon, "no accuracy could be seen"
    )

  @functools.cached_property
  def noise_multiplier(self) -> float:
    """σ, in units of the L2 sensitivity of the vector of counts."""
    return accounting.noise_multiplier(self.epsilon, self.delta)

  @property
  def event(self) -> DpEvent:
    """What pays for it: exact for an example, or nothing in its place.

    For one and another in its place the sensitivity is the same, and whoever
    counts it double, as the ledger does, counts too much, not too little.
    """
    return GaussianDpEvent(self.noise_multiplier)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyAccuracies:
  """Accuracies that are safe to publish as their statement says.

  Attributes:
    accuracies: one per head, in order, within [0, 1].
    num_counts: m, how many counts had noise added.
    size: what they were divided by: n, or a noisy count.
    statement: of all of them together; its numbers are in examples.
  """

  accuracies: tuple[Accuracy, ...]
  num_counts: int
  size: float
  statement: PrivacyStatement


def with_noise(
  counts: Int64[np.ndarray, "..."],
  noise_multiplier: float,
  source: NoiseSource,
  steps: int = 1,
) -> tuple[Int64[np.ndarray, "..."], float, float]:
  """c + round(Z), and √m and the deviation σ·√m, rounded up; it is paid for.

  Counts and Z are in steps, a power of two, of which a unit has at most so many
  in each; √m and the deviation are in units.
  """
  sensitivity = math.nextafter(math.sqrt(counts.size), math.inf)
  noise_sd = math.nextafter(noise_multiplier * sensitivity, math.inf)
  noisy = source.once(
    "counts",
    lambda: counts + rounded_gaussian(counts.shape, noise_sd * steps, source),
  )
  return noisy, sensitivity, noise_sd


def release_accuracies(
  secret: SecretHits,
  plan: CountPlan,
  source: NoiseSource,
  *,
  charge: Callable[[CountPlan, NoiseSource], object],
  num_examples: int | None = None,
  n_is_private: bool = False,
) -> NoisyAccuracies:
  """Adds noise to the counts and lets the accuracies out, once.

  `charge` is called before any noise is drawn. `num_examples` is n, where it is
  not the rows counted: others are wrong. Where `n_is_private`, n is about this,
  and what is there is counted with noise too, as it is wherever units are.

  Formal guarantees: all accuracies together are (ε, δ)-DP in the plan's
  neighbouring relation, with n, the number of classes and the heads public.
  `charge` has returned before a random bit is drawn: a crash costs budget and
  never privacy. A seeded source marks the result NOT PRIVATE.
  """
  charge(plan, source)
  is_counted = secret.num_classes > _ALWAYS_AMONG
  hits = secret.secret_hits[: 2 if is_counted else 1]
  n = num_examples or secret.num_examples
  counts = hits.ravel()
  n_is_private |= secret.steps > 1
  if n_is_private:
    counts = np.append(counts, secret.num_examples)
  noisy, sensitivity, noise_sd = with_noise(
    counts, plan.noise_multiplier, source, secret.steps
  )
  whole = n
  if n_is_private:
    whole = max(float(secret.steps), float(noisy[-1]))
  shares = (noisy[: hits.size].reshape(hits.shape) / whole).clip(0, 1).tolist()
  top1, top5 = shares if is_counted else (shares[0], [1.0] * len(shares[0]))
  return NoisyAccuracies(
    accuracies=tuple(
      Accuracy(top1=first, top5=five, num_examples=n)
      for first, five in zip(top1, top5, strict=True)
    ),
    num_counts=counts.size,
    size=whole / secret.steps,
    statement=PrivacyStatement(
      epsilon=plan.epsilon,
      delta=plan.delta,
      noise_multiplier=plan.noise_multiplier,
      sensitivity=sensitivity,
      noise_sd=noise_sd,
      neighboring_relation=plan.neighboring_relation,
      noise_source=source.description,
      is_private=source.is_private,
    ),
  )
