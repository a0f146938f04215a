"""Properties of the one sum and the one door, for every statistic."""

import inspect
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp import rows, statistics
from oneshot_dp.linear_dp.accounting import mu_squared
from oneshot_dp.linear_dp.data import WEIGHT, R
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import (
  STATISTICS,
  D,
  K,
  data_of,
  hostile_rows,
)

SENSITIVITY = WEIGHT * R
P_VALUE = 1e-4

every = pytest.mark.parametrize("name", STATISTICS)


def length_squared(moved):
  """Exactly, in Python's integers."""
  return sum(v * v for v in moved.ravel().tolist())


# Sensitivity.


def test_the_catalogue_has_every_statistic():
  has = {s.left for s in STATISTICS.values()}
  lefts = {
    value
    for value in vars(statistics).values()
    if inspect.isfunction(value)
    and value.__module__ == statistics.__name__
    and [*inspect.signature(value).parameters][:3] == ["row", "label", "w"]
  }
  assert lefts == has


@every
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_row_moves_a_sum_by_no_more_than_the_sensitivity(name, dtype):
  """Each row replaced by nothing, brute force."""
  x, label = hostile_rows(np.random.default_rng(0), dtype=dtype)
  statistic = STATISTICS[name]
  whole = statistic.exact(data_of(x, label))
  moves = []
  for i in range(len(x)):
    without = x.copy()
    without[i] = 0
    moved = whole - statistic.exact(data_of(without, label))
    moves.append(length_squared(moved))
  assert max(moves) <= SENSITIVITY**2
  assert moves[4] == 0  # the null row
  assert max(moves) > 0


@every
def test_a_unit_moves_a_sum_by_no_more_than_the_sensitivity(name):
  rng = np.random.default_rng(1)
  x, label = hostile_rows(rng, n=60)
  unit = rng.integers(0, 9, 60) - 4
  x[unit == 3] = x[5]  # a unit all of whose rows are one row
  label[unit == 2] = 1
  statistic = STATISTICS[name]
  whole = statistic.exact(data_of(x, label, unit))
  moves = []
  for u in range(-4, 5):
    without = np.where((unit == u)[:, None], 0, x).astype(np.float32)
    moved = whole - statistic.exact(data_of(without, label, unit))
    left_out = statistic.exact(
      data_of(x[unit != u], label[unit != u], unit[unit != u], n=60)
    )
    np.testing.assert_array_equal(whole - moved, left_out)
    moves.append(length_squared(moved))
  assert max(moves) <= SENSITIVITY**2
  # Nothing is given away: a unit of one row, time and again, has its length.
  if name in ("class sums", "mean", "units"):
    assert moves[-2] >= (0.99 * SENSITIVITY) ** 2


@every
def test_rows_of_zeros_add_nothing(name):
  rng = np.random.default_rng(2)
  x, label = hostile_rows(rng)
  statistic = STATISTICS[name]
  more = np.concatenate([x, np.zeros((70, D), np.float32)])
  labels = np.concatenate([label, rng.integers(0, K, 70)])
  found = statistic.exact(data_of(more, labels, n=len(x)))
  np.testing.assert_array_equal(found, statistic.exact(data_of(x, label)))
  nothing = statistic.exact(data_of(more[-70:], labels[-70:]))
  assert not nothing.any()
  # Nor do they take weight from their unit.
  unit = rng.integers(0, 5, len(x))
  units = np.concatenate([unit, rng.integers(0, 5, 70)])
  np.testing.assert_array_equal(
    statistic.exact(data_of(x, label, unit)),
    statistic.exact(data_of(more, labels, units, n=len(x))),
  )


