"""Affine maps of private rows: exact, and of no effect on rows of zeros."""

import math
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  SecretGradient,
  clipped_gradient,
  gradient_sensitivity,
)
from oneshot_dp.linear_dp.statistics.row_gradient import row_error
from tests.linear_dp.blocks import (
  Block,
  integers_of,
  make_block,
  random_block,
  rows_of,
)

K, D, P = 3, 7, 5


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  pass


def matrix_of(a_map: ReleasedMap) -> np.ndarray:
  assert a_map.matrix is not None
  return a_map.matrix


def centre_of(a_map: ReleasedMap) -> np.ndarray:
  assert a_map.centre is not None
  return a_map.centre


def random_map(kind: str) -> ReleasedMap:
  rng = np.random.default_rng(8)
  centre = rng.standard_normal(D) / 4
  matrix = rng.standard_normal((D, P))
  return ReleasedMap.of(
    None if kind == "centre" else matrix, None if kind == "matrix" else centre
  )


def random_kernel(a_map: ReleasedMap) -> np.ndarray:
  p = D if a_map.matrix is None else P
  return 4 * np.random.default_rng(3).standard_normal((p, K))


def gradient_of(
  block: Block, a_map: ReleasedMap | None, kernel: np.ndarray, **options: Any
) -> SecretGradient:
  return clipped_gradient(rows_of(block, **options), a_map, kernel, 0.5)


# The map itself.


@hypothesis.settings(max_examples=25)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  d=st.integers(1, 300),
  p=st.integers(1, 4),
  scale=st.floats(-150, 150).map(lambda e: 10.0**e),
  kind=st.sampled_from(["normal", "signs", "one", "uneven"]),
)
def test_a_map_is_of_integers_of_bounded_columns(seed, d, p, scale, kind):
  rng = np.random.default_rng(seed)
  matrix = rng.standard_normal((d, p)) * scale
  if kind == "signs":
    matrix = np.where(matrix > 0, scale, -scale)
  elif kind == "one":
    matrix[1:] = 0
  elif kind == "uneven":
    matrix *= 10.0 ** np.arange(0, -2 * p, -2)
  found = matrix_of(ReleasedMap.of(matrix))
  assert found.dtype == np.float64
  columns = [[int(x) for x in column] for column in found.T]
  np.testing.assert_array_equal(np.array(columns, float).T, found)
  lengths = [sum(x * x for x in column) for column in columns]
  assert max(lengths) <= 2**62
  assert max(lengths) >= (2**31 - 2 * math.sqrt(d)) ** 2
  # The nearest, up to one scale for all columns.
  longest = int(np.argmax(lengths))
  factor = np.linalg.norm(found[:, longest]) / np.linalg.norm(
    matrix[:, longest]
  )
  np.testing.assert_allclose(found, matrix * factor, rtol=1e-7, atol=0.51)


@hypothesis.settings(max_examples=25)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  d=st.integers(1, 2000),
  length=st.sampled_from([0.0, 1e-9, 0.3, 1.0, 1 + 1e-9, 7.0, 1e9, 1e150]),
  kind=st.sampled_from(["normal", "signs", "one"]),
)
def test_a_centre_is_of_integers_in_the_ball(seed, d, length, kind):
  """A noisy mean may be longer than any row: it is shortened, not refused."""
  rng = np.random.default_rng(seed)
  mean = rng.standard_normal(d)
  if kind == "signs":
    mean = np.sign(mean)
  elif kind == "one":
    mean[1:] = 0
  mean *= length / np.linalg.norm(mean)
  found = centre_of(ReleasedMap.of(None, mean))
  integers = [int(x) for x in found]
  assert integers == found.tolist()
  assert sum(x * x for x in integers) <= GRID_RADIUS**2
  # Where it was, within what rounding and the room for it make.
  expected = mean / max(1.0, length) * GRID_RADIUS
  assert np.linalg.norm(found - expected) <= 1.51 * math.sqrt(d)


@pytest.mark.parametrize("off", ["norm", "fraction", "nan", "inf"])
@pytest.mark.parametrize("part", ["matrix", "centre"])
def test_parts_that_would_not_be_exact_are_refused(part, off):
  limit = 2.0**31 if part == "matrix" else GRID_RADIUS
  entry = {"norm": limit, "fraction": 0.5, "nan": math.nan, "inf": math.inf}
  wrong = np.array([entry[off], 1.0 + 2**15])
  made: dict[str, Any] = (
    {"matrix": None, "centre": wrong}
    if part == "centre"
    else {"matrix": wrong[:, None]}
  )
  with pytest.raises(InputError, match="exact map must be of") as caught:
    ReleasedMap(**made)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", [2.0**31, -(2.0**31)])
def test_the_longest_parts_are_taken(limit):
  ReleasedMap(matrix=np.array([[limit], [0]]), centre=np.array([0, -(2.0**20)]))


