"""Rows behind a released map: of integers, and of no effect where zero."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows import unit_norm_rows
from oneshot_dp.linear_dp.statistics import step_rows
from oneshot_dp.linear_dp.statistics.exact_map import (
  STEP_RADIUS,
  ReleasedMap,
)
from oneshot_dp.linear_dp.statistics.step_rows import StepRows
from tests.linear_dp.blocks import (
  DTYPES,
  Block,
  Reader,
  make_block,
  random_block,
  rows_of,
  steps_of,
)

D, P = 6, 3


@pytest.fixture(autouse=True)
def _small_chunks(small_chunks):
  pass


def maps() -> dict[str, ReleasedMap | None]:
  rng = np.random.default_rng(8)
  centre, matrix = rng.standard_normal(D) / 6, rng.standard_normal((D, P))
  return {
    "none": None,
    "centre": ReleasedMap.of(None, centre),
    "matrix": ReleasedMap.of(matrix),
    "both": ReleasedMap.of(matrix, centre),
    "uneven": ReleasedMap.of(matrix * 10.0 ** np.arange(0, -P, -1), centre),
  }


MAPS = maps()


def z_of(rows: StepRows, chosen: np.ndarray | None = None) -> np.ndarray:
  """z of all rows, padding behind it cut off."""
  found = [np.asarray(c.row) for c in rows.secret_chunks(chosen)]
  if not found:
    return np.zeros((0, D))
  count = rows.num_examples if chosen is None else chosen.sum()
  whole = np.concatenate(found)
  assert whole.dtype == np.int16
  assert not whole[count:].any()
  return whole[:count]


def real_y(block: Block, a_map: ReleasedMap | None) -> np.ndarray:
  """Rows of norm 1 behind the map, in float64."""
  y = block.embedding.astype(np.float64)
  y /= np.linalg.norm(y, axis=1, keepdims=True)
  if a_map is not None and a_map.real_centre is not None:
    y = y - a_map.real_centre
  return y if a_map is None or a_map.matrix is None else y @ a_map.matrix


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("kind", MAPS)
def test_z_is_the_direction_on_its_grid(kind, dtype):
  block, a_map = random_block(300, D, 3, dtype=dtype), MAPS[kind]
  found = z_of(steps_of(block, a_map=a_map)).astype(int)
  assert (found**2).sum(axis=1).max() <= STEP_RADIUS**2
  y = real_y(block, a_map)
  norm = np.linalg.norm(y, axis=1)
  p = y.shape[1]
  radius = STEP_RADIUS - math.sqrt(p) / 2 - 1
  off = np.linalg.norm(found - y * (radius / norm)[:, None], axis=1)
  # A rounding of z, and one of the row, as the map stretches it.
  bound = math.sqrt(p) / 2 + 1
  if a_map is not None:
    stretch = 1 if a_map.matrix is None else np.linalg.norm(a_map.matrix, 2)
    bound = bound + (math.sqrt(D) / 2 + 1) * stretch / norm
  assert (off <= 1.1 * bound).all()


@pytest.mark.slow
@hypothesis.settings(
  max_examples=10,
  deadline=None,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  kind=st.sampled_from(sorted(MAPS)),
  sizes=st.lists(st.integers(1, 120), min_size=1, max_size=3),
  order=st.integers(0, 2**32),
  devices=st.sampled_from([1, 8]),
  float64=st.booleans(),
  chunk=st.sampled_from([1, 32]),
  resident=st.sampled_from([0, 2**30]),
  share=st.sampled_from([None, 0.0, 0.05, 0.5, 1.0]),
)
def test_a_row_has_its_bits_wherever_it_is(
  monkeypatch, kind, sizes, order, devices, float64, chunk, resident, share
):
  """Also among rows that are chosen, which come once and in order."""
  block, rng = random_block(117, D, 3), np.random.default_rng(order)
  expected = z_of(steps_of(block, a_map=MAPS[kind]))
  shuffle = rng.permutation(117)
  chosen = None if share is None else rng.random(117) < share
  with monkeypatch.context() as patch:
    platforms = ("cpu",) if float64 else ()
    patch.setattr(unit_norm_rows, "FLOAT64_PLATFORMS", platforms)
    patch.setattr(unit_norm_rows, "ROWS_PER_DEVICE", chunk)
    rows = steps_of(
      block[shuffle], devices, sizes, a_map=MAPS[kind], resident_bytes=resident
    )
    for _ in range(2):
      found = z_of(rows, chosen)
      places = shuffle if chosen is None else shuffle[chosen]
      if len(places):
        np.testing.assert_array_equal(found, expected[places])
      chunks = list(rows.secret_chunks(chosen))
      labels = [np.asarray(c.label) for c in chunks]
      size = rows._rows.chunk_rows
      assert size <= chunk * devices
      assert {len(c) for c in labels} <= {size}
      assert len(chunks) == -(-len(places) // size)
      if chunks:
        np.testing.assert_array_equal(
          np.concatenate(labels)[: len(places)], block.label[places]
        )


@pytest.mark.parametrize("kind", MAPS)
@pytest.mark.parametrize("length", [0.0, 1e-45, 3e-34])
def test_rows_without_a_direction_are_zeros_wherever_the_centre_is(
  kind, length
):
  rows = np.full((5, D), length, np.float32)
  assert not z_of(steps_of(make_block(rows, [1] * 5), a_map=MAPS[kind])).any()


def test_a_row_in_the_centre_is_zeros():
  row = np.array([[3.0, 4.0]], np.float32)
  centre = z_of(steps_of(make_block(row, [0])))[0].astype(np.float64)
  beside = np.array([[3.0, 4.0], [3.0, 4.01]], np.float32)
  a_map = ReleasedMap(centre=centre)
  found = z_of(steps_of(make_block(beside, [0, 1]), a_map=a_map))
  assert not found[0].any()
  assert found[1].any()


@pytest.mark.parametrize(
  ("factor", "kind", "platforms"),
  [
    (1.01, "none", ("cpu",)),
    (2.0, "both", ()),
    (1e9, "none", ()),
    (math.nan, "both", ("cpu",)),
  ],
)
def test_no_arithmetic_whatever_breaks_the_bound(
  monkeypatch, platforms, factor, kind
):
  monkeypatch.setattr(unit_norm_rows, "FLOAT64_PLATFORMS", platforms)
  real = step_rows.row_radius
  monkeypatch.setattr(
    step_rows,
    "row_radius",
    lambda d, radius=2**20: (
      real(d, radius) * (factor if radius == STEP_RADIUS else 1.0)
    ),
  )
  step_rows._mapper.cache_clear()
  found = z_of(steps_of(random_block(50, D, 3), a_map=MAPS[kind])).astype(int)
  step_rows._mapper.cache_clear()
  assert (found**2).sum(axis=1).max() <= STEP_RADIUS**2


# Passes.


def reading(reader: Reader, devices=1, resident=2**30) -> StepRows:
  rows = rows_of(reader.readings[0], devices)
  rows._read = reader
  return StepRows(rows, MAPS["both"], resident)


@pytest.mark.parametrize("devices", [1, 2])
def test_rows_that_fit_are_read_once_and_others_each_time(devices):
  block = random_block(100, D, 3)
  padded = -(-100 // (32 * devices)) * 32 * devices
  size = padded * (2 * P + 8)
  for limit, readings in [(size, 1), (size - 1, 3), (0, 3)]:
    reader = Reader(block)
    rows = reading(reader, devices, limit)
    passes = [z_of(rows) for _ in range(3)]
    assert reader.passes == readings
    for each in passes[1:]:
      np.testing.assert_array_equal(each, passes[0])


def test_a_pass_left_halfway_or_refused_is_not_kept():
  block = random_block(100, D, 3)
  rows = reading(Reader(block, block[:99], block))
  next(rows.secret_chunks())
  with pytest.raises(InputError, match="gave 99 rows"):
    z_of(rows)
  assert len(z_of(rows)) == 100


@pytest.mark.parametrize("chosen", [None, np.arange(40) < 3])
def test_another_order_of_the_rows_is_refused(chosen):
  """Places would be of other rows."""
  block = random_block(40, D, 3)
  rows = reading(Reader(block, block, block[np.arange(40)[::-1]]), 1, 0)
  for _ in range(2):
    z_of(rows, chosen)
  with pytest.raises(InputError, match="in another order"):
    z_of(rows, chosen)
