"""A unit of many rows moves each statistic of each head by what a row may."""

import math
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS as B
from oneshot_dp.linear_dp.rows.mean_rows import mean_rows
from oneshot_dp.linear_dp.rows.whole_units import count_rows
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.linear_dp.statistics.exact_map import (
  STEP_RADIUS,
  ReleasedMap,
)
from oneshot_dp.linear_dp.statistics.gains import count_gains
from oneshot_dp.linear_dp.statistics.gradient_sum import clipped_gradient
from oneshot_dp.linear_dp.statistics.row_gradient import SOFTMAX, Loss
from tests.linear_dp.blocks import (
  Block,
  in_blocks,
  integers_of,
  make_block,
  random_block,
  rows_of,
  steps_of,
)
from tests.linear_dp.rows.units_test import with_units

K, D = 4, 6
KERNEL = np.random.default_rng(1).standard_normal((D, K))
CENTRE = ReleasedMap.of(
  np.diag([1.0, 1, 1, 1, 1, 30]), np.array([0.5, 0, 0, 0, 0, 0])
)
WAY = np.array([0.6, 0, 0, 0, 0, -0.8], np.float32)
KERNELS = np.stack([np.outer(WAY, np.eye(K)[c]) for c in (0, 1, 1)])
"""The last two rank `WAY` alike, and the first otherwise."""
STEPS: dict[str, dict[str, Any]] = {
  "directions": {},
  "mapped": {"a_map": CENTRE},
  "norms": {"max_norm": 4.0},
  "sigmoid": {"max_norm": 256.0, "loss": Loss(name="sigmoid", bias=2.0)},
}


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  """Chunks of a few rows."""


def gradient(block: Block, *args: Any, loss=SOFTMAX, clip_norm=0.1, **changes):
  steps = steps_of(block, *args, has_units=True, **changes)
  k = changes.get("num_classes", K)
  kernel = np.resize(KERNEL, (D, k))
  return clipped_gradient(steps, kernel, clip_norm, loss=loss).secret_sum


def sums(block: Block, *args: Any, **changes: Any) -> dict[str, np.ndarray]:
  """All statistics of all heads, as integers."""
  secret = class_moments(rows_of(block, *args, has_units=True, **changes))
  assert secret.count_steps == B
  found = {
    "moment": secret.secret_moment,
    "class sums": secret.secret_class_sums,
    "total": secret.secret_total,
    "class counts": secret.secret_class_counts,
    "units": secret.secret_class_counts.sum(keepdims=True),
  }
  for name, given in STEPS.items():
    found[name] = gradient(block, *args, **given, **changes)
  gains = count_gains(
    steps_of(block, *args, has_units=True, **changes), KERNELS
  )
  assert gains.count_steps == B
  return found | {"gains": gains.secret_gains}


MOST = {
  **{"moment": B**2, "class sums": B, "total": B, "class counts": B},
  **{"units": B, "gains": B * math.sqrt(2)},
  **dict.fromkeys(STEPS, B * STEP_RADIUS),
}
"""By how much, in L2 norm, a unit against nothing may move each."""


def squared(one: np.ndarray, other: np.ndarray) -> int:
  return sum(
    (int(x) - int(y)) ** 2 for x, y in zip(one.flat, other.flat, strict=True)
  )


