"""From what is stored to integers: oracles in plain NumPy and rationals."""

import dataclasses
import math
from fractions import Fraction
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.privacy_units import _slot_numbers
from oneshot_dp.linear_dp.quantize import ROW_NORM, room_in_ball, within_ball
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import (
  D,
  columns_of,
  data_of,
  hostile_rows,
  lengths_squared,
)

# Rows on the grid.


@pytest.mark.parametrize(
  "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
)
@pytest.mark.parametrize("most", [math.inf, 1.0, 1e-3])
def test_rows_are_rounded_to_the_grid(dtype, most):
  x, label = hostile_rows(np.random.default_rng(0), dtype=np.float16)
  data = dataset_from_arrays(x.astype(dtype), label, num_classes=4)

  z, labels, weight = columns_of(rows_of(data, max_inverse_norm=most))

  # Behind the 24 rows is padding.
  z = z[:24]
  wide = x.astype(dtype).astype(np.float64)
  norm = np.linalg.norm(wide, axis=1)
  with np.errstate(divide="ignore"):
    scale = np.minimum(room_in_ball(D) / norm, ROW_NORM * most)
  expected = wide * np.where(norm > 0, scale, 0)[:, None]
  np.testing.assert_allclose(z, expected, atol=0.51)
  np.testing.assert_array_equal(labels[:24], label)
  expected_weight = np.where(z.any(axis=1), UNIT_WEIGHT, 0)
  np.testing.assert_array_equal(weight[:24], expected_weight)
  assert max(lengths_squared(z)) <= ROW_NORM**2


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 7, 192, 1280, 16384])
def test_no_honest_row_leaves_the_ball_and_each_comes_to_its_edge(dim):
  rng = np.random.default_rng(dim)
  x = rng.standard_normal((16, dim)).astype(np.float32)
  x[1] = 1
  x[2] = 0
  x[2, 0] = 3
  x[3] *= 1e30
  data = dataset_from_arrays(x, np.zeros(16, int), num_classes=1)

  z, _, _ = columns_of(rows_of(data))

  squares = lengths_squared(z[:16])
  assert max(squares) <= ROW_NORM**2
  assert min(squares) > (ROW_NORM - math.sqrt(dim) - 2.5) ** 2


@pytest.fixture(params=[1, 3, 200, pytest.param(5000, marks=pytest.mark.slow)])
def rows_about_the_edge(request):
  """400 rows of integers just inside and just outside of the ball."""
  dim = request.param
  rng = np.random.default_rng(dim)
  z = rng.standard_normal((400, dim))
  length = ROW_NORM * (1 + rng.uniform(-2e-3, 2e-3, 400))
  z *= (length / np.linalg.norm(z, axis=1))[:, None]
  z = np.rint(z)
  z[0] = 0
  # One step out of the ball along another axis, which float32 cannot tell from
  # its surface.
  z[1] = np.eye(dim)[min(dim - 1, 1)]
  z[1, 0] += ROW_NORM
  return z


def test_no_row_outside_of_the_ball_passes_its_check(rows_about_the_edge):
  z = rows_about_the_edge
  squares = np.array(lengths_squared(z.astype(int)), object)

  fine, _ = within_ball(jax.numpy.asarray(z, np.float32))

  outside = squares > ROW_NORM**2
  assert outside.any()
  assert not (np.asarray(fine) & outside).any()


def test_rows_well_inside_of_the_ball_pass_its_check(rows_about_the_edge):
  z = rows_about_the_edge
  well_inside = np.linalg.norm(z, axis=1) < room_in_ball(z.shape[1]) + 1

  fine, is_row = within_ball(jax.numpy.asarray(z, np.float32))

  assert np.asarray(fine)[well_inside].all()
  # The first is of zeros, which are not counted as a row.
  assert np.asarray(is_row).tolist() == [False, *[True] * 399]


@pytest.mark.parametrize("dim", [1, 3, 200, 5000])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_rows_of_no_numbers_do_not_pass_the_check_of_the_ball(dim, value):
  bad = jax.numpy.asarray(np.full((1, dim), value, np.float32))

  fine, _ = within_ball(bad)

  assert not fine.any()