@pytest.mark.parametrize("entry", [0.0, math.nan, math.inf])
def test_a_matrix_of_no_direction_is_refused(entry):
  with pytest.raises(InputError, match="longest column has norm"):
    ReleasedMap.of(np.full((D, P), entry))


@pytest.mark.parametrize("entry", [math.nan, math.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_centre_that_is_not_finite_is_refused(entry):
  with pytest.raises(InputError, match="exact map must be of integers"):
    ReleasedMap.of(None, np.full(D, entry))


# Exact products.


@pytest.mark.parametrize("d", [1, 7, 64, 1280])
@pytest.mark.parametrize("centred", [False, True])
def test_a_row_times_the_map_is_exact(d, centred):
  """The longest row along the longest column, where sums are largest.

  And the centre at its far side, where the difference is twice as long.
  """
  rng = np.random.default_rng(d)
  rows = rng.standard_normal((24, d)).astype(np.float32)
  rows[8:16] = np.sign(rows[8:16])
  integers = integers_of(make_block(rows, [0] * 24))
  for opposite in (0, 8, 16):
    direction = rows[opposite].astype(np.float64)
    centre = -direction / np.linalg.norm(direction) if centred else None
    matrix = np.concatenate(
      [rows[:12].T.astype(np.float64), rng.standard_normal((d, 4))], axis=1
    )
    matrix[:, -1] = direction
    matrix /= np.linalg.norm(matrix, axis=0)
    a_map = ReleasedMap.of(matrix, centre)
    y, wide = integers.astype(object), integers * 1.0
    if a_map.centre is not None:
      y = y - a_map.centre.astype(np.int64).astype(object)
      wide = wide - a_map.centre
    exact = y @ matrix_of(a_map).astype(np.int64).astype(object)
    assert max(abs(x) for x in exact.ravel()) > 2 ** (51 if centred else 50)
    with jax.enable_x64(True):
      found = np.asarray(jnp.matmul(wide, matrix_of(a_map)))
    assert (found.astype(np.int64).astype(object) == exact).all()
    # In any order: no sum of any of the products leaves what float64 holds.
    parts = np.abs(y)[:, :, None] * np.abs(
      matrix_of(a_map).astype(np.int64).astype(object)
    )[None] if d <= 64 else None  # fmt: skip
    if parts is not None:
      assert max(parts.sum(axis=1).ravel()) <= 2**53


def reference(
  block: Block, a_map: ReleasedMap, kernel: np.ndarray
) -> np.ndarray:
  """Σ g of the rows that are not zero; y in integers of Python."""
  u = integers_of(block)
  y = u.astype(object)
  if a_map.centre is not None:
    y = y - a_map.centre.astype(np.int64).astype(object)
  if a_map.matrix is not None:
    y = y @ a_map.matrix.astype(np.int64).astype(object)
  total = np.zeros(kernel.shape)
  for row, products, label in zip(u, y, block.label, strict=True):
    if not row.any():
      continue
    z = products.astype(np.float64)
    z /= np.linalg.norm(z)
    powers = np.exp(z @ kernel - (z @ kernel).max())
    residual = powers / powers.sum() - np.eye(K)[label]
    total += np.outer(z, residual * min(1, 0.5 / np.linalg.norm(residual)))
  return total


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "devices", "dtype"),
  [
    ("centre", 1, "float32"),
    ("centre", 4, "float16"),
    ("matrix", 1, "bfloat16"),
    ("both", 1, "float16"),
    ("both", 4, "float32"),
  ],
)
def test_gradients_of_mapped_rows(kind, devices, dtype):
  block, a_map = random_block(45, D, K, dtype=dtype), random_map(kind)
  kernel = random_kernel(a_map)
  found = gradient_of(block, a_map, kernel, devices=devices)
  expected = reference(block, a_map, kernel)
  # The reference errs no less than a row may.
  off = np.linalg.norm(found.secret_sum - expected)
  assert off <= 2 * found.error
  assert found.error < 1e-10
  assert np.linalg.norm(expected) > 1


def test_the_identity():
  """No map, one of nothing, and a centre in the origin: all the same."""
  block = random_block(45, D, K)
  kernel = 4 * np.random.default_rng(3).standard_normal((D, K))
  maps = [None, ReleasedMap.of(None), ReleasedMap.of(None, np.zeros(D))]
  first, *others = [gradient_of(block, each, kernel) for each in maps]
  for other in others:
    np.testing.assert_array_equal(other.secret_sum, first.secret_sum)


# Rows of zeros, which padding is made of.

CENTRED = ["centre", "both"]


def with_zeros(block: Block, places: np.ndarray, label=0) -> Block:
  """The same rows, and rows of zeros between them."""
  n = len(block) + len(places)
  rows = np.zeros((n, block.embedding.shape[1]), block.embedding.dtype)
  labels = np.full(n, label)
  others = np.setdiff1d(np.arange(n), places)
  rows[others], labels[others] = block.embedding, block.label
  return make_block(rows, labels)


