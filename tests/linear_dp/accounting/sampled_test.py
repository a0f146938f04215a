"""How much noise random batches need, by the definition of privacy alone."""

import itertools
import math

import mpmath
import pytest
import scipy.stats
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling


def of(q: float, steps: int) -> PoissonSampling:
  return PoissonSampling(probability=q, num_steps=steps)


def exact_delta(epsilon: float, q: float, sigma: float) -> float:
  """One step's, from the two densities alone; the worse of both directions."""
  with mpmath.workdps(30):
    e = mpmath.exp(epsilon)

    # The mixture is above e^±ε times the other beyond x.
    def beyond(level):
      inner = (level - 1 + q) / q
      if inner <= 0:
        return -mpmath.inf
      return sigma**2 * mpmath.log(inner) + mpmath.mpf(1) / 2

    def mixture_above(x):
      below = (1 - q) * mpmath.ncdf(x / sigma) + q * mpmath.ncdf(
        (x - 1) / sigma
      )
      return 1 - below

    x, y = beyond(e), beyond(1 / e)
    removed = mixture_above(x) - e * (1 - mpmath.ncdf(x / sigma))
    added = mpmath.ncdf(y / sigma) - e * (1 - mixture_above(y))
    return float(max(removed, added))


@pytest.mark.parametrize(
  ("q", "sigma", "delta"),
  [(0.5, 0.5, 1e-11), (0.1, 1.0, 1e-6), (0.01, 1.6, 1e-3), (0.2, 1.0, 1e-12)],
)
def test_one_step_by_its_densities(q, sigma, delta):
  """Rounded up, and by less than the grid."""
  found = of(q, 1).epsilon_of(sigma, delta)
  assert exact_delta(found, q, sigma) <= delta
  lower = found - (1e-3 if sigma < 1.5 else 1e-4)
  assert lower < 0 or exact_delta(lower, q, sigma) > delta


# How much noise.

BUDGETS = [(0.01, 100, 1.0, 1e-5), (0.1, 5, 4.0, 1e-10)]


@pytest.mark.slow
@pytest.mark.parametrize(("q", "steps", "epsilon", "delta"), BUDGETS)
def test_noise_is_enough_and_hardly_more(q, steps, epsilon, delta):
  sigma = of(q, steps).noise_multiplier(epsilon, delta)
  found = of(q, steps).epsilon_of(sigma, delta)
  assert epsilon * (1 - 2e-3) < found <= epsilon
  # By dp_accounting alone, on its own grid.
  oracle = PLDAccountant(value_discretization_interval=3e-4)
  oracle.compose(of(q, steps).event(sigma))
  assert oracle.get_epsilon(delta) <= epsilon


@pytest.mark.parametrize(("q", "steps", "epsilon"), [(0.5, 300, 1e-3)])
def test_little_epsilon_is_not_lost_in_the_grid(q, steps, epsilon):
  """It takes more noise, where rounding costs more than sampling saves."""
  sigma = of(q, steps).noise_multiplier(epsilon, 1e-6)
  assert epsilon / 2 < of(q, steps).epsilon_of(sigma, 1e-6) <= epsilon


@pytest.mark.parametrize("epsilon", [100.0, 1e6])
def test_noise_is_never_less_than_the_grid_has_room_for(epsilon):
  sigma = of(0.5, 1).noise_multiplier(epsilon, 1e-5)
  assert 0.2 <= sigma <= 0.4
  assert of(0.5, 1).epsilon_of(sigma, 1e-5) <= epsilon


def test_more_noise_than_is_of_use_is_refused():
  with pytest.raises(InputError, match="nothing could be learned through that"):
    of(0.5, 10**6).noise_multiplier(1e-4, 1e-10)


@pytest.mark.parametrize("delta", [1e-13, 1e-40])
def test_a_delta_lost_in_rounding_is_refused(delta):
  said = f"delta={delta:g} is too small to account for random batches"
  for ask in (
    lambda: of(0.1, 3).noise_multiplier(1.0, delta),
    lambda: of(0.1, 3).epsilon_of(1.0, delta),
  ):
    with pytest.raises(InputError, match=said) as caught:
      ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("q", "steps"), [(0.0, 1), (1.1, 1), (0.5, 0)])
def test_steps_that_are_none_are_refused(q, steps):
  with pytest.raises(InputError, match="must be"):
    of(q, steps).noise_multiplier(1.0, 1e-5)


def test_exact_delta_knows_the_plain_gaussian():
  """The oracle itself: q = 1 is theorem 8 of Balle & Wang."""
  for epsilon, sigma in itertools.product((0.3, 2.0), (0.7, 3.0)):
    near, far = (
      scipy.stats.norm.cdf(s / (2 * sigma) - epsilon * sigma) for s in (1, -1)
    )
    expected = near - math.exp(epsilon) * far
    assert exact_delta(epsilon, 1, sigma) == pytest.approx(expected, rel=1e-7)