@pytest.mark.parametrize(
  "lies",
  [
    lambda row, label, w: 2.0 * w[:, None],
    lambda row, label, w: (w + 1)[:, None],
    lambda row, label, w: jnp.stack([w, w], 1) * 0.75,
    lambda row, label, w: jnp.full((len(w), 2), jnp.nan),
    lambda row, label, w: jnp.full((len(w), 2), -jnp.inf),
    lambda row, label, w: jnp.full((len(w), 1), 1e200),
    lambda row, label, w: jnp.ones((len(w), 1)) * WEIGHT * (w == 0)[:, None],
  ],
)
def test_a_left_that_is_too_long_adds_nothing(lies):
  """Nor is its own bound anything that is believed."""
  x, label = hostile_rows(np.random.default_rng(0))
  found, _ = PrivateSums(None, 0.0).release(
    "lies", rows_of(data_of(x, label)), lies, 1.0
  )
  assert not found.any()


def test_a_left_is_truncated_to_integers():
  def half(row, label, w):
    return w[:, None] * 0.4999999

  x, label = np.ones((5, D), np.float32), np.zeros(5, int)
  data = data_of(x, label)
  found, _ = PrivateSums(None, 0.0).release("h", rows_of(data), half, 1.0)
  row = np.asarray(next(rows_of(data).chunks()).row[0]).astype(int)
  expected = 5 * math.floor(WEIGHT * 0.4999999) * row
  np.testing.assert_array_equal(found[0] * SENSITIVITY, expected)


@pytest.mark.parametrize("left", [statistics.ones, statistics.class_sums])
def test_a_row_that_is_off_the_ball_adds_nothing(left):
  """Whoever made it: the door itself looks."""
  power = 2 if left is statistics.class_sums else 1
  data = data_of(np.ones((3, D), np.float32), np.zeros(3, int))
  long = rows_of(data, power=power)
  made = [
    chunk._replace(row=chunk.row.at[1, 0].set(R)) for chunk in long.chunks()
  ]
  long.make = lambda: iter(made)
  found, _ = PrivateSums(None, 0.0).release("long", long, left, 1.0)
  two = data_of(np.ones((2, D), np.float32), np.zeros(2, int))
  expected, _ = PrivateSums(None, 0.0).release(
    "two", rows_of(two, power=power), left, 1.0
  )
  np.testing.assert_array_equal(found, expected)


def test_rows_weighed_for_class_sums_are_for_nothing_else():
  """Σw² ≤ W² bounds orthogonal blocks alone."""
  x, label = hostile_rows(np.random.default_rng(0))
  of_class_sums = rows_of(data_of(x, label), power=2)
  for name, statistic in STATISTICS.items():
    if statistic.left is not statistics.class_sums:
      with pytest.raises(RunError, match="class sums alone"):
        PrivateSums(None, 0.0).release(
          name, of_class_sums, statistic.left, 1.0, *statistic.public
        )


# The same bits.


@every
@pytest.mark.parametrize("units", [False, True])
def test_the_order_of_rows_and_the_size_of_blocks_do_not_matter(name, units):
  rng = np.random.default_rng(3)
  x, label = hostile_rows(rng, n=130)
  unit = rng.integers(0, 20, 130) if units else None
  statistic = STATISTICS[name]
  expected = statistic.exact(data_of(x, label, unit))
  for block in (1, 7, 130):
    order = rng.permutation(130)
    given = data_of(
      x[order],
      label[order],
      None if unit is None else unit[order],
      block=block,
    )
    np.testing.assert_array_equal(statistic.exact(given), expected)


@every
def test_chunks_and_devices_do_not_matter(name, monkeypatch):
  rng = np.random.default_rng(4)
  x, label = hostile_rows(rng, n=300)
  statistic = STATISTICS[name]
  expected = statistic.exact(data_of(x, label))
  devices = jax.local_devices()
  assert len(devices) == 8
  for count, chunk in ((1, 512), (2, 64), (4, 128), (8, 8)):
    monkeypatch.setattr(jax, "local_devices", lambda n=count, **_: devices[:n])
    monkeypatch.setattr(rows, "_chunk_rows", lambda *_, c=chunk: c)
    found = statistic.exact(data_of(x, label))
    np.testing.assert_array_equal(found, expected)


