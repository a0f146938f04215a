"""auto: where steps begin, from a public start or from an earlier head."""

from fractions import Fraction

import numpy as np
import pytest

from oneshot_dp.linear_dp.heads.auto import (
  MEAN_SHARE,
  ROWS_TO_LEAVE_START,
  START_LENGTH,
)
from oneshot_dp.linear_dp.heads.nesting import moved_before
from oneshot_dp.linear_dp.heads.whitening import (
  RIDGE,
  Whitening,
  inverse_square_root,
  shrink_mean,
)
from oneshot_dp.linear_dp.noise import NoiseSource
from tests.linear_dp.heads.observed_heads import (
  START,
  D,
  K,
  ObservedSums,
  make_head,
  mu_squared_of,
  observe_head,
  rows_of_clusters,
)

N = 1000
SPENT = 0.1
# With the smaller of two budgets rows are not whitened, with the larger they
# are: steps begin at the same place, seen through another map.


def mean_length(kernel):
  return np.linalg.norm(kernel, axis=0).mean()


def start_length(sigma):
  """How long a public start is made: longer where there are few rows."""
  too_few = ROWS_TO_LEAVE_START * K * sigma / N
  return START_LENGTH * max(1, too_few) ** 0.5


def observed_whitening(sums, *, centered, mean_mu_squared, new_mu_squared):
  """Computes the map of the rows again, from what was released for it."""
  if not sums.all_of("second moment"):
    return Whitening()
  moment = sums.only("second moment").estimate
  covariance = (moment + moment.T) / 2
  if centered:
    mean_noise = (MEAN_SHARE * mean_mu_squared) ** -0.5
    total = sums.only("mean").estimate[0]
    mean = shrink_mean(total / N, mean_noise / N)
    covariance = covariance - N * np.outer(mean, mean)
  # Only the new part of the budget bought the second moment.
  ridge = RIDGE * (K * D / new_mu_squared) ** 0.5
  matrix, inverse = inverse_square_root(covariance, ridge)
  assert matrix is not None
  assert inverse is not None
  return Whitening(matrix=matrix, inverse=inverse)


# A public start.


@pytest.fixture(scope="module", params=[0.1, 9.0])
def started(request):
  """μ², and the mechanism and the head after a head from a public start."""
  mu_squared = request.param
  sums, head = observe_head(rows_of_clusters(N), mu_squared, start=START)
  return mu_squared, sums, head


@pytest.mark.slow
def test_public_start_is_made_longer_where_rows_are_few(started):
  mu_squared, sums, _ = started

  first = sums.all_of("gradient")[0].kernel

  expected = start_length(mu_squared**-0.5)
  assert mean_length(first) == pytest.approx(expected, rel=1e-3)


def test_public_start_is_where_steps_begin(started):
  mu_squared, sums, _ = started
  whitening = observed_whitening(
    sums,
    centered=False,
    mean_mu_squared=mu_squared,
    new_mu_squared=mu_squared,
  )

  first = sums.all_of("gradient")[0].kernel
  if whitening.matrix is not None:
    first = whitening.matrix @ first

  expected = START.kernel()
  scale = np.linalg.norm(expected) / np.linalg.norm(first)
  np.testing.assert_allclose(first * scale, expected, atol=5e-3)


def test_public_start_needs_no_mean_and_no_bias(started):
  _, sums, head = started

  assert not sums.all_of("mean")
  assert not head.unit_norm
  assert not head.bias.any()


# A head with a smaller ε.


def continue_head(new_mu_squared, start=None):
  """The mechanism after a head and its continuation, and the first's state.

  What the first head released is not among the observations.
  """
  rows = rows_of_clusters(N)
  sums = ObservedSums(NoiseSource(3), SPENT + new_mu_squared)
  state = make_head(sums, rows, SPENT, start=start).state
  assert state is not None
  sums.observations.clear()
  make_head(sums, rows, new_mu_squared, spent=SPENT, state=state)
  return sums, state


@pytest.mark.slow
@pytest.mark.parametrize("new_mu_squared", [0.2, 8.9])
@pytest.mark.parametrize("start", [None, START])
def test_larger_epsilon_begins_at_its_start_and_part_of_the_head_before(
  new_mu_squared, start
):
  sums, state = continue_head(new_mu_squared, start)

  first = sums.all_of("gradient")[0].kernel

  whitening = observed_whitening(
    sums,
    centered=state.centered,
    mean_mu_squared=SPENT + new_mu_squared,
    new_mu_squared=new_mu_squared,
  )
  # At σ ≥ 1 the head before counts for its share of μ² and of the rate.
  sigma = (SPENT + new_mu_squared) ** -0.5
  sigma_before = SPENT**-0.5
  earlier = (sigma / sigma_before) ** 2 * sigma_before / max(sigma, 1.0)
  expected = earlier * moved_before(state, whitening)
  if start is not None:
    begin = whitening.to_whitened(state.begin)
    expected = expected + begin * (start_length(sigma) / mean_length(begin))
  tolerance = 0.01 * np.abs(expected).max()
  np.testing.assert_allclose(first, expected, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("new_mu_squared", [0.2, 8.9])
def test_larger_epsilon_costs_the_difference_alone(new_mu_squared):
  sums, _ = continue_head(new_mu_squared)

  spent = mu_squared_of(sums.releases)

  assert spent <= Fraction(SPENT + new_mu_squared)
  assert float(spent) == pytest.approx(SPENT + new_mu_squared, rel=1e-9)