@pytest.mark.parametrize("length", [1e-45, 3e-34])
def test_rows_too_short_for_a_factor_add_nothing_either(length):
  a_map = random_map("both")
  rows = np.full((5, D), length, np.float32)
  assert rows.any()
  short = make_block(rows, [1] * 5)
  found = gradient_of(short, a_map, random_kernel(a_map))
  assert not found.secret_sum.any()


@hypothesis.settings(
  max_examples=8,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  kind=st.sampled_from(CENTRED),
  places=st.sets(st.integers(0, 60), max_size=30),
  label=st.integers(0, K - 1),
  devices=st.sampled_from([1, 4]),
)
def test_rows_of_zeros_between_the_others(kind, places, label, devices):
  """Other chunks, and so other roundings, but no more."""
  count = len(places)
  block, a_map = random_block(61 - count, D, K), random_map(kind)
  kernel = random_kernel(a_map)
  where = np.array(sorted(places), int)
  found = gradient_of(
    with_zeros(block, where, label), a_map, kernel, devices=devices
  )
  alone = gradient_of(block, a_map, kernel)
  off = np.linalg.norm(found.secret_sum - alone.secret_sum)
  assert off <= found.error + alone.error < 1e-9


@pytest.mark.parametrize(("kind", "devices"), [("centre", 8), ("both", 1)])
def test_padding_adds_nothing(monkeypatch, kind, devices):
  """Chunks that 48 rows fill, and such that they leave mostly empty."""
  block, a_map = random_block(48, D, K), random_map(kind)
  kernel = random_kernel(a_map)
  found = {}
  for rows in (48 // devices, 1000):
    for module in (unit_norm_rows, gradient_sum):
      monkeypatch.setattr(module, "ROWS_PER_DEVICE", rows)
    found[rows] = gradient_of(block, a_map, kernel, devices=devices)
  full, padded = found.values()
  off = np.linalg.norm(full.secret_sum - padded.secret_sum)
  assert off <= full.error + padded.error < 1e-9


@pytest.mark.parametrize("devices", [1, 8])
def test_rows_that_were_not_chosen_add_nothing(devices):
  block, a_map = random_block(61, D, K), random_map("both")
  kernel = random_kernel(a_map)
  chosen = np.random.default_rng(0).random(61) < 0.3
  found = clipped_gradient(
    rows_of(block, devices), a_map, kernel, 0.5, chosen=chosen
  )
  expected = reference(block[chosen], a_map, kernel)
  assert np.linalg.norm(found.secret_sum - expected) <= 2 * found.error


def test_a_row_in_the_centre_adds_nothing():
  """It has no direction; and nothing is NaN."""
  row = np.array([[3.0, 4.0]], np.float32)
  centre = integers_of(make_block(row, [0]))[0].astype(np.float64)
  a_map = ReleasedMap(matrix=None, centre=centre)
  kernel = np.random.default_rng(3).standard_normal((2, K))
  assert not gradient_of(make_block(row, [0]), a_map, kernel).secret_sum.any()
  beside = np.array([[3.0, 4.0], [3.0, 4.001]], np.float32)
  found = gradient_of(make_block(beside, [0, 1]), a_map, kernel)
  expected = reference(make_block(beside[1:], [1]), a_map, kernel)
  np.testing.assert_allclose(found.secret_sum, expected, atol=1e-12)


# What a row can do.


@hypothesis.settings(
  max_examples=8,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  centre=st.sampled_from(["anywhere", "long", "near the row", "opposite"]),
  relation=st.sampled_from(list(NeighboringRelation)),
)
def test_a_row_moves_the_sum_by_at_most_the_sensitivity(seed, centre, relation):
  rng = np.random.default_rng(seed)
  one = random_block(20, D, K, seed=seed)
  row = one.embedding[0] / np.linalg.norm(one.embedding[0].astype(float))
  mean = {
    "anywhere": rng.standard_normal(D) / 5,
    "long": rng.standard_normal(D) * 100,
    "near the row": row + 1e-6 * rng.standard_normal(D),
    "opposite": -row,
  }[centre]
  a_map = ReleasedMap.of(rng.standard_normal((D, P)), mean.astype(np.float64))
  kernel = 4 * rng.standard_normal((P, K))
  whole = gradient_of(one, a_map, kernel)
  other = one[1:]
  if relation is NeighboringRelation.REPLACE_SPECIAL:
    other = with_zeros(other, np.array([0]))
  elif relation is NeighboringRelation.REPLACE_ONE:
    rows = one.embedding.copy()
    rows[0] = -rows[0]
    other = make_block(rows, (one.label + (np.arange(20) == 0)) % K)
  moved = whole.secret_sum - gradient_of(other, a_map, kernel).secret_sum
  in_steps = np.linalg.norm(moved) / (0.5 / GRID_RADIUS)
  assert in_steps <= gradient_sensitivity(
    relation, clip_norm=0.5, error=whole.error, entries=P * K
  )
  assert whole.error >= row_error(kernel, 0.5)
