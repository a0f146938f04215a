from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import (
  MAX_ROWS,
  SecretClassMoments,
  class_moments,
)
from tests.linear_dp.blocks import (
  Block,
  integers_of,
  make_block,
  random_block,
  rows_of,
)

K, D = 4, 6


def moments_of(block: Block, *args: Any, **changes: Any) -> SecretClassMoments:
  return class_moments(rows_of(block, *args, **changes))


def check_exact(secret: SecretClassMoments, block: Block) -> None:
  """Against numpy, row by row, in integers without bounds."""
  u = integers_of(block).astype(object)
  sums = np.zeros((K, u.shape[1]), object)
  counts = [0] * K
  for row, label in zip(u, block.label, strict=True):
    sums[label] += row
    counts[label] += bool(any(row))
  assert secret.num_examples == len(block)
  for found, expected in [
    (secret.secret_moment, u.T @ u),
    (secret.secret_class_sums, sums),
    (secret.secret_total, u.sum(axis=0)),
    (secret.secret_class_counts, counts),
  ]:
    assert found.dtype == np.int64
    assert found.tolist() == np.asarray(expected, object).tolist()


@pytest.mark.parametrize(
  ("dtype", "d"), [("float16", 1), ("bfloat16", D), ("float32", 40)]
)
def test_sums_of_integers(dtype, d):
  block = random_block(500, d, K, dtype=dtype)
  check_exact(moments_of(block), block)


@pytest.mark.slow
@hypothesis.settings(
  max_examples=8,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  n=st.integers(1, 300),
  sizes=st.lists(st.integers(1, 300), min_size=1, max_size=5),
  order=st.integers(0, 2**32),
  devices=st.sampled_from([1, 8]),
  float64=st.booleans(),
)
def test_same_bits_in_any_order_block_size_and_on_any_devices(
  small_chunks, monkeypatch, n, sizes, order, devices, float64
):
  block = random_block(n, D, K, seed=n)
  shuffled = block[np.random.default_rng(order).permutation(n)]
  with monkeypatch.context() as patch:
    platforms = ("cpu",) if float64 else ()
    patch.setattr(unit_norm_rows, "FLOAT64_PLATFORMS", platforms)
    check_exact(moments_of(shuffled, devices, sizes), block)


def test_full_chunks_of_the_longest_rows_of_one_class_are_exact():
  assert unit_norm_rows.ROWS_PER_DEVICE * GRID_RADIUS**2 <= 2**53
  alike = make_block(np.full((20_000, 1), 60000, np.float16), [1] * 20_000)
  secret = moments_of(alike)
  longest = GRID_RADIUS - 2
  assert secret.secret_moment.item() == 20_000 * longest**2
  assert secret.secret_class_sums.tolist() == [
    *([0], [20_000 * longest], [0], [0])
  ]
  assert secret.secret_class_counts.tolist() == [0, 20_000, 0, 0]


def test_int64_is_left_in_time():
  assert MAX_ROWS * GRID_RADIUS**2 < 2**63

  def read():
    raise AssertionError("was read")

  block = random_block(3, D, K)
  for n, error in [(MAX_ROWS + 1, InputError), (MAX_ROWS, AssertionError)]:
    rows = rows_of(block, num_examples=n)
    rows._read = read
    with pytest.raises(error, match=r"8388608 rows are more|was read"):
      class_moments(rows)