# Rows that are refused.


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("norm", [0.0, 1.0, np.inf, np.nan])
@pytest.mark.parametrize("unit", [None, np.zeros(300, int)])
def test_a_row_that_is_not_finite_is_refused_by_its_id_alone(value, norm, unit):
  x = np.full((300, D), 0.7071, np.float32)
  x[271, 3] = value
  damaged = data_of(x, np.ones(300, int), unit, block=64)
  blocks = list(damaged.blocks())
  blocks[4]["embedding_norm"][271 - 256] = norm
  data = dataclasses.replace(damaged, blocks=lambda: blocks)

  with pytest.raises(InputError) as refused:
    columns_of(rows_of(data))

  message = str(refused.value)
  assert message.startswith("the rows: example_id=271: its embedding is not")
  # An error may be shown to somebody who may not see the rows.
  assert "0.7" not in message
  assert "\n" not in message


def row_of_ones_with_norm(norm):
  """A row as long as √6 = 2.449…, beside which another norm is stored."""
  data = data_of(np.ones((1, D), np.float32), [0])
  (block,) = data.blocks()
  changed = {**block, "embedding_norm": np.array([norm], np.float32)}
  return rows_of(dataclasses.replace(data, blocks=lambda: [changed]))


def test_a_norm_that_is_too_small_is_refused():
  with pytest.raises(InputError, match="longer than embedding_norm says"):
    columns_of(row_of_ones_with_norm(2.4))


def test_a_row_whose_norm_is_too_large_counts_less():
  z, _, _ = columns_of(row_of_ones_with_norm(24.5))

  length = math.sqrt(lengths_squared(z)[0])
  assert length == pytest.approx(ROW_NORM / 10, rel=1e-2)


