"""From what is stored to integers: oracles in plain NumPy and rationals."""

import collections
import dataclasses
import math
from fractions import Fraction

import jax
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.api import dataset_from_arrays
from oneshot_dp.linear_dp.dataset import UNIT_WEIGHT
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


@pytest.mark.parametrize(
  "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
)
@pytest.mark.parametrize("most", [math.inf, 1.0, 1e-3])
def test_rows_are_rounded_to_the_grid(dtype, most):
  x, label = hostile_rows(np.random.default_rng(0), dtype=np.float16)
  data = dataset_from_arrays(x.astype(dtype), label, num_classes=4)
  z, labels, weight = (
    c[:24] for c in columns_of(rows_of(data, max_inverse_norm=most))
  )
  wide = x.astype(dtype).astype(np.float64)
  norm = np.linalg.norm(wide, axis=1)
  with np.errstate(divide="ignore"):
    scale = np.minimum(room_in_ball(D) / norm, ROW_NORM * most)
  expected = wide * np.where(norm > 0, scale, 0)[:, None]
  np.testing.assert_allclose(z, expected, atol=0.51)
  np.testing.assert_array_equal(labels, label)
  np.testing.assert_array_equal(weight, np.where(z.any(axis=1), UNIT_WEIGHT, 0))
  assert max(lengths_squared(z)) <= ROW_NORM**2


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


@pytest.mark.parametrize("dim", [1, 3, 200, 5000])
def test_the_check_of_the_ball_is_on_the_safe_side(dim):
  """Rows just inside and just outside: none outside passes."""
  rng = np.random.default_rng(dim)
  z = rng.standard_normal((400, dim))
  z *= (
    ROW_NORM * (1 + rng.uniform(-2e-3, 2e-3, 400)) / np.linalg.norm(z, axis=1)
  )[:, None]
  z = np.rint(z)
  z[0] = 0
  z[1] = np.eye(dim)[min(dim - 1, 1)]  # just outside: float32 cannot tell
  z[1, 0] += ROW_NORM
  fine, is_row = map(np.asarray, within_ball(jax.numpy.asarray(z, np.float32)))
  inside = np.array([s <= ROW_NORM**2 for s in lengths_squared(z.astype(int))])
  assert not (fine & ~inside).any()
  assert fine[np.linalg.norm(z, axis=1) < room_in_ball(dim) + 1].all()
  assert is_row.tolist() == [False, *[True] * 399]
  for value in (np.nan, np.inf, 1e30):
    bad = jax.numpy.asarray(np.full((1, dim), value, np.float32))
    assert not within_ball(bad)[0].any()


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
  said = str(refused.value)
  assert said.startswith("the rows: example_id=271: its embedding is not")
  assert "0.7" not in said
  assert "\n" not in said


def test_a_norm_that_is_too_small_is_refused_and_one_too_large_counts_less():
  def with_norm(norm):
    data = data_of(np.ones((1, D), np.float32), [0])
    (made,) = data.blocks()
    block = {**made, "embedding_norm": np.array([norm], np.float32)}
    return rows_of(dataclasses.replace(data, blocks=lambda: [block]))

  with pytest.raises(InputError, match="longer than embedding_norm says"):
    columns_of(with_norm(2.4))
  z, _, _ = columns_of(with_norm(24.5))
  assert math.sqrt(lengths_squared(z)[0]) == pytest.approx(
    ROW_NORM / 10, rel=1e-2
  )


