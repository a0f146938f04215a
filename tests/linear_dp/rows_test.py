"""From what is stored to integers: oracles in plain NumPy and rationals."""

import math
import subprocess
import sys
from fractions import Fraction

import jax
import ml_dtypes
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import rows as rows_module
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.data import (
  WEIGHT,
  Data,
  R,
  room_in_ball,
  within_ball,
)
from oneshot_dp.linear_dp.private_head import array_data
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import D, data_of, hostile_rows


def columns_of(rows):
  """What a pass gives, without padding behind it."""
  columns = [
    np.concatenate([np.asarray(part) for part in column]).astype(int)
    for column in zip(*rows.chunks(), strict=True)
  ]
  row, _, weight = columns
  assert not row[weight == 0].any()
  return columns


def lengths_squared(z):
  return [sum(v * v for v in row) for row in z.tolist()]


# Integers.


@pytest.mark.parametrize(
  "dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
)
@pytest.mark.parametrize("most", [math.inf, 1.0, 1e-3])
def test_rows_are_rounded_to_the_grid(dtype, most):
  x, label = hostile_rows(np.random.default_rng(0), dtype=np.float16)
  data = array_data(x.astype(dtype), label, num_classes=4)
  z, labels, weight = (c[:24] for c in columns_of(rows_of(data, most=most)))
  wide = x.astype(dtype).astype(np.float64)
  norm = np.linalg.norm(wide, axis=1)
  with np.errstate(divide="ignore"):
    scale = np.minimum(room_in_ball(D) / norm, R * most)
  expected = wide * np.where(norm > 0, scale, 0)[:, None]
  np.testing.assert_allclose(z, expected, atol=0.51)
  np.testing.assert_array_equal(labels, label)
  np.testing.assert_array_equal(weight, np.where(z.any(axis=1), WEIGHT, 0))
  assert max(lengths_squared(z)) <= R**2


@pytest.mark.parametrize("dim", [1, 2, 7, 192, 1280, 16384])
def test_no_honest_row_leaves_the_ball_and_each_comes_to_its_edge(dim):
  rng = np.random.default_rng(dim)
  x = rng.standard_normal((16, dim)).astype(np.float32)
  x[1] = 1
  x[2] = 0
  x[2, 0] = 3
  x[3] *= 1e30
  data = array_data(x, np.zeros(16, int), num_classes=1)
  z, _, _ = columns_of(rows_of(data))
  squares = lengths_squared(z[:16])
  assert max(squares) <= R**2
  assert min(squares) > (R - math.sqrt(dim) - 2.5) ** 2


@pytest.mark.parametrize("dim", [1, 3, 200, 5000])
def test_the_check_of_the_ball_is_on_the_safe_side(dim):
  """Rows just inside and just outside: none outside passes."""
  rng = np.random.default_rng(dim)
  z = rng.standard_normal((400, dim))
  z *= (R * (1 + rng.uniform(-2e-3, 2e-3, 400)) / np.linalg.norm(z, axis=1))[
    :, None
  ]
  z = np.rint(z)
  z[0] = 0
  z[1] = np.eye(dim)[min(dim - 1, 1)]  # just outside: float32 cannot tell
  z[1, 0] += R
  fine, is_row = map(np.asarray, within_ball(jax.numpy.asarray(z, np.float32)))
  inside = np.array([s <= R**2 for s in lengths_squared(z.astype(int))])
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
  data = Data(
    blocks=lambda: blocks,
    n=300,
    feature_dim=D,
    num_classes=4,
    unit=damaged.unit,
  )
  with pytest.raises(InputError) as refused:
    columns_of(rows_of(data))
  said = str(refused.value)
  assert said.startswith("the rows: example_id=271: its embedding is not")
  assert "0.7" not in said
  assert "\n" not in said


def test_a_norm_that_is_too_small_is_refused_and_one_too_large_counts_less():
  def with_norm(norm):
    block = dict(next(iter(data_of(np.ones((1, D), np.float32), [0]).blocks())))
    block["embedding_norm"] = np.array([norm], np.float32)
    return rows_of(
      Data(blocks=lambda: [block], n=1, feature_dim=D, num_classes=1)
    )

  with pytest.raises(InputError, match="longer than embedding_norm says"):
    columns_of(with_norm(2.4))
  z, _, _ = columns_of(with_norm(24.5))
  assert math.sqrt(lengths_squared(z)[0]) == pytest.approx(R / 10, rel=1e-2)


