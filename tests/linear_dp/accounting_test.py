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
  mu_squared_from_epsilon,
  noise_multiplier,
  sum_mu_squared,
)


def exact_delta(epsilon, squared):
  """Balle & Wang's theorem 8 in 80 digits, from its formula alone."""
  with mpmath.workdps(80):
    epsilon, sigma = mpmath.mpf(epsilon), 1 / mpmath.sqrt(mpmath.mpf(squared))
    near = mpmath.ncdf(1 / (2 * sigma) - epsilon * sigma)
    far = mpmath.ncdf(-1 / (2 * sigma) - epsilon * sigma)
    return near - mpmath.exp(epsilon) * far


@hypothesis.settings(max_examples=50)
@hypothesis.given(
  epsilon=st.floats(-2.3, 2).map(lambda e: 10**e),
  delta=st.floats(-12, -0.5).map(lambda e: 10**e),
)
def test_never_to_the_wrong_side(epsilon, delta):
  sigma, bought = (
    noise_multiplier(epsilon, delta),
    mu_squared_from_epsilon(epsilon, delta),
  )
  assert 1 <= Fraction(bought) * Fraction(sigma) ** 2 <= 1 + 2**-48
  assert exact_delta(epsilon, bought) <= delta
  found = epsilon_of(bought, delta)
  assert exact_delta(found, bought) <= delta
  assert found <= epsilon


@pytest.mark.parametrize(
  ("sigma", "delta"),
  [(0.05, 1e-6), (0.6, 1e-9), (3.3, 1e-3), (100.0, 1e-6), (36190.489, 1e-9)],
)
def test_epsilon_is_the_least_float_of_which_the_theorem_is_true(sigma, delta):
  epsilon = epsilon_of(sigma**-2, delta)
  assert exact_delta(epsilon, sigma**-2) <= delta
  assert exact_delta(math.nextafter(epsilon, 0), sigma**-2) > delta


@hypothesis.settings(max_examples=60)
@hypothesis.given(
  st.floats(-3, 6).map(lambda e: 10**e),
  st.floats(-300, -0.3).map(lambda e: 10**e),
)
def test_epsilon_is_that_of_dp_accounting(sigma, delta):
  with np.errstate(divide="ignore"):
    other = dp_accounting.get_epsilon_gaussian(sigma, delta)
  found = epsilon_of(sigma**-2, delta)
  assert found == pytest.approx(other, rel=1e-9, abs=1e-11)
  if 1e-3 < found < 1e6 and sigma < 1e5:
    assert mu_squared_from_epsilon(found, delta) == pytest.approx(
      sigma**-2, rel=1e-7
    )


@pytest.mark.parametrize(
  "sigmas", [(2.2305,), (15.4098, 8.0576, 4.2247), (0.8, 5.0, 5.0, 40.0)]
)
def test_sums_of_mu_squared_agree_with_other_accountants(sigmas):
  delta = 1e-6
  found = epsilon_of(sum_mu_squared(sigma**-2 for sigma in sigmas), delta)
  rdp = RdpAccountant()
  plds = [
    privacy_loss_distribution.from_gaussian_mechanism(
      sigma, value_discretization_interval=1e-3
    )
    for sigma in sigmas
  ]
  total = plds[0]
  for pld in plds[1:]:
    total = total.compose(pld)
  for sigma in sigmas:
    rdp.compose(GaussianDpEvent(sigma))
  by_pld = total.get_epsilon_for_delta(delta)
  assert found - 1e-6 <= by_pld <= found + 2e-3 * len(sigmas)
  assert found <= rdp.get_epsilon(delta) <= 1.3 * found


@hypothesis.given(st.lists(st.floats(0, 1e6), max_size=30), st.randoms())
def test_costs_add_up_outward_in_any_order(costs, random):
  exact = sum(map(Fraction, costs), Fraction(0))
  found = sum_mu_squared(costs)
  assert exact <= Fraction(found) <= exact * Fraction(1 + 2**-50)
  random.shuffle(costs)
  assert sum_mu_squared(iter(costs)) == found


@pytest.mark.parametrize(
  ("refused", "message"),
  [
    *(
      (
        lambda e=e: mu_squared_from_epsilon(e, 1e-6),
        "must be positive, and at most",
      )
      for e in (0.0, -1.0, math.inf, -math.inf, math.nan, 1e7)
    ),
    *(
      (
        lambda d=d: mu_squared_from_epsilon(1.0, d),
        f"delta={d} must lie strictly",
      )
      for d in (0.0, 1.0, 2.0, -1e-6, math.nan, math.inf)
    ),
    *(
      (lambda m=m: epsilon_of(m, 1e-6), "must be finite, 0 or more")
      for m in (-1.0, math.inf, math.nan)
    ),
    (lambda: epsilon_of(1.0, 0.0), "delta=0.0 must lie strictly"),
    (
      lambda: mu_squared_from_epsilon(1e-40, 1e-45),
      "needs so much noise that nothing",
    ),
    (
      lambda: mu_squared_from_epsilon(1e-9, 1e-12),
      "needs so much noise that nothing",
    ),
    (lambda: check_budget(20.5, 1e-6), "insist with --weak-privacy"),
    (lambda: check_delta(1e-3, 1000), "insist .--weak-privacy."),
    (
      lambda: check_delta(1.0, 1000, allow_weak_privacy=True),
      "must lie strictly",
    ),
  ],
)
def test_what_guarantees_nothing_is_refused(refused, message):
  with pytest.raises(InputError, match=message):
    refused()


def test_what_is_insisted_on_is_done():
  check_budget(20.5, 1e-6, allow_weak_privacy=True)
  check_budget(20.0, 1e-6)
  check_delta(1e-3, 1000, allow_weak_privacy=True)
  check_delta(9e-4, 1000)
  assert epsilon_of(0.0, 1e-6) == 0