@pytest.mark.parametrize(
  ("changes", "unit", "message"),
  [
    *(({"label": v}, None, "id=5: its label is o") for v in (-1, 4, 2**31 - 1)),
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
  data = data_of(np.ones((30, D), np.float32), np.zeros(30), n=4)
  columns_of(rows_of(data))  # of a part: n is a mean
  monkeypatch.setattr("oneshot_dp.linear_dp.dataset.UNIT_WEIGHT", 16)
  with pytest.raises(InputError, match="many more than the expected 4"):
    columns_of(rows_of(data))
  for n in (0, -1, 10**10 + 1):
    with pytest.raises(InputError, match="rows: sums are of 1 to 1e"):
      dataclasses.replace(data, n=n)


def oracle_of_units(z, label, unit, power):
  """(unit, class) → Σz, weight; in Python's integers and rationals."""
  rows = {}
  for i in range(len(z)):
    if any(z[i]):
      rows.setdefault(int(unit[i]), {}).setdefault(int(label[i]), []).append(
        z[i]
      )
  found = {}
  for u, classes in rows.items():
    sizes = {c: len(r) for c, r in classes.items()}
    for c, of_class in classes.items():
      total = [sum(column) for column in zip(*of_class, strict=True)]
      if power == 1:
        weight = math.floor(
          Fraction(UNIT_WEIGHT * sizes[c], sum(sizes.values()))
        )
      else:
        squares = sum(k * k for k in sizes.values())
        weight = math.isqrt((UNIT_WEIGHT * sizes[c]) ** 2 // squares)
      found[u, c] = total, sizes[c], weight
  return found


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("most", [math.inf, 0.8])
def test_units_are_mean_rows_at_exact_weights(power, most):
  rng = np.random.default_rng(power)
  x, label = hostile_rows(rng, n=200)
  unit = rng.integers(-3, 12, 200) ** 3 * 2**40
  plain = columns_of(rows_of(data_of(x, label), max_inverse_norm=most))[0][:200]
  oracle = oracle_of_units(plain.tolist(), label, unit, power)
  z, labels, weight = columns_of(
    rows_of(
      data_of(x, label, unit), max_inverse_norm=most, weight_norm_order=power
    )
  )
  # Units of as many slots lie together; rows of zeros count for nothing.
  sizes = collections.Counter(u for u, _ in oracle)
  slots = _slot_numbers(np.array([sizes[u] for u in sorted(sizes)]), 4)
  slots_of = dict(zip(sorted(sizes), slots.tolist(), strict=True))
  keys = sorted(oracle, key=lambda key: (slots_of[key[0]], *key))
  keys = [key for key in keys if any(oracle[key][0])]
  is_row = weight > 0
  assert is_row.sum() == len(keys)
  z = z[is_row]
  labels = labels[is_row]
  weight = weight[is_row]
  for i, (u, c) in enumerate(keys):
    total, k, w = oracle[u, c]
    mean = np.array(total) / k
    if most == math.inf and k > 1:
      mean *= room_in_ball(D) / np.linalg.norm(mean)
    assert labels[i] == c
    assert weight[i] == w
    np.testing.assert_allclose(z[i], mean, atol=1.01)
    if most < math.inf:  # exactly, towards zero
      np.testing.assert_array_equal(z[i], np.trunc(mean))
  for u in {u for u, _ in oracle}:
    weights = [oracle[key][2] for key in oracle if key[0] == u]
    assert sum(w**power for w in weights) <= UNIT_WEIGHT**power
    assert sum(w**power for w in weights) >= (UNIT_WEIGHT - 8) ** power
  assert max(lengths_squared(z)) <= ROW_NORM**2


def test_opposite_rows_cancel_and_weigh_nothing():
  x = np.array([[1.0, 0], [-1.0, 0], [0, 2.0]], np.float32)
  data = data_of(x, [0, 0, 1], [5, 5, 5], num_classes=2)
  z, label, weight = columns_of(rows_of(data))
  assert not z[0].any()
  assert (label[1], weight[0], weight[1]) == (1, 0, UNIT_WEIGHT // 3)


def test_a_unit_of_many_rows_of_one_class_is_as_long_as_one_row():
  """Sums of 200,000 rows, past int32 and past what squares exactly."""
  x = np.tile(np.array([[3.0, 4.0, 0]], np.float32), (200_000, 1))
  data = data_of(x, np.zeros(200_000), np.zeros(200_000), block=50_000)
  z, _, weight = columns_of(rows_of(data))
  room = room_in_ball(3)
  np.testing.assert_allclose(z[0], [0.6 * room, 0.8 * room, 0], atol=0.51)
  assert weight.tolist() == [UNIT_WEIGHT, *[0] * (len(weight) - 1)]
