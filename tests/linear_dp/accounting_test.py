"""Conversions of (ε, δ) and μ², against other accountants and 80 digits."""

import math
from fractions import Fraction

import dp_accounting
import hypothesis
import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import (
  check_budget,
  check_delta,
  epsilon_of,
  format_rounded_down,
  mu_squared_from_epsilon,
  noise_multiplier,
  sum_mu_squared,
)


def exact_delta(epsilon, mu_squared):
  """Balle & Wang's theorem 8 in 80 digits, from its formula alone."""
  with mpmath.workdps(80):
    epsilon = mpmath.mpf(epsilon)
    sigma = 1 / mpmath.sqrt(mpmath.mpf(mu_squared))
    with_unit = mpmath.ncdf(1 / (2 * sigma) - epsilon * sigma)
    without_unit = mpmath.ncdf(-1 / (2 * sigma) - epsilon * sigma)
    return with_unit - mpmath.exp(epsilon) * without_unit


EPSILONS = st.floats(-2.3, 2).map(lambda exponent: 10**exponent)
DELTAS = st.floats(-12, -0.5).map(lambda exponent: 10**exponent)


@hypothesis.settings(max_examples=50)
@hypothesis.given(epsilon=EPSILONS, delta=DELTAS)
def test_mu_squared_from_epsilon_never_exceeds_delta(epsilon, delta):
  mu_squared = mu_squared_from_epsilon(epsilon, delta)
  assert exact_delta(epsilon, mu_squared) <= delta


@hypothesis.settings(max_examples=50)
@hypothesis.given(epsilon=EPSILONS, delta=DELTAS)
def test_epsilon_of_mu_squared_is_sound_and_no_more_than_was_bought(
  epsilon, delta
):
  mu_squared = mu_squared_from_epsilon(epsilon, delta)
  found = epsilon_of(mu_squared, delta)
  assert exact_delta(found, mu_squared) <= delta
  assert found <= epsilon


@hypothesis.settings(max_examples=50)
@hypothesis.given(epsilon=EPSILONS, delta=DELTAS)
def test_noise_multiplier_is_rounded_up_by_next_to_nothing(epsilon, delta):
  sigma = noise_multiplier(epsilon, delta)
  mu_squared = mu_squared_from_epsilon(epsilon, delta)
  assert 1 <= Fraction(mu_squared) * Fraction(sigma) ** 2 <= 1 + 2**-48


@pytest.mark.parametrize(
  ("sigma", "delta"),
  [(0.05, 1e-6), (0.6, 1e-9), (3.3, 1e-3), (100.0, 1e-6), (36190.489, 1e-9)],
)
def test_epsilon_of_is_the_least_float_for_which_the_theorem_holds(
  sigma, delta
):
  epsilon = epsilon_of(sigma**-2, delta)
  assert exact_delta(epsilon, sigma**-2) <= delta
  assert exact_delta(math.nextafter(epsilon, 0), sigma**-2) > delta


@pytest.mark.slow
@hypothesis.settings(max_examples=60)
@hypothesis.given(
  sigma=st.floats(-3, 6).map(lambda exponent: 10**exponent),
  delta=st.floats(-300, -0.3).map(lambda exponent: 10**exponent),
)
def test_epsilon_of_agrees_with_dp_accounting(sigma, delta):
  with np.errstate(divide="ignore"):
    expected = dp_accounting.get_epsilon_gaussian(sigma, delta)
  epsilon = epsilon_of(sigma**-2, delta)
  assert epsilon == pytest.approx(expected, rel=1e-9, abs=1e-11)
  if 1e-3 < epsilon < 1e6 and sigma < 1e5:
    mu_squared = mu_squared_from_epsilon(epsilon, delta)
    assert mu_squared == pytest.approx(sigma**-2, rel=1e-7)


def test_epsilon_of_nothing_is_zero():
  assert epsilon_of(0.0, 1e-6) == 0


SIGMAS = [(2.2305,), (15.4098, 8.0576, 4.2247), (0.8, 5.0, 5.0, 40.0)]


