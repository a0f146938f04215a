r"""The only door through which private sums leave.

The statistic is G = rint(p0·T) − S on the integer grid (see `clipping`), and
what leaves is G + round(Z) with Z a Gaussian of standard deviation
σ·sensitivity: post-processing of the Gaussian mechanism. A `ReleasePlan` says
beforehand which releases there will be and what they cost together; `release`
has that cost charged, by the function that it is handed, before the first
random bit is drawn.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Float, Int64

from configs.errors import InputError
from configs.schema import ReleaseOrder
from linear_dp import accounting
from linear_dp.clipping import ClippedGradientGrid
from linear_dp.exact_sum import SecretSum
from linear_dp.noise import GaussianChain
from linear_dp.noise_source import NoiseSource
from linear_dp.sampled_accounting import (
  PoissonSampling,
  SampledGaussian,
  epsilon_of_composition,
)

NOT_PRIVATE = "NOT PRIVATE"
BASELINE_NOISE = f"none: {NOT_PRIVATE}"
"""What the noise source of the baseline is called."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
  """What one release guarantees, and all that is needed to recompute it.

  Attributes:
    epsilon: ε of this release alone; infinity for the baseline.
    delta: δ.
    noise_multiplier: σ, in units of the sensitivity; 0 for the baseline.
    sensitivity: L2 sensitivity of the statistic, grid steps.
    noise_sd: standard deviation of the noise, grid steps: σ·sensitivity.
    neighboring_relation: which data sets count as neighbours.
    noise_source: where the random bits came from.
    is_private: False for the baseline and for anything drawn from a seed.
  """

  epsilon: float
  delta: float
  noise_multiplier: float
  sensitivity: float
  noise_sd: float
  neighboring_relation: NeighboringRelation
  noise_source: str
  is_private: bool

  @classmethod
  def without_privacy(
    cls,
    delta: float,
    relation: NeighboringRelation,
    *,
    sensitivity: float = 1.0,
  ) -> "PrivacyStatement":
    """Of something exact: ε = ∞. NOT PRIVATE, and says so."""
    return cls(
      epsilon=math.inf,
      delta=delta,
      noise_multiplier=0.0,
      sensitivity=sensitivity,
      noise_sd=0.0,
      neighboring_relation=relation,
      noise_source=BASELINE_NOISE,
      is_private=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Release:
  """A noisy clipped gradient sum: safe to publish as its statement says.

  Attributes:
    noisy_sum: [K, D] int64, G + round(Z), grid steps; any function of it is
      post-processing.
    grid: the grid of `noisy_sum`.
    num_examples: n, public.
    draw: which of the plan's repetitions this is.
    statement: the guarantee.
  """

  noisy_sum: Int64[np.ndarray, "K D"]
  grid: ClippedGradientGrid
  num_examples: int
  draw: int
  statement: PrivacyStatement

  @property
  def mean_gradient(self) -> Float[np.ndarray, "K D"]:
    """The noisy mean clipped gradient, C/(B·‖r‖)·(G + round(Z))/n, float64."""
    return self.noisy_sum * (self.grid.step / self.num_examples)

  @property
  def gradient_noise_sd(self) -> float:
    """Standard deviation of the noise in one entry of `mean_gradient`."""
    return self.statement.noise_sd * self.grid.step / self.num_examples


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePlan:
  r"""Which releases to make of one private sum.

  Formal guarantees: with "nested", the releases of one draw are the largest ε
  plus more and more noise, so that all of them together cost what the largest
  does (`GaussianChain`). With "independent", every release has noise of its own
  and all of them compose. Draws are always independent of each other.

  Attributes:
    epsilons: the ε of each head, distinct.
    delta: δ of each head.
    neighboring_relation: which data sets count as neighbours.
    order: "nested" or "independent".
    num_draws: repetitions of the whole list with fresh noise, to see the
      spread; each costs as much as the first.
    sampling: of heads whose steps see random parts of the rows; σ is then that
      of a step.
  """

  epsilons: tuple[float, ...]
  delta: float
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.ADD_OR_REMOVE_ONE
  )
  order: ReleaseOrder = "nested"
  num_draws: int = 1
  sampling: PoissonSampling | None = None

  def __post_init__(self):
    for epsilon in self.epsilons:
      accounting.check_budget(epsilon, self.delta)
    if not self.epsilons:
      raise InputError("epsilons is empty: give at least one.")
    if self.sampling:
      self._check_sampling()
    ordered = sorted(self.epsilons)
    for smaller, larger in itertools.pairwise(ordered):
      # Nearer ones could not be told apart by their noise multipliers.
      if larger <= smaller * (1 + 1e-6):
        raise InputError(
          f"epsilons={list(self.epsilons)} has an epsilon twice, or nearly; use"
          " num_seeds for several heads of one epsilon."
        )
    accounting.check_noise_multiplier(
      max(self.noise_multipliers.values()),
      min(self.epsilons),
      "nothing could be learned",
    )
    if self.num_draws < 1:
      raise InputError(f"num_seeds={self.num_draws} must be at least 1.")

  def _check_sampling(self) -> None:
    if self.order == "nested":
      raise InputError(
        "order='nested': heads of random batches share no noise."
      )
    if self.neighboring_relation is NeighboringRelation.REPLACE_ONE:
      raise InputError(
        "random batches are accounted for where an example is added or removed;"
        " leave out --neighboring-relation replace-one, or use full batches."
      )

  @functools.cached_property
  def noise_multipliers(self) -> dict[float, float]:
    """ε → σ, in the order of release: the largest ε, least noise, first."""
    of_epsilon = accounting.noise_multiplier
    if self.sampling:
      of_epsilon = self.sampling.noise_multiplier
    return {
      epsilon: of_epsilon(epsilon, self.delta)
      for epsilon in sorted(self.epsilons, reverse=True)
    }

  @property
  def charged_noise_multipliers(self) -> tuple[float, ...]:
    """σ of the mechanisms that pay for everything in the plan."""
    sigmas = tuple(self.noise_multipliers.values())
    paying = sigmas[:1] if self.order == "nested" else sigmas
    return paying * self.num_draws

  @property
  def composed_epsilon(self) -> float:
    """ε, at δ, of all releases of the plan together."""
    return composed_epsilon([self])


