import itertools
import math

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.rows.integers import (
  GRID_RADIUS,
  integer_rows,
  row_scale,
)
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from tests.linear_dp import blocks
from tests.linear_dp.blocks import (
  DTYPES,
  Block,
  Reader,
  in_blocks,
  make_block,
  random_block,
  with_row,
)

K, D = 4, 6


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  pass


def rows_of(block: Block, devices=1, read=None, **changes) -> SecretRows:
  rows = blocks.rows_of(block, devices, num_classes=K, **changes)
  rows._read = read or Reader(block)
  return rows


def one_pass(rows: SecretRows) -> list[tuple[np.ndarray, ...]]:
  return [
    tuple(np.asarray(column) for column in chunk if column is not None)
    for chunk in rows.secret_chunks()
  ]


def integers_of(rows: SecretRows) -> list[list[int]]:
  """u of every row, padding too, in integers of Python."""
  found = []
  for embedding, scale, *_ in rows.secret_chunks():
    with jax.enable_x64(True):
      u = np.asarray(integer_rows(embedding, scale))
    found += [[int(x) for x in row] for row in u]
  return found


def squared(row: list[int]) -> int:
  return sum(x * x for x in row)


def rows_of_any_length(d: int, dtype: str) -> Block:
  """From subnormal numbers to nearly infinite ones, in every direction."""
  rng = np.random.default_rng(d)
  limits = {"float16": (-7, 4), "float32": (-44, 37), "bfloat16": (-39, 37)}
  rows = rng.standard_normal((300, d))
  rows[100:200] = np.sign(rows[100:200])  # all coordinates alike
  rows[200:250] = np.eye(d)[rng.integers(0, d, 50)]
  rows /= np.linalg.norm(rows, axis=1, keepdims=True)
  rows *= 10.0 ** rng.uniform(*limits[dtype], 300)[:, None]
  rows[250:] = 0
  return make_block(rows.astype(DTYPES[dtype]), rng.integers(0, K, 300))


@pytest.mark.parametrize(
  ("d", "dtype"), [(1, "bfloat16"), (3, "float32"), (192, "float16")]
)
def test_every_row_is_a_direction_of_norm_b(d, dtype):
  block = rows_of_any_length(d, dtype)
  found = integers_of(rows_of(block))
  assert len(found) == 320  # 300, padded to a multiple of 32
  floor = GRID_RADIUS / float(np.finfo(np.float32).max)
  seen = 0
  for x, norm, u in zip(
    block.embedding.astype(np.float64),
    block.embedding_norm.astype(np.float64),
    found[:300],
    strict=True,
  ):
    assert squared(u) <= GRID_RADIUS**2
    if norm <= floor:
      assert not any(u)
    elif norm > 1e-30:  # stored well enough to have a direction
      seen += 1
      radius = GRID_RADIUS - math.sqrt(d) / 2 - 1
      off = np.array(u) - x * (radius / np.linalg.norm(x))
      assert np.linalg.norm(off) <= math.sqrt(d) / 2 + 0.25
      assert squared(u) >= (GRID_RADIUS - math.sqrt(d) - 1.25) ** 2
  assert seen > 150
  assert not any(map(any, found[250:]))


@hypothesis.settings(
  max_examples=20,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  seed=st.integers(0, 2**32),
  dtype=st.sampled_from(sorted(DTYPES)),
  d=st.sampled_from([1, 6]),
  factor=st.one_of(
    st.sampled_from([0.0, 1.0, 1 - 2**-20, 1 + 2**-20, 2.0**-149]),
    st.floats(-40, 38).map(lambda e: 10.0**e),
    st.floats(0.999999, 1.000001),
  ),
)
def test_no_stored_norm_lets_a_row_leave_the_ball(seed, dtype, d, factor):
  block = random_block(16, d, K, seed=seed, dtype=dtype)
  with np.errstate(over="ignore"):
    lie = (block.embedding_norm * np.float64(factor)).astype(np.float32)
  lie = np.where(np.arange(16) == 5, lie, block.embedding_norm)
  rows = rows_of(block.but(embedding_norm=lie))
  try:
    found = integers_of(rows)
  except InputError:
    assert factor < 1 or not np.isfinite(lie[5])
    with pytest.raises(InputError, match=r"^example_id=1015: "):
      one_pass(rows)
    return
  assert all(squared(u) <= GRID_RADIUS**2 for u in found)
  if factor >= 1.001:
    most = (GRID_RADIUS / factor + math.sqrt(d)) ** 2
    assert squared(found[5]) <= most


@pytest.mark.parametrize("value", [np.nan, -np.inf, 3e38])
@pytest.mark.parametrize("norm", [None, 0.0, 1e-40])
def test_an_embedding_that_is_not_finite_is_refused(value, norm):
  """Also where its norm would give it the scale 0, which hides a number."""
  block = random_block(40, D, K)
  embedding, norms = block.embedding.copy(), block.embedding_norm.copy()
  embedding[17, 3] = value
  norms[17] = norms[17] if norm is None else norm
  block = block.but(embedding=embedding, embedding_norm=norms)
  if np.isfinite(value) and norm in (0.0, 1e-40):
    assert not any(integers_of(rows_of(block))[17])
    return
  with pytest.raises(InputError, match="example_id=1051: its embedding is not"):
    one_pass(rows_of(block))


