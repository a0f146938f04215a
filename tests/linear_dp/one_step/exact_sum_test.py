import math
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.one_step import device_sums as class_sums
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from tests.linear_dp.blocks import (
  DTYPES,
  in_blocks,
  make_block,
  random_block,
  with_row,
)

K, D = 4, 6


def make_grid(**changes):
  fields: dict[str, Any] = {
    "num_classes": K,
    "feature_dim": D,
    "train_bias": True,
  }
  return ClippedGradientGrid(**fields | changes)


def sum_of(block, grid=None, sizes=(256,), devices=1, **changes):
  options: dict[str, Any] = {"num_examples": len(block)} | changes
  return exact_clipped_sum(
    in_blocks(block, sizes),
    grid or make_grid(),
    devices=jax.local_devices()[:devices],
    **options,
  )


def integer_sums(block, grid):
  """The same sums by plain numpy, in int64 from the start."""
  scale = grid.row_scale(block.embedding_norm)
  rows = np.rint(block.embedding.astype(np.float32) * scale[:, None])
  if grid.train_bias:
    rows = np.concatenate([rows, np.rint(scale)[:, None]], axis=1)
  sums = np.zeros((grid.num_classes, grid.row_dim), np.int64)
  np.add.at(sums, block.label, rows.astype(np.int64))
  return sums


@pytest.fixture(params=["of a CPU", "of a TPU or GPU"])
def either_form(request, monkeypatch):
  """The device's own program, and the one that other devices run."""
  if request.param != "of a CPU":
    monkeypatch.setattr(class_sums, "_FLOAT64_PLATFORMS", ())


@pytest.fixture
def small_chunks(monkeypatch):
  """Chunks of 16 rows a device, carried every few: many for little work."""
  monkeypatch.setattr(class_sums, "_ROWS_PER_DEVICE", 16)
  monkeypatch.setattr(class_sums, "_ROWS_PER_TILE", 8)
  monkeypatch.setattr(class_sums, "_MAX_ROWS_IN_INT32", 50)


@pytest.mark.parametrize(
  ("dtype", "train_bias"),
  [("float16", False), ("bfloat16", True), ("float32", True)],
)
def test_sum_of_integers(either_form, dtype, train_bias):
  grid = make_grid(train_bias=train_bias)
  block = random_block(1300, D, K, dtype=dtype)
  secret = sum_of(block, grid)
  assert secret.secret_class_sums.dtype == np.int64
  expected = integer_sums(block, grid)
  np.testing.assert_array_equal(secret.secret_class_sums, expected)
  assert secret.grid == grid
  assert secret.num_examples == 1300


@pytest.mark.parametrize(
  ("devices", "small"), [(1, True), (2, False), (8, True)]
)
def test_same_bits_on_any_number_of_devices(
  either_form, devices, small, request
):
  if small:
    request.getfixturevalue("small_chunks")
  block = random_block(1111, D, K)  # a multiple of nothing here
  expected = integer_sums(block, make_grid())
  for size in (1, 7, 256, 700):
    found = sum_of(block, sizes=[size], devices=devices).secret_class_sums
    np.testing.assert_array_equal(found, expected)


def test_all_local_devices_by_default(small_chunks):
  block = random_block(500, D, K)
  found = exact_clipped_sum([block], make_grid(), num_examples=500)
  expected = integer_sums(block, make_grid())
  np.testing.assert_array_equal(found.secret_class_sums, expected)


