"""Properties of the one sum, for every statistic: sensitivity, and its bits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oneshot_dp.linear_dp import rows, statistics, sum_kernels
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import (
  SENSITIVITY,
  STATISTICS,
  D,
  K,
  data_of,
  every,
  exact_sum,
  hostile_rows,
)


def length_squared(moved):
  """Exactly, in Python's integers."""
  return sum(v * v for v in moved.ravel().tolist())


# Sensitivity.


def test_the_catalogue_has_every_statistic():
  has = {s.left for s in STATISTICS.values()}
  lefts = {
    value
    for value in vars(statistics).values()
    if isinstance(value, statistics.RowStatistic)
  }
  assert lefts == has


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
  "lies",
  [
    lambda row, label, w: 2.0 * w[:, None],
    lambda row, label, w: (w + 1)[:, None],
    lambda row, label, w: jnp.stack([w, w], 1) * 0.75,
    lambda row, label, w: jnp.full((len(w), 2), jnp.nan),
    lambda row, label, w: jnp.full((len(w), 2), -jnp.inf),
    lambda row, label, w: jnp.full((len(w), 1), 1e200),
    lambda row, label, w: (
      jnp.ones((len(w), 1)) * UNIT_WEIGHT * (w == 0)[:, None]
    ),
  ],
)
def test_a_left_that_is_too_long_adds_nothing(lies):
  """Nor is its own bound anything that is believed."""
  x, label = hostile_rows(np.random.default_rng(0))
  assert not exact_sum(
    rows_of(data_of(x, label)), statistics.RowStatistic("lies", lies)
  ).any()


def test_a_left_is_truncated_to_integers():
  @statistics.row_statistic(id="half")
  def half(row, label, w):
    return w[:, None] * 0.4999999

  x = np.ones((5, D), np.float32)
  label = np.zeros(5, int)
  data = data_of(x, label)
  found = exact_sum(rows_of(data), half)
  row = np.asarray(next(rows_of(data).chunks()).row[0]).astype(int)
  expected = 5 * math.floor(UNIT_WEIGHT * 0.4999999) * row
  np.testing.assert_array_equal(found[0] * SENSITIVITY, expected)


@pytest.mark.parametrize(
  ("left", "power"), [(statistics.row_weights, 1), (statistics.class_sums, 2)]
)
def test_a_row_that_is_off_the_ball_adds_nothing(left, power):
  """Whoever made them: the mechanism itself checks."""
  data = data_of(np.ones((3, D), np.float32), np.zeros(3, int))
  long = rows_of(data, weight_norm_order=power)
  made = [
    chunk._replace(row=chunk.row.at[1, 0].set(ROW_NORM))
    for chunk in long.chunks()
  ]
  long.iter_chunks = lambda: iter(made)
  two = data_of(np.ones((2, D), np.float32), np.zeros(2, int))
  expected = exact_sum(rows_of(two, weight_norm_order=power), left)
  np.testing.assert_array_equal(exact_sum(long, left), expected)


# The same bits.


@pytest.mark.slow
@every
@pytest.mark.parametrize("units", [False, True])
def test_the_order_of_rows_and_the_size_of_blocks_do_not_matter(name, units):
  rng = np.random.default_rng(3)
  x, label = hostile_rows(rng, n=130)
  unit = None
  if units:
    unit = rng.integers(0, 20, 130)
  statistic = STATISTICS[name]
  expected = statistic.exact(data_of(x, label, unit))
  for block in (1, 7, 130):
    order = rng.permutation(130)
    shuffled_unit = unit
    if unit is not None:
      shuffled_unit = unit[order]
    given = data_of(x[order], label[order], shuffled_unit, block=block)
    np.testing.assert_array_equal(statistic.exact(given), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "units"),
  [
    *((n, False) for n in {s.left: n for n, s in STATISTICS.items()}.values()),
    ("class sums", True),
    ("moment of a map", True),
  ],
)
def test_chunks_and_devices_do_not_matter(name, units, monkeypatch):
  """Of each function that is summed: what it is given changes no program."""
  rng = np.random.default_rng(4)
  x, label = hostile_rows(rng, n=300)
  unit = None
  if units:
    unit = rng.integers(0, 40, 300)
  data = data_of(x, label, unit)
  statistic = STATISTICS[name]
  expected = statistic.exact(data)
  devices = jax.local_devices()
  assert len(devices) == 8
  for count, chunk in ((1, 512), (2, 64), (4, 128), (8, 8)):
    monkeypatch.setattr(jax, "local_devices", lambda n=count, **_: devices[:n])
    monkeypatch.setattr(rows, "_chunk_rows", lambda *_, c=chunk: c)
    np.testing.assert_array_equal(statistic.exact(data), expected)


def test_int32_sums_are_carried_before_they_overflow(monkeypatch):
  """131,071 rows of one direction fit on a device; more are past 2³¹."""
  n = 140_000
  devices = jax.local_devices()
  monkeypatch.setattr(jax, "local_devices", lambda **_: devices[:1])
  data = data_of(np.ones((n, 1), np.float32), np.zeros(n), num_classes=1)
  row = int(np.asarray(next(rows_of(data).chunks()).row[0, 0]))
  assert n * row > 2**31
  found = STATISTICS["class sums"].exact(data)
  assert found.tolist() == [[n * row * UNIT_WEIGHT]]


def test_class_sums_of_chunks_beyond_the_room_of_int32_are_exact(monkeypatch):
  """As the first chunk of very many devices would be, were they one."""
  x, label = hostile_rows(np.random.default_rng(4), n=300)
  data = data_of(x, label)
  expected = STATISTICS["class sums"].exact(data)
  monkeypatch.setattr(sum_kernels, "_MAX_ROWS_IN_INT32", 1)

  found = STATISTICS["class sums"].exact(data)

  np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_the_weight_follows_the_number_of_rows():
  """So that no sum leaves int64, up to ten thousand million rows."""
  for n, weight in ((1, 2**20), (2**27, 2**20), (2**27 + 1, 2**19)):
    data = data_of(np.ones((1, 2), np.float32), [0], n=n)
    assert data.weight == weight
    assert n * data.weight * ROW_NORM <= 2**61
  data = data_of(np.ones((1, 2), np.float32), [0], n=10**10)
  assert 2**60 < 10**10 * data.weight * ROW_NORM <= 2**61
  found = exact_sum(rows_of(data, weight_norm_order=2), statistics.class_sums)
  assert found[0].tolist() == pytest.approx([0.5**0.5] * 2, rel=1e-3)