@pytest.mark.parametrize(
  "beyond", [(GRID_RADIUS + 1, 0), (GRID_RADIUS, 1), (GRID_RADIUS, 0.75)]
)
@pytest.mark.parametrize(
  ("devices", "platforms"), [(1, ("cpu",)), (2, ("cpu",)), (1, ())]
)
def test_the_edge_of_the_ball_is_checked_in_integers(
  beyond, devices, platforms, monkeypatch
):
  """(B, 0) is the longest row. With scale 1 embeddings are their integers."""
  monkeypatch.setattr(secret_rows, "FLOAT64_PLATFORMS", platforms)
  monkeypatch.setattr(
    secret_rows, "row_scale", lambda norm, d: np.ones_like(norm)
  )
  rows = np.zeros((20, 2), np.float32)
  rows[19] = GRID_RADIUS, 0
  found = integers_of(rows_of(make_block(rows, [0] * 20), devices))
  assert found[19] == [GRID_RADIUS, 0]
  rows[18] = beyond
  with pytest.raises(InputError, match="example_id=1054: "):
    one_pass(rows_of(make_block(rows, [0] * 20), devices))


@pytest.mark.parametrize(
  ("devices", "sizes"), [(1, (1,)), (2, (7, 0, 256)), (8, (7, 0, 256))]
)
def test_chunks_hold_every_row_once_and_padding_of_zeros(devices, sizes):
  block = random_block(203, D, K, dtype="bfloat16")
  rows = rows_of(block, devices, Reader(block, sizes=sizes))
  chunks = one_pass(rows)
  size = 32 * devices
  assert {tuple(c.shape for c in chunk) for chunk in chunks} == {
    ((size, D), (size,), (size,), (size,))
  }
  embedding, scale, length, label = (
    np.concatenate(c) for c in zip(*chunks, strict=True)
  )
  assert len(label) == -(-203 // size) * size
  assert embedding.dtype == block.embedding.dtype
  np.testing.assert_array_equal(embedding[:203], block.embedding)
  np.testing.assert_array_equal(label[:203], block.label)
  np.testing.assert_array_equal(scale[:203], row_scale(block.embedding_norm, D))
  assert scale[:203].all()
  assert not scale[203:].any()
  assert (length[:203] == 1).all()
  assert not embedding[203:].any()
  assert len(next(rows.secret_chunks())[0].sharding.device_set) == devices


@pytest.mark.parametrize(
  ("n", "devices", "size", "num_classes"),
  [
    (3, 8, 64, K),
    (130, 2, 128, K),
    (20_000, 1, 6720, K),
    (3_000, 1, 1024, 999),
  ],
)
def test_few_rows_are_padded_by_few(n, devices, size, num_classes, monkeypatch):
  monkeypatch.setattr(secret_rows, "ROWS_PER_DEVICE", 8192)
  block = random_block(n, 2, K)
  rows = blocks.rows_of(block, devices, num_classes=num_classes)
  (first, *_) = one_pass(rows)
  assert len(first[2]) == size * devices


def test_all_local_devices_by_default():
  rows = rows_of(random_block(3, D, K), devices=0)
  assert rows.mesh.size == len(jax.local_devices()) == 8


def assert_same(passes: list[list[tuple[np.ndarray, ...]]]):
  for one, other in itertools.pairwise(passes):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
      for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("max_norm", [0.37, 1024.0])
def test_norms_up_to_r_go_beside_the_rows(max_norm):
  block = random_block(100, D, K)
  (chunk,) = [
    [np.asarray(column) for column in chunk]
    for chunk in rows_of(block[:32], max_norm=max_norm).secret_chunks()
  ]
  norm = block.embedding_norm[:32]
  np.testing.assert_array_equal(
    chunk[2], np.minimum(norm, np.float32(max_norm))
  )
  np.testing.assert_array_equal(chunk[1], row_scale(norm, D))


def test_other_rows_in_the_place_of_the_first_are_refused():
  block = random_block(100, D, K)
  swap = np.arange(100)
  swap[[3, 90]] = 90, 3
  rows = rows_of(block, read=Reader(block, block[swap]))
  one_pass(rows)
  with pytest.raises(InputError, match="in another order") as caught:
    one_pass(rows)
  assert "\n" not in str(caught.value)
  # The first order is still the one.
  again = rows_of(block, read=Reader(block, block[swap], block))
  assert one_pass(again)
  with pytest.raises(InputError):
    one_pass(again)
  assert one_pass(again)


def test_each_reading_is_checked():
  block = random_block(100, D, K)
  for second, said in (
    (block[:99], "gave 99 rows"),
    (with_row(block, 50, example_id=1009), "example_id=1009 comes more than"),
    (
      with_row(block, 50, embedding=2 * block.embedding[50]),
      "example_id=1150: its embedding",
    ),
  ):
    rows = rows_of(block, read=Reader(block, second))
    one_pass(rows)
    with pytest.raises(InputError, match=said):
      one_pass(rows)


def test_a_reader_may_use_its_memory_again():
  block = random_block(100, D, K)
  memory = block[:20].but(
    **{
      name: getattr(block, name)[:20].copy()
      for name in ("embedding", "embedding_norm", "label", "example_id")
    }
  )

  def read():
    for part in in_blocks(block, (20,)):
      for name in ("embedding", "embedding_norm", "label", "example_id"):
        getattr(memory, name)[:] = getattr(part, name)
      yield memory
      memory.embedding[:] = np.nan

  rows = rows_of(block, read=read)
  assert_same([one_pass(rows), one_pass(rows), one_pass(rows_of(block))])