@pytest.mark.parametrize(
  ("changes", "unit", "message"),
  [
    ({"label": -1}, None, "id=5: its label is o"),
    ({"label": 4}, None, "id=5: its label is o"),
    ({"label": 2**31 - 1}, None, "id=5: its label is o"),
    ({"example_id": 2}, None, "example_id=2: it comes more than once"),
    ({}, "example", "but the privacy unit is"),
    ({}, "user", "but the privacy unit is"),
  ],
)
@pytest.mark.parametrize("block", [2, 3, 10])
def test_rows_that_are_not_as_is_said_are_refused(
  changes, unit, message, block
):
  x = np.ones((10, D), np.float32)
  labels = np.zeros(10, int)
  ids = labels if unit == "example" else None
  data = data_of(x, labels, ids, block=block)
  blocks = list(data.blocks())
  for name, value in changes.items():
    blocks[5 // block][name][5 % block] = value
  unit = unit or "example"
  data = dataclasses.replace(data, blocks=lambda: blocks, unit=unit)

  with pytest.raises(InputError, match=message):
    columns_of(rows_of(data))


def test_more_rows_than_int64_was_measured_for_are_refused(monkeypatch):
  # The n of a part of a cache is a mean, which the true number may exceed: by n
  # and UNIT_WEIGHT more, which is made small here.
  data = data_of(np.ones((30, D), np.float32), np.zeros(30), n=4)
  columns_of(rows_of(data))
  monkeypatch.setattr("oneshot_dp.linear_dp.dataset.UNIT_WEIGHT", 16)

  with pytest.raises(InputError, match="many more than the expected 4"):
    columns_of(rows_of(data))


@pytest.mark.parametrize("n", [0, -1, 10**10 + 1])
def test_a_number_of_rows_that_no_sum_was_measured_for_is_refused(n):
  data = data_of(np.ones((30, D), np.float32), np.zeros(30))

  with pytest.raises(InputError, match="rows: sums are of 1 to 1e"):
    dataclasses.replace(data, n=n)


# Units of many rows.


class ExpectedRow(NamedTuple):
  """What stands for one class of a unit: its mean row at its weight."""

  total: np.ndarray
  num_rows: int
  weight: int


def rows_by_unit_and_class(z, label, unit):
  """Unit → class → its rows; rows of zeros count for nothing."""
  rows = {}
  for row, c, u in zip(z, label.tolist(), unit.tolist(), strict=True):
    if any(row):
      of_unit = rows.setdefault(u, {})
      of_unit.setdefault(c, []).append(row)
  return rows


def exact_weight(num_rows, sizes, power):
  """⌊W·k_c/Σk⌋, or ⌊W·k_c/√Σk²⌋, in rationals or by an integer root."""
  if power == 1:
    return math.floor(Fraction(UNIT_WEIGHT * num_rows, sum(sizes)))
  squares = 0
  for size in sizes:
    squares += size * size
  return math.isqrt((UNIT_WEIGHT * num_rows) ** 2 // squares)


def oracle_of_units(z, label, unit, power):
  """Unit → class → `ExpectedRow`; in Python's integers and rationals."""
  units = {}
  for u, classes in rows_by_unit_and_class(z, label, unit).items():
    sizes = [len(rows) for rows in classes.values()]
    units[u] = {}
    for c, rows in classes.items():
      units[u][c] = ExpectedRow(
        total=np.sum(rows, axis=0),
        num_rows=len(rows),
        weight=exact_weight(len(rows), sizes, power),
      )
  return units


def in_the_order_of_slots(units):
  """(class, expected row) of all units, as a pass has them.

  Units of as many slots lie together, and rows of zeros are left out.
  """
  by_id = sorted(units)
  num_classes = np.array([len(units[u]) for u in by_id])
  slots = _slot_numbers(num_classes, 4)
  by_slots = np.argsort(slots, kind="stable")
  expected = []
  for place in by_slots:
    for c, row in sorted(units[by_id[place]].items()):
      if row.total.any():
        expected.append((c, row))
  return expected


@pytest.fixture(params=[1, 2])
def units_of_rows(request):
  """Rows with labels and owners, and the order of the norm of weights."""
  rng = np.random.default_rng(request.param)
  x, label = hostile_rows(rng, n=200)
  # Ids of both signs, past 32 bits, as hashes are.
  unit = rng.integers(-3, 12, 200) ** 3 * 2**40
  return x, label, unit, request.param


@pytest.mark.parametrize("most", [math.inf, 0.8])
def test_units_are_mean_rows_at_exact_weights(units_of_rows, most):
  x, label, unit, power = units_of_rows
  plain, _, _ = columns_of(rows_of(data_of(x, label), max_inverse_norm=most))
  units = oracle_of_units(plain[:200].tolist(), label, unit, power)

  z, labels, weight = columns_of(
    rows_of(
      data_of(x, label, unit), max_inverse_norm=most, weight_norm_order=power
    )
  )

  is_row = weight > 0
  z = z[is_row]
  labels = labels[is_row]
  weight = weight[is_row]
  expected = in_the_order_of_slots(units)
  assert len(z) == len(expected)
  for i, (c, row) in enumerate(expected):
    assert labels[i] == c
    assert weight[i] == row.weight
    mean = row.total / row.num_rows
    if most < math.inf:  # exactly, towards zero
      np.testing.assert_array_equal(z[i], np.trunc(mean))
    elif row.num_rows > 1:
      mean *= room_in_ball(D) / np.linalg.norm(mean)
    np.testing.assert_allclose(z[i], mean, atol=1.01)
  assert max(lengths_squared(z)) <= ROW_NORM**2


@pytest.mark.parametrize("most", [math.inf, 0.8])
def test_weights_of_a_unit_are_at_most_those_of_one_row_and_hardly_less(
  units_of_rows, most
):
  x, label, unit, power = units_of_rows
  plain, _, _ = columns_of(rows_of(data_of(x, label), max_inverse_norm=most))
  units = oracle_of_units(plain[:200].tolist(), label, unit, power)

  for classes in units.values():
    norm_to_the_power = 0
    for row in classes.values():
      norm_to_the_power += row.weight**power
    assert norm_to_the_power <= UNIT_WEIGHT**power
    assert norm_to_the_power >= (UNIT_WEIGHT - 8) ** power


def test_opposite_rows_cancel_and_weigh_nothing():
  x = np.array([[1.0, 0], [-1.0, 0], [0, 2.0]], np.float32)
  data = data_of(x, [0, 0, 1], [5, 5, 5], num_classes=2)

  z, label, weight = columns_of(rows_of(data))

  assert not z[0].any()
  assert weight[0] == 0
  assert label[1] == 1
  assert weight[1] == UNIT_WEIGHT // 3


@pytest.mark.slow
def test_a_unit_of_many_rows_of_one_class_is_as_long_as_one_row():
  """Sums of 200,000 rows, past int32 and past what squares exactly."""
  x = np.tile(np.array([[3.0, 4.0, 0]], np.float32), (200_000, 1))
  data = data_of(x, np.zeros(200_000), np.zeros(200_000), block=50_000)

  z, _, weight = columns_of(rows_of(data))

  room = room_in_ball(3)
  np.testing.assert_allclose(z[0], [0.6 * room, 0.8 * room, 0], atol=0.51)
  assert weight.tolist() == [UNIT_WEIGHT, *[0] * (len(weight) - 1)]
