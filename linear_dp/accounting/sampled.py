"""How much noise steps need that each see a random part of the rows."""

import dataclasses
import functools
import math

import scipy

from oneshot_dp.linear_dp.accounting import gaussian
from oneshot_dp.linear_dp.accounting.events import check_delta, epsilon_of_event
from oneshot_dp.linear_dp.accounting.vocabulary import (
  DpEvent,
  GaussianDpEvent,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)

_LEAST_NOISE = 0.2
"""Below this the grid of losses takes too much memory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoissonSampling:
  """In each of T steps a row is with probability q, whatever else there is."""

  probability: float
  num_steps: int

  def event(self, sigma: float) -> DpEvent:
    """All steps, with noise of σ times the sensitivity in each."""
    step = PoissonSampledDpEvent(self.probability, GaussianDpEvent(sigma))
    return SelfComposedDpEvent(step, self.num_steps)

  def noise_multiplier(self, epsilon: float, delta: float) -> float:
    """The smallest σ of a step, nearly, for which all are private together.

    It is rounded up: `epsilon_of` it is at most ε. Never less than 0.2.
    InputError: the budget is none, or asks for too much noise; or there are no
    such steps.
    """
    check_delta(delta)
    return _calibrated(self, float(epsilon), float(delta))

  def epsilon_of(self, sigma: float, delta: float) -> float:
    """ε of all steps together, rounded up: a row, or nothing in its place."""
    return epsilon_of_event(self.event(sigma), delta)


@functools.cache
def _calibrated(
  sampling: PoissonSampling, epsilon: float, delta: float
) -> float:
  def excess(sigma: float) -> float:
    return sampling.epsilon_of(sigma, delta) - epsilon

  # Without sampling as much noise as this would do, but for the grid.
  enough = gaussian.noise_multiplier(epsilon, delta)
  enough = max(enough * math.sqrt(sampling.num_steps) * 1.01, _LEAST_NOISE)
  while True:
    gaussian.check_noise_multiplier(enough, epsilon, "nothing could be learned")
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
  found = scipy.optimize.root_scalar(
    excess, method="brentq", bracket=(half, enough), xtol=half * 1e-4
  )
  sigma = float(found.root)
  while excess(sigma) > 0:
    sigma *= 1 + 1e-4
  return sigma