@pytest.mark.parametrize("label", [-1, 4, 2**31 - 1])
def test_a_label_of_no_class_is_refused_without_saying_it(label):
  labels = np.zeros(9, np.int32)
  labels[5] = label
  with pytest.raises(InputError, match=r"example_id=5: its label is outside"):
    columns_of(rows_of(data_of(np.ones((9, D), np.float32), labels)))


@pytest.mark.parametrize("block", [3, 4, 10])
def test_a_row_that_comes_twice_is_refused(block):
  data = data_of(np.ones((10, D), np.float32), np.zeros(10), block=block)
  blocks = list(data.blocks())
  blocks[-1]["example_id"][-1] = 2
  twice = Data(blocks=lambda: blocks, n=10, feature_dim=D, num_classes=4)
  with pytest.raises(InputError, match="example_id=2: it comes more than once"):
    columns_of(rows_of(twice))


def test_units_are_read_as_units_and_only_as_such():
  x, label = np.ones((3, D), np.float32), np.zeros(3, int)
  with_ids, without = data_of(x, label, label), data_of(x, label)
  for blocks, unit in ((with_ids.blocks, "example"), (without.blocks, "user")):
    data = Data(blocks=blocks, n=3, feature_dim=D, num_classes=1, unit=unit)
    with pytest.raises(InputError, match="but the privacy unit is"):
      columns_of(rows_of(data))


def test_more_rows_than_int64_was_measured_for_are_refused(monkeypatch):
  data = data_of(np.ones((30, D), np.float32), np.zeros(30), n=4)
  columns_of(rows_of(data))  # of a part: n is a mean
  monkeypatch.setattr("oneshot_dp.linear_dp.data.WEIGHT", 16)
  with pytest.raises(InputError, match="many more than 4 are there"):
    columns_of(rows_of(data))
  for n in (0, -1, 10**10 + 1):
    with pytest.raises(InputError, match="rows: sums are of 1 to 1e"):
      Data(blocks=data.blocks, n=n, feature_dim=D, num_classes=1)


# Chunks.


@pytest.mark.parametrize(
  ("n", "dim", "classes", "rows"),
  [
    (1, 1, 1, 64),
    (50_000, 192, 10, 4096),
    (50_000, 768, 100, 2048),
    (1_281_167, 1280, 1000, 1024),
    (1_281_167, 1280, 21_843, 128),
    (10**6, 10**6, 10**6, 64),
  ],
)
def test_chunks_are_as_large_as_a_cache_holds(n, dim, classes, rows):
  data = Data(blocks=list, n=n, feature_dim=dim, num_classes=classes)
  assert rows_module._chunk_rows(data, 1) == rows
  if n > 10**6:
    assert rows_module._chunk_rows(data, 4) == 4 * rows


@pytest.mark.parametrize("block", [1, 63, 64, 700])
def test_chunks_are_copies_though_memory_is_used_again(block, monkeypatch):
  """Kept chunks, made before the buffers went round."""
  monkeypatch.setattr(rows_module, "_chunk_rows", lambda *_: 64)
  rng = np.random.default_rng(0)
  x = rng.standard_normal((700, D)).astype(np.float32)
  label = rng.integers(0, 4, 700)
  rows = rows_of(data_of(x, label, block=block)).kept()
  first = columns_of(rows)
  assert len(list(rows.chunks())) == 11
  np.testing.assert_array_equal(first[0], columns_of(rows)[0])
  expected = columns_of(rows_of(data_of(x, label)))
  for found, column in zip(first, expected, strict=True):
    np.testing.assert_array_equal(found[:700], column[:700])
    assert not found[700:].any()