@pytest.mark.parametrize("sigmas", SIGMAS)
def test_sums_of_mu_squared_agree_with_privacy_loss_distributions(sigmas):
  delta = 1e-6
  composed = None
  for sigma in sigmas:
    one = privacy_loss_distribution.from_gaussian_mechanism(
      sigma, value_discretization_interval=1e-3
    )
    composed = one if composed is None else composed.compose(one)
  assert composed is not None
  expected = composed.get_epsilon_for_delta(delta)
  epsilon = epsilon_of(sum_mu_squared(sigma**-2 for sigma in sigmas), delta)
  assert epsilon - 1e-6 <= expected <= epsilon + 2e-3 * len(sigmas)


@pytest.mark.parametrize("sigmas", SIGMAS)
def test_sums_of_mu_squared_are_below_the_bound_of_renyi_dp(sigmas):
  accountant = RdpAccountant()
  for sigma in sigmas:
    accountant.compose(GaussianDpEvent(sigma))
  epsilon = epsilon_of(sum_mu_squared(sigma**-2 for sigma in sigmas), 1e-6)
  assert epsilon <= accountant.get_epsilon(1e-6) <= 1.3 * epsilon


@hypothesis.given(st.lists(st.floats(0, 1e6), max_size=30), st.randoms())
def test_sum_mu_squared_is_rounded_up_and_the_same_in_any_order(costs, random):
  exact = sum(map(Fraction, costs), Fraction(0))
  total = sum_mu_squared(costs)
  assert exact <= Fraction(total) <= exact * Fraction(1 + 2**-50)
  random.shuffle(costs)
  assert sum_mu_squared(iter(costs)) == total


@pytest.mark.parametrize(
  "epsilon", [0.0, -1.0, math.inf, -math.inf, math.nan, 1e7]
)
def test_mu_squared_from_epsilon_out_of_range_is_refused(epsilon):
  with pytest.raises(InputError, match="must be positive, and at most"):
    mu_squared_from_epsilon(epsilon, 1e-6)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0, -1e-6, math.nan, math.inf])
def test_mu_squared_from_delta_out_of_range_is_refused(delta):
  with pytest.raises(InputError, match=f"delta={delta} must lie strictly"):
    mu_squared_from_epsilon(1.0, delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-40, 1e-45), (1e-9, 1e-12)])
def test_mu_squared_that_needs_absurd_noise_is_refused(epsilon, delta):
  with pytest.raises(InputError, match="needs so much noise that nothing"):
    mu_squared_from_epsilon(epsilon, delta)


@pytest.mark.parametrize("mu_squared", [-1.0, math.inf, math.nan])
def test_epsilon_of_what_is_no_cost_is_refused(mu_squared):
  with pytest.raises(InputError, match="must be finite, 0 or more"):
    epsilon_of(mu_squared, 1e-6)


def test_epsilon_of_a_delta_of_zero_is_refused():
  with pytest.raises(InputError, match=r"delta=0\.0 must lie strictly"):
    epsilon_of(1.0, 0.0)


def test_check_budget_above_20_needs_weak_privacy():
  check_budget(20.0, 1e-6)
  check_budget(20.5, 1e-6, allow_weak_privacy=True)
  with pytest.raises(InputError, match="or allow it with --weak-privacy"):
    check_budget(20.5, 1e-6)


def test_check_delta_of_one_in_n_needs_weak_privacy():
  check_delta(9e-4, 1000)
  check_delta(1e-3, 1000, allow_weak_privacy=True)
  with pytest.raises(InputError, match="or allow it with --weak-privacy"):
    check_delta(1e-3, 1000)


def test_check_delta_of_one_is_refused_even_as_weak_privacy():
  with pytest.raises(InputError, match="must lie strictly"):
    check_delta(1.0, 1000, allow_weak_privacy=True)


@hypothesis.given(st.floats(1e-6, 1e12))
def test_noise_that_is_printed_is_never_larger_than_it_is(sigma):
  printed = float(format_rounded_down(sigma))

  assert sigma * (1 - 2e-4) <= printed <= sigma
