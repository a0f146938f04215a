import importlib.util
import math
import re

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
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.gaussian import (
  check_noise_multiplier,
  compose,
  epsilon_of,
  noise_multiplier,
)

DESIGN = {
  0.25: 15.4098,
  0.5: 8.0576,
  1.0: 4.2247,
  2.0: 2.2305,
  4.0: 1.1935,
  8.0: 0.6529,
  10.0: 0.5411,
}


def exact_delta(epsilon, sigma):
  """Balle & Wang's theorem 8 in 80 digits, from its formula alone."""
  with mpmath.workdps(80):
    epsilon, sigma = mpmath.mpf(epsilon), mpmath.mpf(sigma)
    near = mpmath.ncdf(1 / (2 * sigma) - epsilon * sigma)
    far = mpmath.ncdf(-1 / (2 * sigma) - epsilon * sigma)
    return near - mpmath.exp(epsilon) * far


@pytest.mark.parametrize(("epsilon", "sigma"), DESIGN.items())
def test_table_of_the_design(epsilon, sigma):
  found = noise_multiplier(epsilon, 1e-6)
  assert round(found, 4) == sigma
  assert exact_delta(epsilon, found) <= 1e-6
  # And no larger than it must be.
  assert exact_delta(epsilon, found * (1 - 1e-8)) > 1e-6


@hypothesis.settings(max_examples=50, deadline=None)
@hypothesis.given(
  epsilon=st.floats(-2.3, 2).map(lambda e: 10**e),
  delta=st.floats(-12, -0.5).map(lambda e: 10**e),
)
@hypothesis.example(2.6859838652273216e-06, 2.274370950411266e-13)
def test_never_rounded_down(epsilon, delta):
  sigma = noise_multiplier(epsilon, delta)
  assert exact_delta(epsilon, sigma) <= delta
  found = epsilon_of(sigma, delta)
  assert exact_delta(found, sigma) <= delta
  assert found <= epsilon


# At 36190 the solver of dp_accounting meets a log(0), rightly −inf, and alone
# would round down.
@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(
  ("sigma", "delta"),
  [(0.05, 1e-6), (0.6, 1e-9), (3.3, 1e-3), (100.0, 1e-6), (36190.489, 1e-9)],
)
def test_epsilon_of_any_sigma_is_rounded_up(sigma, delta):
  epsilon = epsilon_of(sigma, delta)
  assert exact_delta(epsilon, sigma) <= delta
  # And it is the least float of which that is so.
  assert exact_delta(math.nextafter(epsilon, 0), sigma) > delta


@hypothesis.settings(max_examples=60)
@hypothesis.given(
  st.floats(-3, 6).map(lambda e: 10**e),
  st.floats(-300, -0.3).map(lambda e: 10**e),
)
def test_epsilon_is_that_of_dp_accounting(sigma, delta):
  with np.errstate(divide="ignore"):
    other = dp_accounting.get_epsilon_gaussian(sigma, delta)
  found = epsilon_of(sigma, delta)
  assert found == pytest.approx(other, rel=1e-9, abs=1e-11)
  assert exact_delta(found, sigma) <= delta


@pytest.mark.parametrize(
  "sigmas", [(2.2305,), (15.4098, 8.0576, 4.2247), (0.8, 5.0, 5.0, 40.0)]
)
def test_composition_agrees_with_other_accountants(sigmas):
  delta = 1e-6
  found = epsilon_of(compose(sigmas), delta)
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


@hypothesis.settings(max_examples=30)
@hypothesis.given(
  st.lists(st.floats(1e-2, 1e4), min_size=1, max_size=30), st.randoms()
)
def test_composition_is_rounded_down_and_has_no_order(sigmas, random):
  found = compose(sigmas)
  with mpmath.workdps(50):
    exact = mpmath.fsum(1 / mpmath.mpf(s) ** 2 for s in sigmas) ** -0.5
    assert exact * (1 - 1e-14) <= found <= exact
  shuffled = sigmas[:]
  random.shuffle(shuffled)
  assert compose(iter(shuffled)) == found


@pytest.mark.parametrize(
  ("refused", "message"),
  [
    *(
      (lambda e=e: noise_multiplier(e, 1e-6), f"epsilon={e} must be positive")
      for e in (0.0, -1.0, math.inf, -math.inf, math.nan)
    ),
    *(
      (lambda d=d: noise_multiplier(1.0, d), f"delta={d} must lie strictly")
      for d in (0.0, 1.0, 2.0, -1e-6, math.nan, math.inf)
    ),
    *(
      (lambda s=s: epsilon_of(s, 1e-6), f"noise_multiplier={s} must be")
      for s in (0.0, -1.0)
    ),
    *(
      (lambda s=s: compose([1.0, s]), "must all be positive")
      for s in (0.0, -2.0, math.nan)
    ),
    (lambda: compose([]), "no release"),
  ],
)
def test_what_guarantees_nothing_is_refused(refused, message):
  with pytest.raises(InputError, match=message):
    refused()


@pytest.mark.parametrize("epsilon", [1e-40, 1e-12])
def test_a_budget_that_no_search_would_find_is_refused(epsilon):
  with pytest.raises(InputError, match="; nothing could be learned"):
    noise_multiplier(epsilon, 1e-45)


def test_more_noise_than_is_of_use_is_refused():
  check_noise_multiplier(2.0**20, 1e-6, "nothing could be learned")
  message = (
    "epsilon=1e-07 needs a noise multiplier of 1.1e+06; nothing could be"
    " learned through that: give a larger epsilon."
  )
  with pytest.raises(InputError, match=re.escape(message)):
    check_noise_multiplier(1.1e6, 1e-7, "nothing could be learned")


def test_a_short_float_is_solved_in_full_and_so_is_what_equals_it():
  """In a module that checks no types, and remembers what it solved."""
  spec = importlib.util.spec_from_file_location("fresh", accounting.__file__)
  assert spec is not None
  assert spec.loader is not None
  fresh = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(fresh)
  for number in (np.float32(4), np.array(4.0), 4.0):
    assert fresh.noise_multiplier(number, 1e-5) == noise_multiplier(4.0, 1e-5)
    assert fresh.epsilon_of(number, 1e-5) == epsilon_of(4.0, 1e-5)