def test_rows_are_read_once_where_they_are_kept(monkeypatch):
  passes = []
  x, label = hostile_rows(np.random.default_rng(0))
  given = data_of(x, label)

  def blocks():
    passes.append(1)
    return given.blocks()

  data = Data(blocks=blocks, n=24, feature_dim=D, num_classes=4)
  kept = rows_of(data).kept()
  assert not passes  # it is a pass that reads
  for _ in range(3):
    columns_of(kept)
    columns_of(kept.mapped(np.zeros(D), np.eye(D)))
  assert len(passes) == 1
  monkeypatch.setattr(rows_module, "_RESIDENT_BYTES", 100)
  streamed = rows_of(data).kept()
  columns_of(streamed), columns_of(streamed)
  assert len(passes) == 3
  # What is bought again is not summed again.
  sums = PrivateSums(None, 0.0)
  for _ in range(3):
    sums.release("mean", streamed, statistics.ones, 1.0)
  assert len(passes) == 4
  sums.release("moment", streamed, statistics.itself, 1.0, once=True)
  assert len(streamed._totals) == 1


def test_on_a_tpu_its_host_makes_what_needs_float64(monkeypatch):
  asked = []
  devices = jax.local_devices()
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  monkeypatch.setattr(
    jax, "local_devices", lambda backend: asked.append(backend) or devices
  )
  x, label = np.ones((3, D), np.float32), np.zeros(3, int)
  data, of_users = data_of(x, label), data_of(x, label, label)
  given = [rows_of(data, power=2), rows_of(data), rows_of(of_users, power=2)]
  assert asked == [None, "cpu", "cpu"]
  assert "A TPU's host makes the sums" in given[1].note
  monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
  assert not given[1].note


# Maps.


@pytest.mark.parametrize("dim", [1, 2, 6, 100])
def test_a_map_is_that_of_numpy(dim):
  rng = np.random.default_rng(dim)
  x = rng.standard_normal((200, D)).astype(np.float32)
  x[7] = 0
  rows = rows_of(array_data(x, np.zeros(200, int), num_classes=2))
  centre, matrix = rng.normal(0, 0.3, D), rng.standard_normal((D, dim))
  z = columns_of(rows)[0][:200]
  found = columns_of(rows.mapped(centre, matrix))[0][:200]
  c = np.rint(centre * R).astype(int)
  a = np.rint(matrix * (R / np.linalg.norm(matrix, axis=0).max())).astype(int)
  y = ((z - c).astype(object) @ a.astype(object)).astype(np.float64)
  expected = y / np.linalg.norm(y, axis=1, keepdims=True) * room_in_ball(dim)
  np.testing.assert_allclose(
    found, np.where(z.any(axis=1, keepdims=True), expected, 0), atol=0.501
  )
  assert not found[7].any()
  assert max(lengths_squared(found)) <= R**2


def test_a_map_without_a_matrix_is_a_centre():
  x = np.array([[3.0, 4.0], [1.0, 0.0], [0.6, 0.8]], np.float32)
  rows = rows_of(array_data(x, np.zeros(3, int), num_classes=1))
  found = columns_of(rows.mapped(np.array([0.0, 0.8]), None))[0][:3]
  expected = np.array([[1, 0], [0.78, -0.62], [1, 0]]) * R
  np.testing.assert_allclose(found, expected, atol=R * 2e-2)
  # A row that the centre meets has no direction, and adds nothing.
  z = columns_of(rows)[0][1]
  met = columns_of(rows.mapped(z / R, None))[0][1]
  assert not met.any()


def test_nobody_else_is_given_float64():
  """Each chunk is made in a context of its own."""
  x, label = hostile_rows(np.random.default_rng(0))
  rows = rows_of(data_of(x, label))
  for given in (rows, rows.mapped(np.zeros(D), np.eye(D))):
    for _ in given.chunks():
      assert jax.numpy.arange(2.0).dtype == np.float32


@pytest.mark.parametrize("matrix", [np.zeros((D, D)), np.full((D, D), np.nan)])
def test_a_map_that_maps_nothing_is_refused(matrix):
  x, label = hostile_rows(np.random.default_rng(0))
  with pytest.raises(InputError, match="a map whose longest column has norm"):
    rows_of(data_of(x, label)).mapped(np.zeros(D), matrix)