@hypothesis.settings(
  max_examples=20,
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  n=st.integers(1, 700),
  sizes=st.lists(st.integers(1, 700), min_size=1, max_size=5),
  order=st.integers(0, 2**32),
  devices=st.sampled_from([1, 8]),
)
def test_same_bits_in_any_order_and_block_size(
  small_chunks, n, sizes, order, devices
):
  block = random_block(n, D, K, seed=n)
  shuffled = block[np.random.default_rng(order).permutation(n)]
  found = sum_of(shuffled, sizes=sizes, devices=devices)
  expected = integer_sums(block, make_grid())
  np.testing.assert_array_equal(found.secret_class_sums, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("train_bias", "initial_bias"), [(False, -10.0), (True, -1.0)]
)
def test_equals_the_clipped_gradient_of_jax_privacy(train_bias, initial_bias):
  """jax-privacy differentiates the loss; nothing here knows its closed form."""
  n = 300
  grid = make_grid(train_bias=train_bias, initial_bias=initial_bias)
  block = random_block(n, D, K, seed=3)

  def loss(params, x, y):
    bias = params.get("bias", jnp.full(K, initial_bias))
    target = jax.nn.one_hot(y, K, dtype=x.dtype)
    logits = x @ params["kernel"] + bias
    return optax.sigmoid_binary_cross_entropy(logits, target).sum()

  with jax.enable_x64(True):
    params = {"kernel": jnp.zeros((D, K))}
    if train_bias:
      params["bias"] = jnp.full(K, initial_bias)
    clipped = jax_privacy.clipped_grad(
      loss,
      l2_clip_norm=1.0,
      batch_argnums=(1, 2),
      keep_batch_dim=False,
      return_grad_norms=True,
    )
    gradient, aux = jax.jit(clipped)(
      params, block.embedding.astype(np.float64), block.label
    )
  expected = np.asarray(gradient["kernel"]).T
  if train_bias:
    bias = np.asarray(gradient["bias"])
    expected = np.concatenate([expected, bias[:, None]], axis=1)
  share_clipped = np.mean(np.asarray(aux.grad_norms) > 1)
  assert share_clipped > 0.2
  assert share_clipped < 0.8 or train_bias

  sums = sum_of(block, grid).secret_class_sums
  found = grid.initial_probability * sums.sum(axis=0) - sums
  # In steps, of one row: rint √D/2; clipping early √D/2 + 1; float32 3/16.
  of_a_row = (math.sqrt(grid.row_dim) + 1.25) * grid.residual_norm
  difference = np.linalg.norm(found * grid.step - expected)
  assert difference <= n * of_a_row * grid.step
  assert difference < 1e-4 * np.linalg.norm(expected)


def one_hot_rows(n):
  """Every row the longest that there can be, along one axis, in one class."""
  block = make_block(np.full((n, 1), 60000, np.float16), [1] * n)
  grid = ClippedGradientGrid(num_classes=2, feature_dim=1)
  scale = grid.row_scale(block.embedding_norm[:1])
  length = int(np.rint(np.float32(60000) * scale)[0])
  assert length > GRID_RADIUS - 3
  return block, grid, length


# One device too: two halve the rows that add up in one int32.
@pytest.mark.parametrize("devices", [1, 2])
def test_one_class_never_overflows_int32(either_form, devices):
  n = 5000
  block, grid, length = one_hot_rows(n)
  assert n * length > 2 * 2**31
  found = sum_of(block, grid, devices=devices).secret_class_sums
  assert found.tolist() == [[0], [n * length]]


def test_rows_too_wide_to_be_checked_are_refused():
  grid = make_grid(feature_dim=66_311)
  with pytest.raises(InputError, match="feature_dim=66311 is more than 66310"):
    exact_clipped_sum([], grid, num_examples=0)


def test_int32_is_left_in_time():
  assert class_sums._MAX_ROWS_IN_INT32 * GRID_RADIUS < 2**31
  assert class_sums._ROWS_PER_DEVICE <= class_sums._MAX_ROWS_IN_INT32
  assert class_sums._ROWS_PER_DEVICE % class_sums._ROWS_PER_TILE == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  ("d", "dtype"), [(1, "float32"), (192, "bfloat16"), (1280, "float16")]
)
def test_honest_rows_are_never_refused(either_form, d, dtype):
  """Long rows and rows at the clip norm, on the device's own arithmetic."""
  rng = np.random.default_rng(d)
  rows = rng.standard_normal((400, d))
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  rows[:200] *= 1 + np.linspace(-1e-3, 1e-3, 200)[:, None]
  rows[200:] *= 300
  block = make_block(rows.astype(DTYPES[dtype]), rng.integers(0, K, 400))
  grid = make_grid(feature_dim=d, train_bias=d != 192)
  found = sum_of(block, grid).secret_class_sums
  np.testing.assert_array_equal(found, integer_sums(block, grid))


@pytest.mark.parametrize("train_bias", [False, True])
@pytest.mark.parametrize("norm", [0.0, 1e-9])
def test_zero_rows_add_nothing_and_short_ones_their_bias(
  either_form, train_bias, norm
):
  rows = np.eye(1, D, dtype=np.float32).repeat(9, axis=0) * np.float32(norm)
  block = make_block(rows, np.full(9, 2))
  found = sum_of(block, make_grid(train_bias=train_bias)).secret_class_sums
  assert not found[:, :D].any()
  assert np.count_nonzero(found) == (train_bias and norm > 0)
  if train_bias and norm:
    # Its gradient has norm ‖r‖, just below C.
    units = GRID_RADIUS * make_grid().residual_norm
    assert found[2, D] == 9 * round(units)


