"""The Gaussian mechanism: its budget, and the law of what it releases."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import (
  P_VALUE,
  SENSITIVITY,
  STATISTICS,
  D,
  K,
  data_of,
  every,
  hostile_rows,
)


def test_rows_weighed_for_class_sums_are_for_nothing_else():
  """Σw² ≤ W² bounds orthogonal blocks alone."""
  x, label = hostile_rows(np.random.default_rng(0))
  rows = rows_of(data_of(x, label), weight_norm_order=2)
  sums = PrivateSums(None, 0.0)
  for name, of in STATISTICS.items():
    if of.left is not statistics.class_sums:
      with pytest.raises(RunError, match="class sums alone"):
        sums.release(name, rows, of.left, mu_squared=1.0, public=of.public)


class NoBits(NoiseSource):
  def words(self, count):
    raise AssertionError("noise was drawn")


@statistics.row_statistic(id="never")
def never(row, label, w):
  raise AssertionError("the sum was computed")


def null_rows(dim):
  return rows_of(data_of(np.zeros((1, dim), np.float32), [0]))


@pytest.mark.parametrize(
  ("budget", "mu_squared"),
  [(1.0, 1.001), (1.0, 1e9), (0.0, 1e-300), (-1.0, 1e-300), (Fraction(0), 1.0)],
)
def test_release_beyond_the_budget_is_refused_before_anything_is_computed(
  budget, mu_squared
):
  sums = PrivateSums(NoBits(), budget)
  with pytest.raises(RunError, match="would exceed the charged budget"):
    sums.release("it", null_rows(1), never, mu_squared=mu_squared)


@pytest.mark.parametrize("mu_squared", [math.inf, 0.0, -1.0, math.nan])
def test_release_at_an_invalid_price_is_refused_before_anything_is_computed(
  mu_squared,
):
  sums = PrivateSums(NoBits(), 1.0)
  with pytest.raises(RunError, match="must be positive and finite"):
    sums.release("it", null_rows(1), never, mu_squared=mu_squared)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 7, 10, 19])
@pytest.mark.parametrize("paid", [1.0, 0.0562, 3e-9])
def test_shares_that_are_rounded_up_are_not_refused(count, paid):
  """0.1 is more than a tenth: the noise is larger by so little."""
  sums = PrivateSums(NoiseSource(1), paid)
  for _ in range(count):
    share = math.nextafter(paid / count, math.inf)
    sums.release("it", null_rows(1), statistics.row_weights, mu_squared=share)
  spent = sum(1 / Fraction(r.noise_multiplier) ** 2 for r in sums.releases)
  assert Fraction(paid) * Fraction(1 - 2**-30) < spent <= Fraction(paid)
  with pytest.raises(RunError, match="would exceed the charged budget"):
    sums.release(
      "it", null_rows(1), statistics.row_weights, mu_squared=1e-9 * paid
    )


@pytest.mark.slow
@every
def test_what_leaves_is_the_exact_sum_and_noise_of_the_stated_deviation(name):
  statistic = STATISTICS[name]
  x, label = hostile_rows(np.random.default_rng(0))
  data = data_of(x, label)
  exact = statistic.exact(data)
  noise = []
  for seed in range(40):
    sums = PrivateSums(NoiseSource(seed), 0.25)
    found, sigma = statistic.release(sums, data, 0.25)
    steps = found * SENSITIVITY
    assert (steps % 1 == 0).all()
    noise.append((steps - exact).ravel() / (sigma * SENSITIVITY))
    (release,) = sums.releases
    assert (release.name, release.shape) == ("it", exact.shape)
    assert release.noise_multiplier == pytest.approx(sigma, rel=1e-15)
  assert release.noise_multiplier == pytest.approx(2.0, rel=1e-11)
  assert release.noise_multiplier > 2.0
  p = scipy.stats.kstest(np.concatenate(noise), scipy.stats.norm.cdf).pvalue
  assert p > P_VALUE


def test_topping_up_has_the_law_of_one_draw():
  """Bought in three parts, the last of them another time."""
  buys = (0.3, 0.02, 1.7)
  given = null_rows(4000)
  sums = PrivateSums(NoiseSource(9), sum(buys[:2]) * 1.01)
  first, _ = sums.release(
    "mean", given, statistics.row_weights, mu_squared=buys[0]
  )
  second, sigma = sums.release(
    "mean", given, statistics.row_weights, mu_squared=buys[1]
  )
  assert sigma == pytest.approx(sum(buys[:2]) ** -0.5, rel=1e-11)
  later = PrivateSums(NoiseSource(10), buys[2] * 1.01, sums.estimates)
  third, sigma = later.release(
    "mean", given, statistics.row_weights, mu_squared=buys[2]
  )
  assert sigma == pytest.approx(sum(buys) ** -0.5, rel=1e-11)
  known = [0.0, buys[0], buys[0] + buys[1], sum(buys)]
  for found, had in zip((first, second, third), known[1:], strict=True):
    scaled = found.ravel() * had**0.5
    assert scipy.stats.kstest(scaled, scipy.stats.norm.cdf).pvalue > P_VALUE
  # A sufficient statistic: what came before says no more.
  for before, after in ((first, second), (second, third), (first, third)):
    left_over = (before - after).ravel()
    assert abs(np.corrcoef(left_over, after.ravel())[0, 1]) < 5 / 4000**0.5
  assert len(later.releases) == 1
  ((mean, precision),) = later.estimates.values()
  np.testing.assert_array_equal(mean, third)
  assert precision == pytest.approx(sum(buys), rel=1e-11)


@pytest.mark.slow
def test_only_the_same_statistic_is_topped_up():
  x, label = hostile_rows(np.random.default_rng(0))
  data = data_of(x, label)
  sums = PrivateSums(NoiseSource(1), 1.0)
  plain = rows_of(data)
  zero = np.zeros(D)
  eye = np.eye(D)
  kernel, step = statistics.integer_kernel(np.eye(D, K))
  asked = [
    (plain, statistics.row_weights),
    (plain.mapped(zero, None), statistics.row_weights),
    (plain.mapped(zero, eye), statistics.row_weights),
    (plain.mapped(zero + 0.1, eye), statistics.row_weights),
    (rows_of(data, max_inverse_norm=2.0), statistics.row_weights),
    (rows_of(data, per_row=True), statistics.row_weights),
    (plain, statistics.second_moment),
    (plain, statistics.residual, kernel, step, 0.1),
    (plain, statistics.residual, kernel, step, 0.2),
    (plain, statistics.residual, kernel, step / 2, 0.1),
    (plain, statistics.residual, kernel, step, 0.1, np.zeros(K)),
  ]
  for i, (given, left, *public) in enumerate(asked):
    _, sigma = sums.release(
      "one name", given, left, mu_squared=0.01, public=tuple(public)
    )
    assert sigma == pytest.approx(10.0, rel=1e-9)
    assert len(sums.estimates) == i + 1
  _, sigma = sums.release(
    "once", plain, statistics.row_weights, mu_squared=0.01, cache=False
  )
  _, again = sums.release(
    "once", plain, statistics.row_weights, mu_squared=0.01, cache=False
  )
  assert sigma == again == pytest.approx(10.0, rel=1e-9)
  assert len(sums.estimates) == len(asked)


def test_no_representation_has_a_private_number():
  x = np.full((3, 2), 0.123456, np.float32)
  data = data_of(x, [1, 1, 1])
  given = rows_of(data, keep=True)
  sums = PrivateSums(None, 0.0)
  sums.release("mean", given, statistics.row_weights, mu_squared=1.0)
  shown = repr((data, given, next(given.chunks()), sums))
  assert "0.12" not in shown
  assert "array" not in shown.lower().replace("<private>", "")
  assert "11584" not in shown