def _unit(name: str, k: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows and labels of a unit that tries to weigh more than a row."""
  rng = np.random.default_rng(7)
  way = WAY
  match name:
    case "one row":
      return way[None], np.array([1])
    case "10,000 alike":
      return np.tile(7 * way, (10_000, 1)), np.ones(10_000, int)
    case "every class":
      return np.tile(way, (k, 1)), np.arange(k)
    case "every class, uneven":
      label = np.repeat(np.arange(k), np.arange(k) * 7 + 1)
      return np.tile(way * 3e4, (len(label), 1)), label
    case "opposite":
      return np.stack([way, -way, way, -way]), np.zeros(4, int)
    case "nulls":
      return np.zeros((4, D), np.float32), np.arange(4) % k
    case "mixed":
      length = np.array([0, 1e-40, 1e-20, 0.5, 1, 3e4] * 20, np.float32)
      rows = rng.standard_normal((120, D)).astype(np.float32)
      return rows * length[:, None], rng.integers(0, k, 120)
  raise AssertionError(name)


UNITS = (
  "one row",
  "10,000 alike",
  "every class",
  "every class, uneven",
  "opposite",
  "nulls",
  "mixed",
)
BASE = random_block(9, D, K, seed=5)


def beside(rows: np.ndarray, label: np.ndarray) -> Block:
  """The base, each row a unit, and one unit more."""
  block = make_block(
    np.concatenate([BASE.embedding, rows.astype(np.float32)]),
    np.concatenate([BASE.label, label]),
  )
  return with_units(block, np.minimum(np.arange(len(block)), len(BASE)))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "k"),
  [(name, (K, 40)[i % 2]) for i, name in enumerate(UNITS)]
  + [("every class", 40), ("mixed", 40)],
)
def test_a_unit_moves_every_sum_by_no_more_than_a_row_may(name, k):
  """In integers; its opposite in its place, by twice as much."""
  rows, label = _unit(name, k)
  without = sums(beside(np.zeros_like(rows), label), num_classes=k)
  found = sums(beside(rows, label), num_classes=k)
  other = sums(beside(-rows[::-1], label), num_classes=k)
  for of, most in MOST.items():
    assert squared(found[of], without[of]) <= most**2, of
    assert squared(found[of], other[of]) <= (2 * most) ** 2, of
  # The weights of a null row are nothing, so n is all that it changes.
  if name == "nulls":
    for of in MOST:
      assert squared(found[of], without[of]) == 0
  # The bounds are reached, but for rounding.
  if name in ("one row", "10,000 alike"):
    for of in MOST.keys() - {"norms", "sigmoid"}:
      assert squared(found[of], without[of]) > (0.99 * MOST[of]) ** 2, of


@pytest.mark.slow
def test_against_numpy_unit_by_unit():
  """Integers by numpy alone; a unit is added as though it were alone."""
  rng = np.random.default_rng(2)
  block = random_block(80, D, K, seed=3)
  units = rng.permutation(
    np.repeat(np.arange(9), [1, 1, 2, 3, 5, 8, 13, 20, 27])
  )
  block = with_units(block, units)
  u = integers_of(block)
  radius = B - math.sqrt(D) / 2 - 1
  moment, by_class = np.zeros((D, D)), np.zeros((K, D))
  counts = np.zeros(K, np.int64)
  for unit in range(9):
    own = units == unit
    for c in set(block.label[own].tolist()):
      rows = u[own & (block.label == c)]
      weight = B * len(rows) // own.sum()
      mean = rows.sum(axis=0) / len(rows)
      way = mean / np.linalg.norm(mean)
      root = np.rint(way * (math.sqrt(B * weight) - (B - radius)))
      moment += np.outer(root, root)
      by_class[c] += np.rint(way * (weight - (B - radius)))
      counts[c] += weight
  found = sums(block)
  np.testing.assert_array_equal(found["class counts"], counts)
  np.testing.assert_allclose(found["class sums"], by_class, atol=12)
  np.testing.assert_allclose(found["moment"], moment, atol=25 * B)
  for name, value in found.items():
    alone = [
      sums(block[units == unit], num_examples=int((units == unit).sum()))
      for unit in range(9)
    ]
    np.testing.assert_array_equal(sum(each[name] for each in alone), value)


@pytest.mark.slow
@pytest.mark.parametrize("float64", [True, False])
def test_units_of_one_row_have_the_bits_of_rows(monkeypatch, float64):
  platforms = ("cpu",) if float64 else ()
  monkeypatch.setattr(unit_norm_rows, "FLOAT64_PLATFORMS", platforms)
  block = random_block(50, D, K, dtype="float16")
  found = sums(with_units(block, np.random.default_rng(0).permutation(50)))
  secret = class_moments(rows_of(block))
  np.testing.assert_array_equal(found["moment"], secret.secret_moment)
  np.testing.assert_array_equal(found["class sums"], secret.secret_class_sums)
  np.testing.assert_array_equal(
    found["class counts"], secret.secret_class_counts * B
  )
  gains = count_gains(steps_of(block), KERNELS)
  np.testing.assert_array_equal(found["gains"], gains.secret_gains * B)
  for name, given in STEPS.items():
    given = dict(given)
    loss = given.pop("loss", SOFTMAX)
    plain = clipped_gradient(steps_of(block, **given), KERNEL, 0.1, loss=loss)
    np.testing.assert_array_equal(found[name], plain.secret_sum)


@pytest.mark.slow
def test_same_bits_in_any_order_block_size_and_on_any_devices():
  rng = np.random.default_rng(8)
  block = with_units(random_block(90, D, K), np.arange(90) % 11)
  shuffled = block[rng.permutation(90)]
  expected = sums(block)
  found = sums(shuffled, 8, (7, 30, 1))
  for name in MOST:
    np.testing.assert_array_equal(found[name], expected[name])


def test_a_batch_takes_whole_units():
  """A unit of several classes is in a step with all of them, or not at all."""
  block = with_units(random_block(60, D, K), np.arange(60) % 5)
  steps = steps_of(block, has_units=True)
  whole = clipped_gradient(steps, KERNEL, 0.1).secret_sum
  assert steps.secret_units == 5
  parts = [
    clipped_gradient(steps, KERNEL, 0.1, chosen=np.arange(5) == unit).secret_sum
    for unit in range(5)
  ]
  for unit, part in enumerate(parts):
    alone = gradient(block[np.arange(60) % 5 == unit])
    np.testing.assert_array_equal(part, alone)
  np.testing.assert_array_equal(sum(parts), whole)


def test_weights_of_a_unit_add_up_to_at_most_one():
  label = np.repeat([0, 1, 2], [5, 1, 1])
  block = with_units(make_block(np.ones((7, 2), np.float32), label), [4] * 7)
  (columns,) = mean_rows(in_blocks(block, (9,)), count_rows([block]), 2, None)
  assert columns[4].tolist() == [5 * B // 7, B // 7, B // 7]
  assert columns[2].tolist() == [0, 1, 2]
  np.testing.assert_allclose(columns[1], 1, rtol=1e-5)


def test_what_is_refused():
  block = with_units(random_block(40, D, K), np.arange(40) % 4)
  with pytest.raises(InputError, match="unit_id none"):
    sums(block.but(unit_id=None))
  with pytest.raises(InputError, match="clip the sum"):
    class_moments(rows_of(block))
  rows = rows_of(block, has_units=True)
  class_moments(rows)
  rows._read = lambda: iter([with_units(block, np.arange(40) % 4 + 1)])
  with pytest.raises(InputError, match="not those that were counted"):
    class_moments(rows)
  far = block.embedding.copy()
  far[7] = np.nan
  with pytest.raises(InputError, match=f"example_id={block.example_id[7]}"):
    sums(block.but(embedding=far))