def test_int32_sums_are_carried_before_they_overflow(monkeypatch):
  """131,071 rows of one direction fit on a device; more are past 2³¹."""
  n, devices = 140_000, jax.local_devices()
  monkeypatch.setattr(jax, "local_devices", lambda **_: devices[:1])
  data = data_of(np.ones((n, 1), np.float32), np.zeros(n), num_classes=1)
  row = int(np.asarray(next(rows_of(data).chunks()).row[0, 0]))
  assert n * row > 2**31
  found = STATISTICS["class sums"].exact(data)
  assert found.tolist() == [[n * row * WEIGHT]]


def test_the_weight_follows_the_number_of_rows():
  """So that no sum leaves int64, up to ten thousand million rows."""
  for n, weight in ((1, 2**20), (2**27, 2**20), (2**27 + 1, 2**19)):
    data = data_of(np.ones((1, 2), np.float32), [0], n=n)
    assert data.weight == weight
    assert n * data.weight * R <= 2**61
  data = data_of(np.ones((1, 2), np.float32), [0], n=10**10)
  assert 2**60 < 10**10 * data.weight * R <= 2**61
  found, _ = PrivateSums(None, 0.0).release(
    "one", rows_of(data, power=2), statistics.class_sums, 1.0
  )
  assert found[0].tolist() == pytest.approx([0.5**0.5] * 2, rel=1e-3)


# The account.


class NoBits(NoiseSource):
  def words(self, count):
    raise AssertionError("noise was drawn")


def never(row, label, w):
  raise AssertionError("the sum was computed")


def some_rows(**options):
  x, label = hostile_rows(np.random.default_rng(0))
  return rows_of(data_of(x, label), **options)


@pytest.mark.parametrize(
  ("paid", "buys"),
  [
    *((1.0, b) for b in (1.001, 1e9, math.inf, 0.0, -1.0, math.nan)),
    *((paid, 1e-300) for paid in (0.0, -1.0, Fraction(0))),
  ],
)
def test_more_than_was_paid_is_refused_before_anything_is_done(paid, buys):
  with pytest.raises(RunError, match="more than was charged, so nothing left"):
    PrivateSums(NoBits(), paid).release("it", some_rows(), never, buys)


def test_what_leaves_adds_up_to_what_was_paid_and_no_more():
  paid = mu_squared(1.0, 1e-5)
  sums = PrivateSums(NoiseSource(), paid)
  shares = [0.02, 0.06, *[0.92 / 19] * 19]
  for share in shares:
    sums.release("it", some_rows(), statistics.ones, share * paid)
  spent = sum(1 / Fraction(r.noise_multiplier) ** 2 for r in sums.releases)
  assert Fraction(paid) * Fraction(1 - 2**-30) < spent <= Fraction(paid)
  with pytest.raises(RunError, match="more than was charged"):
    sums.release("it", some_rows(), statistics.ones, 1e-9 * paid)


@pytest.mark.parametrize("count", [3, 7, 10, 19])
@pytest.mark.parametrize("paid", [1.0, 0.0562, 3e-9])
def test_shares_that_are_rounded_up_are_not_refused(count, paid):
  """0.1 is more than a tenth: the noise is larger by so little."""
  sums = PrivateSums(NoiseSource(1), paid)
  for _ in range(count):
    share = math.nextafter(paid / count, math.inf)
    sums.release("it", null_rows(1), statistics.ones, share)
  spent = sum(1 / Fraction(r.noise_multiplier) ** 2 for r in sums.releases)
  assert spent <= Fraction(paid)


# The law of what leaves.


@every
def test_what_leaves_is_the_exact_sum_and_noise_of_the_stated_deviation(name):
  statistic = STATISTICS[name]
  x, label = hostile_rows(np.random.default_rng(0))
  data = data_of(x, label)
  exact, noise = statistic.exact(data), []
  for seed in range(40):
    sums = PrivateSums(NoiseSource(seed), 0.25)
    found, sigma = sums.release(
      name, statistic.rows(data), statistic.left, 0.25, *statistic.public
    )
    steps = found * SENSITIVITY
    assert (steps % 1 == 0).all()
    noise.append((steps - exact).ravel() / (sigma * SENSITIVITY))
    (release,) = sums.releases
    assert (release.name, release.shape) == (name, exact.shape)
    assert release.noise_multiplier == pytest.approx(sigma, rel=1e-15)
  assert release.noise_multiplier == pytest.approx(2.0, rel=1e-11)
  assert release.noise_multiplier > 2.0
  p = scipy.stats.kstest(np.concatenate(noise), scipy.stats.norm.cdf).pvalue
  assert p > P_VALUE


