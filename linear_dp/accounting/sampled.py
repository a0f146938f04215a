r"""The cost of steps that each see a random part of the rows.

A step of Poisson sampling takes every row with probability q, by itself, and
releases their sum with Gaussian noise. What leaves does not tell which rows
were taken, and so costs less than the noise alone would. No Gaussian mechanism
costs the same at every δ, so these compose through privacy loss distributions,
by dp_accounting, whose grid is rounded towards more loss.

Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi, "Connect the Dots:
Tighter Discrete Approximations of Privacy Loss Distributions", PETS 2022.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

from dp_accounting import NeighboringRelation
from dp_accounting.pld.privacy_loss_distribution import (
  PrivacyLossDistribution,
  from_gaussian_mechanism,
)
from scipy import optimize

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting

ACCOUNTANT = (
  "dp_accounting.pld (Poisson sampling, rounded up; Doroshenko et al. 2022)"
)
_MARGIN = 1e-9
LEAST_DELTA = 1e-12
"""Below this the rounding of float64 would be part of the answer."""
_LEAST_NOISE = 0.2
"""Below this the grid of losses takes too much memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonSampling:
  """Every row is in a step with probability q, independently of all else.

  Attributes:
    probability: q, in (0, 1].
    num_steps: T.
  """

  probability: float
  num_steps: int

  def __post_init__(self):
    if not 0 < self.probability <= 1:
      raise InputError(f"probability={self.probability} is not in (0, 1].")
    if self.num_steps < 1:
      raise InputError(f"num_steps={self.num_steps} must be at least 1.")

  def noise_multiplier(self, epsilon: float, delta: float) -> float:
    """The smallest σ of a step, nearly, for which all are private together.

    Args:
      epsilon: ε > 0.
      delta: δ in (0, 1), at least 1e-12.

    Returns:
      σ, rounded up: `epsilon_of` it is at most ε. Never less than 0.2.

    Raises:
      InputError: the budget is none, or asks for too much noise.
    """
    accounting.check_budget(epsilon, delta)
    _check_delta(delta)
    return _calibrated(self, float(epsilon), float(delta))

  def epsilon_of(self, sigma: float, delta: float) -> float:
    """ε of all steps together, rounded up, a row being added or removed."""
    steps = SampledGaussian(noise_multiplier=sigma, sampling=self)
    return epsilon_of_composition([], [steps], delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledGaussian:
  """Gaussian mechanisms on random parts of the rows.

  Attributes:
    noise_multiplier: σ of each step, the noise's standard deviation over the L2
      sensitivity to one row added or removed.
    sampling: how many, and of which parts.
  """

  noise_multiplier: float
  sampling: PoissonSampling


def epsilon_of_composition(
  gaussians: Sequence[float],
  sampled: Sequence[SampledGaussian],
  delta: float,
  relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> float:
  """ε of everything together.

  Args:
    gaussians: noise multipliers, in the relation, of mechanisms on all rows.
    sampled: the others.
    delta: δ in (0, 1), at least 1e-12 where there are others.
    relation: which data sets count as neighbours.

  Returns:
    ε, rounded up; 0 where nothing was released.

  Raises:
    InputError: δ is too small.
  """
  if not sampled:
    if not gaussians:
      return 0.0
    return accounting.epsilon_of(accounting.compose(gaussians), delta)
  _check_delta(delta)
  interval = min(_interval(each.noise_multiplier) for each in sampled)
  parts = [_loss_distribution(each, relation, interval) for each in sampled]
  if gaussians:
    parts.append(
      from_gaussian_mechanism(
        accounting.compose(gaussians), value_discretization_interval=interval
      )
    )
  whole = functools.reduce(PrivacyLossDistribution.compose, parts)
  epsilon = whole.get_epsilon_for_delta(delta)
  if not math.isfinite(epsilon):
    raise InputError(
      f"no epsilon holds at delta={delta} for so little noise; use a larger"
      " delta."
    )
  return epsilon * (1 + _MARGIN)


def _interval(sigma: float) -> float:
  """Of the grid of losses; where noise is low, finer gains next to nothing."""
  return 1e-3 if sigma < 1.5 else 1e-4


# A search for σ makes many, and each may take megabytes.
@functools.lru_cache(maxsize=16)
def _loss_distribution(
  steps: SampledGaussian, relation: NeighboringRelation, interval: float
) -> PrivacyLossDistribution:
  one = from_gaussian_mechanism(
    steps.noise_multiplier,
    value_discretization_interval=interval,
    sampling_prob=steps.sampling.probability,
    neighboring_relation=relation,
  )
  return one.self_compose(steps.sampling.num_steps)


@functools.cache
def _calibrated(
  sampling: PoissonSampling, epsilon: float, delta: float
) -> float:
  def excess(sigma: float) -> float:
    return sampling.epsilon_of(sigma, delta) - epsilon

  # Without sampling as much noise as this would do, but for the grid.
  enough = accounting.noise_multiplier(epsilon, delta)
  enough = max(enough * math.sqrt(sampling.num_steps) * 1.01, _LEAST_NOISE)
  while True:
    accounting.check_noise_multiplier(
      enough, epsilon, "nothing could be learned"
    )
    if excess(enough) <= 0:
      break
    enough *= 2
  while enough > _LEAST_NOISE:
    half = max(enough / 2, _LEAST_NOISE)
    if excess(half) > 0:
      break
    enough = half
  else:
    return enough
  found = optimize.root_scalar(
    excess, method="brentq", bracket=(half, enough), xtol=half * 1e-4
  )
  sigma = float(found.root)
  while excess(sigma) > 0:
    sigma *= 1 + 1e-4
  return sigma


def _check_delta(delta: float) -> None:
  if delta < LEAST_DELTA:
    raise InputError(
      f"delta={delta:g} is too small to account for random batches at; use one"
      f" of {LEAST_DELTA:g} or more, or full batches."
    )
