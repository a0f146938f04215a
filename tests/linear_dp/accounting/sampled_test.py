"""The cost of random batches, by accountants that are told nothing of ours."""

import functools
import itertools
import math

import hypothesis
import mpmath
import pytest
import scipy.stats
from dp_accounting import (
  ComposedDpEvent,
  GaussianDpEvent,
  NeighboringRelation,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import (
  gaussian as accounting,
)
from oneshot_dp.linear_dp.accounting import (
  sampled as sampled_accounting,
)
from oneshot_dp.linear_dp.accounting.sampled import (
  PoissonSampling,
  SampledGaussian,
  epsilon_of_composition,
)

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def of(q: float, steps: int) -> PoissonSampling:
  return PoissonSampling(probability=q, num_steps=steps)


def event(q: float, steps: int, sigma: float) -> SelfComposedDpEvent:
  one = PoissonSampledDpEvent(q, GaussianDpEvent(sigma))
  return SelfComposedDpEvent(one, steps)


def by_pld(event, delta: float, interval: float, relation=ADD_OR_REMOVE):
  accountant = PLDAccountant(relation, value_discretization_interval=interval)
  return accountant.compose(event).get_epsilon(delta)


# With a grid finer than ours, which is 1e-3 or 1e-4.
CASES = [
  (0.01, 50, 0.6, 1e-5, 1e-4),
  (2**-10, 1000, 0.8, 1e-6, 1e-4),
  (0.3, 5, 1.2, 1e-5, 1e-4),
  (0.05, 30, 1.6, 1e-9, 2e-5),
]


@pytest.mark.parametrize(("q", "steps", "sigma", "delta", "finer"), CASES)
def test_other_accountants_agree(q, steps, sigma, delta, finer):
  """PLD on a finer grid is lower by little, and RDP higher."""
  found = of(q, steps).epsilon_of(sigma, delta)
  fine = by_pld(event(q, steps, sigma), delta, finer)
  assert fine <= found <= fine * (1 + 5e-3)
  rdp = RdpAccountant(neighboring_relation=ADD_OR_REMOVE)
  rdp.compose(event(q, steps, sigma))
  assert found < rdp.get_epsilon(delta) < 4 * found
  # Sampling saves, and what it saves does not undercut a step without noise.
  alone = accounting.epsilon_of(sigma / math.sqrt(steps), delta)
  assert found < 0.9 * alone


def exact_delta(epsilon: float, q: float, sigma: float) -> float:
  """Of one step, from the two densities alone; the worse of both directions."""
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


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-11])
@pytest.mark.parametrize(("q", "sigma"), [(0.5, 0.5), (0.1, 1.0), (0.01, 1.6)])
def test_one_step_by_its_densities(q, sigma, delta):
  """Rounded up, and by less than the grid."""
  found = of(q, 1).epsilon_of(sigma, delta)
  assert exact_delta(found, q, sigma) <= delta
  lower = found - (1e-3 if sigma < 1.5 else 1e-4)
  assert lower < 0 or exact_delta(lower, q, sigma) > delta


@pytest.mark.parametrize(("steps", "sigma"), [(1, 0.7), (10, 3.0), (100, 9.0)])
@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_without_sampling_it_is_the_composition_of_gaussians(
  steps, sigma, delta
):
  exact = accounting.epsilon_of(accounting.compose([sigma] * steps), delta)
  found = of(1.0, steps).epsilon_of(sigma, delta)
  assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-3) + 1e-3


# How much noise.

BUDGETS = [
  (0.01, 100, 1.0, 1e-5),
  (0.1, 5, 4.0, 1e-6),
  (1.0, 10, 1.0, 1e-6),
  (2**-10, 1000, 0.5, 1e-10),
]


@functools.cache
def sigma_of(q: float, steps: int, epsilon: float, delta: float) -> float:
  return of(q, steps).noise_multiplier(epsilon, delta)


@pytest.mark.parametrize(("q", "steps", "epsilon", "delta"), BUDGETS)
def test_noise_is_enough_and_hardly_more(q, steps, epsilon, delta):
  sigma = sigma_of(q, steps, epsilon, delta)
  found = of(q, steps).epsilon_of(sigma, delta)
  assert epsilon * (1 - 2e-3) < found <= epsilon
  # By dp_accounting alone, on its own grid.
  assert by_pld(event(q, steps, sigma), delta, 1e-4) <= epsilon


@pytest.mark.parametrize(
  ("q", "steps", "epsilon"), [(0.5, 300, 1e-3), (1.0, 1000, 0.01)]
)
def test_little_epsilon_is_not_lost_in_the_grid(q, steps, epsilon):
  """It takes more noise, where rounding costs more than sampling saves."""
  sigma = sigma_of(q, steps, epsilon, 1e-6)
  assert epsilon / 2 < of(q, steps).epsilon_of(sigma, 1e-6) <= epsilon


@pytest.mark.parametrize("epsilon", [100.0, 1e4, 1e6])
def test_noise_is_never_less_than_the_grid_has_room_for(epsilon):
  sigma = sigma_of(0.5, 1, epsilon, 1e-5)
  assert 0.2 <= sigma <= 0.4
  assert of(0.5, 1).epsilon_of(sigma, 1e-5) <= epsilon


def test_more_noise_than_is_of_use_is_refused():
  with pytest.raises(InputError, match="nothing could be learned through that"):
    of(0.5, 10**6).noise_multiplier(1e-4, 1e-10)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_no_budget_is_refused(epsilon):
  with pytest.raises(InputError, match="must be positive and finite"):
    of(0.5, 1).noise_multiplier(epsilon, 1e-5)