def composed_epsilon(plans: Sequence[ReleasePlan]) -> float:
  """ε of all releases of several plans together.

  Args:
    plans: about the same rows, at one δ and in one neighbouring relation.

  Returns:
    ε at that δ, rounded up.

  Raises:
    InputError: plans of several δ or relations, or none.
  """
  if len({(plan.delta, plan.neighboring_relation) for plan in plans}) != 1:
    raise InputError(
      "Plans compose at one delta and in one neighbouring relation."
    )
  gaussians, sampled = [], []
  for plan in plans:
    for sigma in plan.charged_noise_multipliers:
      if plan.sampling:
        steps = SampledGaussian(noise_multiplier=sigma, sampling=plan.sampling)
        sampled.append(steps)
      else:
        gaussians.append(sigma)
  return epsilon_of_composition(gaussians, sampled, plans[0].delta)


def release(
  secret: SecretSum,
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  charge: Callable[[ReleasePlan, NoiseSource], object],
) -> Iterator[Release]:
  """Adds noise and lets the sums out, one release per draw and ε.

  Formal guarantees: each release alone is (ε, δ)-DP in the plan's neighbouring
  relation, and all of them together cost `plan.composed_epsilon`, with n and
  the number of classes public. `charge` has returned before a random bit is
  drawn, so a crash costs budget and never privacy. The noise does not depend on
  the sums, nor does the time it takes to draw it.

  Args:
    secret: the exact sum.
    plan: what to release.
    source: the random bits; a seeded source marks every release NOT PRIVATE.
    charge: called once, first, with the plan and the source; raises to refuse.

  Yields:
    Releases, draw by draw, the largest ε first.
  """
  charge(plan, source)
  grid = secret.grid
  sensitivity = grid.sensitivity(plan.neighboring_relation)
  statistic = _statistic(secret)
  for draw in range(plan.num_draws):
    chain = GaussianChain(statistic.shape, source)
    for epsilon, sigma in plan.noise_multipliers.items():
      if plan.order == "independent":
        chain = GaussianChain(statistic.shape, source)
      noise_sd = math.nextafter(sigma * sensitivity, math.inf)
      yield Release(
        noisy_sum=statistic + chain.extend(noise_sd),
        grid=grid,
        num_examples=secret.num_examples,
        draw=draw,
        statement=PrivacyStatement(
          epsilon=epsilon,
          delta=plan.delta,
          noise_multiplier=sigma,
          sensitivity=sensitivity,
          noise_sd=noise_sd,
          neighboring_relation=plan.neighboring_relation,
          noise_source=source.description,
          is_private=source.is_private,
        ),
      )


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