# Units.


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
        weight = math.floor(Fraction(WEIGHT * sizes[c], sum(sizes.values())))
      else:
        squares = sum(k * k for k in sizes.values())
        weight = math.isqrt((WEIGHT * sizes[c]) ** 2 // squares)
      found[u, c] = total, sizes[c], weight
  return found


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("most", [math.inf, 0.8])
def test_units_are_mean_rows_at_exact_weights(power, most):
  rng = np.random.default_rng(power)
  x, label = hostile_rows(rng, n=200)
  unit = rng.integers(-3, 12, 200) ** 3 * 2**40
  plain = columns_of(rows_of(data_of(x, label), most=most))[0][:200]
  oracle = oracle_of_units(plain.tolist(), label, unit, power)
  z, labels, weight = columns_of(
    rows_of(data_of(x, label, unit), most=most, power=power)
  )
  assert (weight[len(oracle) :] == 0).all()
  for i, (u, c) in enumerate(sorted(oracle)):
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
    assert sum(w**power for w in weights) <= WEIGHT**power
    assert sum(w**power for w in weights) >= (WEIGHT - 8) ** power
  assert max(lengths_squared(z)) <= R**2


def test_opposite_rows_cancel_and_weigh_nothing():
  x = np.array([[1.0, 0], [-1.0, 0], [0, 2.0]], np.float32)
  data = data_of(x, [0, 0, 1], [5, 5, 5], num_classes=2)
  z, label, weight = columns_of(rows_of(data))
  assert not z[0].any()
  assert (label[1], weight[0], weight[1]) == (1, 0, WEIGHT // 3)


def test_a_unit_of_many_rows_of_one_class_is_as_long_as_one_row():
  """Sums of 200,000 rows, past int32 and past what squares exactly."""
  x = np.tile(np.array([[3.0, 4.0, 0]], np.float32), (200_000, 1))
  data = data_of(x, np.zeros(200_000), np.zeros(200_000), block=50_000)
  z, _, weight = columns_of(rows_of(data))
  room = room_in_ball(3)
  np.testing.assert_allclose(z[0], [0.6 * room, 0.8 * room, 0], atol=0.51)
  assert weight.tolist() == [WEIGHT, *[0] * (len(weight) - 1)]


# Arrays.


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"embeddings": np.ones((2, 3), int)}, "embeddings are int64"),
    ({"embeddings": np.array([["a"]], object)}, "embeddings are object"),
    ({"embeddings": np.ones(3)}, r"embeddings are float64 \(3,\)"),
    ({"embeddings": np.ones((0, 3))}, "at least one row"),
    ({"embeddings": np.ones((3, 0))}, "at least one row"),
    ({"embeddings": np.full((2, 3), np.nan)}, r"embeddings\[0\] is not finite"),
    ({"embeddings": np.full((2, 3), 3e38)}, "too long for float32"),
    ({"labels": np.ones(2)}, "labels are float64"),
    ({"labels": np.ones(3, int)}, r"labels are int64 \(3,\)"),
    ({"labels": np.ones((2, 1), int)}, "give 2 integers, one a row"),
    ({"labels": np.array([0, 4])}, r"labels\[1\] is not one of the num_"),
    ({"labels": np.array([-1, 0])}, r"labels\[0\] is not one"),
    ({"num_classes": 0}, "is not one of the num_classes=0"),
    ({"unit_ids": np.array(["a", "b"])}, "unit_ids are <U1"),
    ({"unit_ids": np.zeros(1, int)}, "unit_ids are int64"),
  ],
)
def test_arrays_that_are_no_rows_are_refused(given, message):
  right = {
    "embeddings": np.ones((2, 3), np.float32),
    "labels": np.zeros(2, int),
    "num_classes": 4,
  }
  with pytest.raises(InputError, match=message) as refused:
    array_data(**(right | given))
  assert "\n" not in str(refused.value)


def test_other_arrays_are_read_as_they_are():
  x = jax.numpy.ones((3, 2))
  data = array_data(x, np.array([0, 1, 1], np.uint8), num_classes=2)
  assert (data.n, data.feature_dim, data.num_classes) == (3, 2, 2)
  assert not data.has_units
  half = np.ones((3, 2), np.float16)
  (block,) = array_data(half, np.zeros(3, int), num_classes=1).blocks()
  assert block["embedding"] is half


def test_no_memory_lands_on_the_disk():
  code = (
    "import resource; from oneshot_dp.linear_dp.rows import no_core_dumps;"
    "no_core_dumps(); print(resource.getrlimit(resource.RLIMIT_CORE))"
  )
  said = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert said.stdout.strip() == "(0, 0)"