@hypothesis.settings(max_examples=5, deadline=None)
@hypothesis.given(
  q=st.floats(0.001, 0.5),
  steps=st.integers(1, 20),
  sigma=st.floats(0.5, 1.4),
  larger=st.floats(1.05, 2),
)
def test_more_noise_fewer_steps_and_smaller_parts_cost_less(
  q, steps, sigma, larger
):
  """On one grid: between σ below and above 1.5 it gets finer."""
  delta = 1e-5
  found = of(q, steps).epsilon_of(sigma, delta)
  assert of(q, steps).epsilon_of(min(sigma * larger, 1.49), delta) <= found
  assert of(min(1, q * larger), steps).epsilon_of(sigma, delta) >= found
  assert of(q, steps + 5).epsilon_of(sigma, delta) >= found
  assert of(q, steps).epsilon_of(sigma, delta / 10) >= found
  assert found >= 0


# Everything together.


def sampled(q: float, steps: int, sigma: float) -> SampledGaussian:
  return SampledGaussian(noise_multiplier=sigma, sampling=of(q, steps))


@pytest.mark.parametrize(
  ("gaussians", "parts"),
  [
    ([], [(0.01, 50, 0.8)]),
    ([2.0, 5.0], [(0.01, 50, 0.8)]),
    ([3.0], [(0.1, 5, 1.4), (0.02, 5, 2.5), (0.1, 5, 1.4)]),
  ],
)
def test_gaussians_and_samples_compose(gaussians, parts):
  delta = 1e-6
  found = epsilon_of_composition(gaussians, [sampled(*p) for p in parts], delta)
  everything = ComposedDpEvent(
    [GaussianDpEvent(s) for s in gaussians] + [event(*p) for p in parts]
  )
  fine = by_pld(everything, delta, 1e-4)
  assert fine * (1 - 1e-6) <= found <= fine * (1 + 5e-3)
  # The order is of no account, and each of them costs.
  turned = [sampled(*p) for p in parts[::-1]]
  again = epsilon_of_composition(gaussians[::-1], turned, delta)
  assert again == pytest.approx(found, rel=1e-8)
  for p in parts:
    assert found >= of(*p[:2]).epsilon_of(p[2], delta) * (1 - 1e-6)
  for s in gaussians:
    assert found > accounting.epsilon_of(s, delta)


def test_gaussians_alone_are_exact():
  found = epsilon_of_composition([2.0, 3.0], [], 1e-30)
  expected = accounting.epsilon_of(accounting.compose([2.0, 3.0]), 1e-30)
  assert found == expected
  assert epsilon_of_composition([], [], 1e-5) == 0


@pytest.mark.parametrize(
  ("q", "steps", "sigma"), [(0.1, 4, 1.0), (0.5, 1, 1.4)]
)
def test_replacing_costs_at_least_what_adding_or_removing_does(q, steps, sigma):
  """Where σ is in units of what one row adds."""
  parts = [sampled(q, steps, sigma)]
  add, replace = (
    epsilon_of_composition([], parts, 1e-5, relation)
    for relation in (ADD_OR_REMOVE, REPLACE)
  )
  assert replace >= add
  fine = by_pld(event(q, steps, sigma), 1e-5, 1e-4, REPLACE)
  assert fine * (1 - 1e-6) <= replace <= fine * (1 + 5e-3)


# What is refused.


@pytest.mark.parametrize("delta", [1e-13, 1e-40])
def test_a_delta_lost_in_rounding_is_refused(delta):
  said = f"delta={delta:g} is too small to account for random batches"
  for ask in (
    lambda: of(0.1, 3).noise_multiplier(1.0, delta),
    lambda: of(0.1, 3).epsilon_of(1.0, delta),
    lambda: epsilon_of_composition([2.0], [sampled(0.1, 3, 1.0)], delta),
  ):
    with pytest.raises(InputError, match=said) as caught:
      ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("delta", [1e-12, 3e-12])
def test_the_least_delta_is_still_rounded_up(delta):
  found = of(0.2, 1).epsilon_of(1.0, delta)
  assert exact_delta(found, 0.2, 1.0) <= delta


def test_an_infinite_epsilon_is_refused(monkeypatch):
  """Truncated tails may weigh more than a small δ, over very many steps."""
  monkeypatch.setattr(sampled_accounting, "LEAST_DELTA", 0.0)
  with pytest.raises(InputError, match="no epsilon holds at delta=1e-25"):
    of(0.5, 10).epsilon_of(1.0, 1e-25)


@pytest.mark.parametrize("q", [0.0, -0.1, 1 + 1e-9, math.nan])
def test_a_probability_that_is_none_is_refused(q):
  with pytest.raises(InputError, match=r"is not in \(0, 1\]"):
    of(q, 1)


@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps_are_refused(steps):
  with pytest.raises(InputError, match=f"num_steps={steps} must be at least 1"):
    of(0.5, steps)


def test_exact_delta_knows_the_plain_gaussian():
  """The oracle itself: q = 1 is theorem 8 of Balle & Wang."""
  for epsilon, sigma in itertools.product((0.3, 2.0), (0.7, 3.0)):
    near, far = (
      scipy.stats.norm.cdf(s / (2 * sigma) - epsilon * sigma) for s in (1, -1)
    )
    expected = near - math.exp(epsilon) * far
    assert exact_delta(epsilon, 1, sigma) == pytest.approx(expected, rel=1e-7)