def test_noise_does_not_depend_on_the_rows():
  drawn = []
  for scale in (0.0, 1.0):
    x = scale * np.random.default_rng(0).standard_normal((9, 40))
    data = data_of(x.astype(np.float32), np.zeros(9, int))
    sums = PrivateSums(NoiseSource(5), 1.0)
    found, _ = sums.release("mean", rows_of(data), statistics.ones, 1.0)
    exact, _ = PrivateSums(None, 0.0).release(
      "mean", rows_of(data), statistics.ones, 1.0
    )
    drawn.append((found - exact) * SENSITIVITY)
  np.testing.assert_array_equal(drawn[0], drawn[1])


def null_rows(dim):
  return rows_of(data_of(np.zeros((1, dim), np.float32), [0]))


def test_topping_up_has_the_law_of_one_draw():
  """Bought in three parts, the last of them another time."""
  buys = (0.3, 0.02, 1.7)
  given = null_rows(4000)
  sums = PrivateSums(NoiseSource(9), sum(buys[:2]) * 1.01)
  first, _ = sums.release("mean", given, statistics.ones, buys[0])
  second, sigma = sums.release("mean", given, statistics.ones, buys[1])
  assert sigma == pytest.approx(sum(buys[:2]) ** -0.5, rel=1e-11)
  later = PrivateSums(NoiseSource(10), buys[2] * 1.01, sums.known)
  third, sigma = later.release("mean", given, statistics.ones, buys[2])
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
  ((mean, precision),) = later.known.values()
  np.testing.assert_array_equal(mean, third)
  assert precision == pytest.approx(sum(buys), rel=1e-11)


def test_only_the_same_statistic_is_topped_up():
  x, label = hostile_rows(np.random.default_rng(0))
  data = data_of(x, label)
  sums = PrivateSums(NoiseSource(1), 1.0)
  plain, zero = rows_of(data), np.zeros(D)
  eye = np.eye(D)
  kernel, step = statistics.integer_kernel(np.eye(D, K))
  asked = [
    (plain, statistics.ones),
    (plain.mapped(zero, None), statistics.ones),
    (plain.mapped(zero, eye), statistics.ones),
    (plain.mapped(zero + 0.1, eye), statistics.ones),
    (rows_of(data, most=2.0), statistics.ones),
    (rows_of(data, each=True), statistics.ones),
    (plain, statistics.itself),
    (plain, statistics.residual, kernel, step, 0.1),
    (plain, statistics.residual, kernel, step, 0.2),
    (plain, statistics.residual, kernel, step / 2, 0.1),
    (plain, statistics.residual, kernel, step, 0.1, np.zeros(K)),
  ]
  for i, (given, left, *public) in enumerate(asked):
    _, sigma = sums.release("one name", given, left, 0.01, *public)
    assert sigma == pytest.approx(10.0, rel=1e-9)
    assert len(sums.known) == i + 1
  _, sigma = sums.release("once", plain, statistics.ones, 0.01, once=True)
  _, again = sums.release("once", plain, statistics.ones, 0.01, once=True)
  assert sigma == again == pytest.approx(10.0, rel=1e-9)
  assert len(sums.known) == len(asked)


def test_no_representation_has_a_private_number():
  x = np.full((3, 2), 0.123456, np.float32)
  data = data_of(x, [1, 1, 1])
  given = rows_of(data).kept()
  sums = PrivateSums(None, 0.0)
  sums.release("mean", given, statistics.ones, 1.0)
  shown = repr((data, given, next(given.chunks()), sums))
  assert "0.12" not in shown
  assert "array" not in shown.lower().replace("<private>", "")
  assert "11584" not in shown
