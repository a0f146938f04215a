r"""The only door through which private sums leave.

The statistic is G = rint(p0·T) − S on the integer grid (see `clipping`), and
what leaves is G + round(Z) with Z a Gaussian of standard deviation
σ·sensitivity: post-processing of the Gaussian mechanism. What all releases of a
`ReleasePlan` cost together is charged before the first random bit is drawn.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int64

from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum

_DRAWN_TOGETHER = 2048
"""Values of noise below which calls cost more than their work: so many draws
of a small sum (those of an audit) are made at once, all of them used or not, so
that with a seed a draw does not depend on how many there are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
  """A noisy clipped gradient sum: safe to publish as its statement says.

  `noisy_sum` is G + round(Z), in steps of the grid: any function of it is
  post-processing. `draw` is which of the plan's repetitions this is.
  """

  noisy_sum: Int64[np.ndarray, "K D"]
  grid: ClippedGradientGrid
  num_examples: int
  draw: int
  statement: PrivacyStatement

  @property
  def mean_gradient(self) -> Float[np.ndarray, "K D"]:
    """The noisy mean clipped gradient, C/(B·‖r‖)·(G + round(Z))/n."""
    return self.noisy_sum * (self.grid.step / self.num_examples)

  @property
  def gradient_noise_sd(self) -> float:
    """Standard deviation of the noise in one entry of `mean_gradient`."""
    return self.statement.noise_sd * self.grid.step / self.num_examples


def release(
  secret: SecretSum,
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  charge: Callable[[ReleasePlan, NoiseSource], object],
) -> Iterator[Release]:
  """Adds noise and lets the sums out, one release per draw and ε.

  They come draw by draw, the largest ε first.

  Formal guarantees: those of `Trainer.release`. The noise does not depend on
  the sums, nor does the time it takes to draw it.
  """
  charge(plan, source)
  grid = secret.grid
  sensitivity = grid.sensitivity(plan.neighboring_relation)
  statistic = _statistic(secret)
  deviations = [
    math.nextafter(sigma * sensitivity, math.inf)
    for sigma in plan.noise_multipliers.values()
  ]
  together = max(1, _DRAWN_TOGETHER // statistic.size)
  for first in range(0, plan.num_draws, together):
    draws = range(first, min(first + together, plan.num_draws))
    make = functools.partial(
      _noisy_sums, statistic, deviations, plan, source, together, len(draws)
    )
    sums = source.once("clipped sum", make)
    for i, draw in enumerate(draws):
      for epsilon, noise_sd, of_draws in zip(
        plan.noise_multipliers, deviations, sums, strict=True
      ):
        yield Release(
          noisy_sum=of_draws[i],
          grid=grid,
          num_examples=secret.num_examples,
          draw=draw,
          statement=PrivacyStatement.of_plan(
            plan, epsilon, source, sensitivity=sensitivity, noise_sd=noise_sd
          ),
        )


def _noisy_sums(
  statistic: Int64[np.ndarray, "K D"],
  deviations: Sequence[float],
  plan: ReleasePlan,
  source: NoiseSource,
  drawn: int,
  used: int,
) -> Int64[np.ndarray, "epsilons draws K D"]:
  """G + round(Z) of every ε and of some draws, which share the noise of one."""
  shape = (drawn, *statistic.shape)
  sums = np.empty((len(deviations), used, *statistic.shape), np.int64)
  chain = GaussianChain(shape, source)
  for i, noise_sd in enumerate(deviations):
    if i and plan.order == "independent":
      chain = GaussianChain(shape, source)
    np.add(statistic, chain.extend(noise_sd)[:used], out=sums[i])
  return sums


def baseline_without_privacy(secret: SecretSum, plan: ReleasePlan) -> Release:
  """The exact gradient, no noise: ε = ∞. NOT PRIVATE, and says so."""
  relation = plan.neighboring_relation
  return Release(
    noisy_sum=_statistic(secret),
    grid=secret.grid,
    num_examples=secret.num_examples,
    draw=0,
    statement=PrivacyStatement.without_privacy(
      plan.delta, relation, sensitivity=secret.grid.sensitivity(relation)
    ),
  )


def _statistic(secret: SecretSum) -> Int64[np.ndarray, "K D"]:
  """G = rint(p0·1 ⊗ T) − S, the sum of clipped gradients on the grid."""
  sums = secret.secret_class_sums
  # Rounded in rationals: with p0 near 1 and many rows, the error of a float64
  # product could move a rounding by more than the sensitivity pays for.
  p0 = Fraction(secret.grid.initial_probability)
  shared = [round(p0 * int(total)) for total in sums.sum(axis=0)]
  return np.array(shared, np.int64)[None, :] - sums