# Long enough to be clipped, exact in float16, and recognisable if printed.
LONG = 7656.0


def rows_to_refuse():
  block = make_block(np.full((40, D), LONG, np.float32), [K - 1] * 40)
  nan, inf = np.nan, np.inf
  one_nan = np.where(np.arange(D) == 4, nan, LONG)
  yield "embedding nan", with_row(block, 17, embedding=one_nan)
  yield "embedding inf", with_row(block, 17, embedding=inf)
  yield "embedding -inf", with_row(block, 17, embedding=-inf)
  short = block.embedding_norm[17]
  for factor in (1 - 1e-5, 0.5, 1e-3, 1e-30):
    yield f"norm * {factor}", with_row(block, 17, embedding_norm=short * factor)
  yield "label", with_row(block, 17, label=K)
  yield "huge", with_row(block, 17, embedding=3e38, embedding_norm=1e-3)


REFUSED = dict(rows_to_refuse())


@pytest.mark.parametrize("case", sorted(REFUSED))
@pytest.mark.parametrize(
  ("train_bias", "dtype"), [(False, "float32"), (True, "float16")]
)
def test_a_bad_row_is_refused_by_its_id(either_form, case, train_bias, dtype):
  block = REFUSED[case]
  with np.errstate(over="ignore"):
    block = block.but(embedding=block.embedding.astype(dtype))
  with pytest.raises(InputError, match="example_id=1051: ") as caught:
    sum_of(block, make_grid(train_bias=train_bias), sizes=[16])
  message = str(caught.value)
  assert "\n" not in message
  for secret in ("7656", "1e-3", "3e+38", "label=", "-1"):
    assert secret not in message
  assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize("beyond", [[1 + 2.0**-20, 0.0], [1.0, 2.0**-20]])
def test_the_edge_of_the_ball_is_checked_in_integers(either_form, beyond):
  """(B, 0) is the longest row; neither (B + 1, 0) nor (B, 1) may enter.

  The squares of the last differ in the forty-first bit.
  """
  grid = ClippedGradientGrid(num_classes=2, feature_dim=2, initial_bias=-700.0)
  block = make_block(np.array([[1, 0], beyond], np.float32), [0, 1]).but(
    embedding_norm=np.array([0.5, 0.5], np.float32)  # too small: no clipping
  )
  sums = sum_of(block[:1], grid).secret_class_sums
  assert sums.tolist() == [[GRID_RADIUS, 0], [0, 0]]
  with pytest.raises(InputError, match="example_id=1003: "):
    sum_of(block, grid)


def test_the_bias_counts_in_the_norm_of_a_row(either_form):
  """The features alone would fit, and so would the bias."""
  block = make_block(np.full((1, D), 0.9 / math.sqrt(D), np.float32), [0])
  block = block.but(embedding_norm=np.full(1, 1e-20, np.float32))
  sum_of(block, make_grid(train_bias=False))
  with pytest.raises(InputError, match="longer than its embedding_norm"):
    sum_of(block, make_grid(train_bias=True))
  # No coordinate is out of range; only their squares together are.
  block = make_block(np.full((1, D), 100, np.float32), [0])
  short = block.but(embedding_norm=block.embedding_norm * np.float32(0.9999))
  for train_bias in (False, True):
    with pytest.raises(InputError, match="longer than its embedding_norm"):
      sum_of(short, make_grid(train_bias=train_bias))


def test_a_norm_too_large_only_makes_the_row_count_for_less():
  block = random_block(10, D, K)
  large = block.but(embedding_norm=block.embedding_norm * 1e6)
  found = sum_of(large).secret_class_sums
  assert np.abs(found[:, :D]).max() < 20


def test_a_row_that_comes_twice_is_refused():
  """As in every pass: `rows/block_test.py` has all else that is."""
  block = random_block(40, D, K)
  ids = block.example_id.copy()
  ids[35] = ids[5]
  with pytest.raises(InputError, match="example_id=1015 comes more than once"):
    sum_of(block.but(example_id=ids), sizes=[8])


def test_blocks_of_two_dtypes_are_refused():
  first, second = (random_block(4, D, K, dtype="float16") for _ in range(2))
  wider = second.but(
    embedding=second.embedding.astype(np.float32),
    example_id=second.example_id + 100,
  )
  with pytest.raises(InputError, match="Blocks of float16 and float32"):
    exact_clipped_sum([first, wider], make_grid(), num_examples=8)
