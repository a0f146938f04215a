"""Passes over rows: chunks, what is kept, maps."""

import dataclasses

import jax
import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import rows as rows_module
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM, room_in_ball
from oneshot_dp.linear_dp.rows import rows_of
from tests.linear_dp.statistic_catalogue import (
  D,
  columns_of,
  data_of,
  hostile_rows,
  lengths_squared,
)

# Chunks.


@pytest.mark.parametrize(
  ("n", "dim", "classes", "rows"),
  [
    (1, 1, 1, 64),
    (50_000, 192, 10, 2048),
    (50_000, 768, 100, 2048),
    (1_281_167, 1280, 1000, 1024),
    (1_281_167, 1280, 21_843, 128),
    (10**6, 10**6, 10**6, 64),
  ],
)
def test_chunks_are_as_large_as_a_cache_holds(n, dim, classes, rows):
  data = PrivateDataset(blocks=list, n=n, feature_dim=dim, num_classes=classes)
  assert rows_module._chunk_rows(data, 1) == rows
  if n > 10**6:
    assert rows_module._chunk_rows(data, 4) == 4 * rows


@pytest.mark.slow
@pytest.mark.parametrize("block", [1, 63, 64, 700])
def test_blocks_of_any_size_make_the_same_chunks(block, monkeypatch):
  monkeypatch.setattr(rows_module, "_chunk_rows", lambda *_: 64)
  rng = np.random.default_rng(0)
  x = rng.standard_normal((700, D)).astype(np.float32)
  label = rng.integers(0, 4, 700)
  rows = rows_of(data_of(x, label, block=block), keep=True)
  first = columns_of(rows)
  assert len(list(rows.chunks())) == 11
  np.testing.assert_array_equal(first[0], columns_of(rows)[0])
  expected = columns_of(rows_of(data_of(x, label)))
  for found, column in zip(first, expected, strict=True):
    np.testing.assert_array_equal(found[:700], column[:700])
    assert not found[700:].any()


@pytest.mark.slow
def test_rows_are_read_once_where_they_are_kept(monkeypatch):
  passes = []
  x, label = hostile_rows(np.random.default_rng(0))
  given = data_of(x, label)

  def blocks():
    passes.append(1)
    return given.blocks()

  data = dataclasses.replace(given, blocks=blocks)
  kept = rows_of(data, keep=True)
  assert not passes  # it is a pass that reads
  for _ in range(3):
    columns_of(kept)
    columns_of(kept.mapped(np.zeros(D), np.eye(D)))
  assert len(passes) == 1
  monkeypatch.setattr(rows_module, "_RESIDENT_BYTES", 100)
  streamed = rows_of(data, keep=True)
  columns_of(streamed), columns_of(streamed)
  assert len(passes) == 3
  # What is bought again is not summed again.
  sums = PrivateSums(None, 0.0)
  for _ in range(3):
    sums.release("mean", streamed, statistics.row_weights, mu_squared=1.0)
  assert len(passes) == 4
  sums.release(
    "moment", streamed, statistics.second_moment, mu_squared=1.0, cache=False
  )
  assert len(streamed.sum_cache) == 1


def test_on_a_tpu_its_host_makes_what_needs_float64(monkeypatch):
  asked = []
  devices = jax.local_devices()
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")

  def local_devices(backend):
    asked.append(backend)
    return devices

  monkeypatch.setattr(jax, "local_devices", local_devices)
  x = np.ones((3, D), np.float32)
  label = np.zeros(3, int)
  data = data_of(x, label)
  of_users = data_of(x, label, label)
  given = [
    rows_of(data, weight_norm_order=2),
    rows_of(data),
    rows_of(of_users, weight_norm_order=2),
  ]
  assert asked == [None, "cpu", "cpu"]
  assert "A TPU's host makes the sums" in given[1].note
  assert not given[0].note


# Maps.


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 6, 100])
def test_a_map_is_that_of_numpy(dim):
  rng = np.random.default_rng(dim)
  x = rng.standard_normal((200, D)).astype(np.float32)
  x[7] = 0
  rows = rows_of(dataset_from_arrays(x, np.zeros(200, int), num_classes=2))
  centre = rng.normal(0, 0.3, D)
  matrix = rng.standard_normal((D, dim))
  z = columns_of(rows)[0][:200]
  found = columns_of(rows.mapped(centre, matrix))[0][:200]
  c = np.rint(centre * ROW_NORM).astype(int)
  a = np.rint(
    matrix * (ROW_NORM / np.linalg.norm(matrix, axis=0).max())
  ).astype(int)
  y = ((z - c).astype(object) @ a.astype(object)).astype(np.float64)
  expected = y / np.linalg.norm(y, axis=1, keepdims=True) * room_in_ball(dim)
  np.testing.assert_allclose(
    found, np.where(z.any(axis=1, keepdims=True), expected, 0), atol=0.501
  )
  assert not found[7].any()
  assert max(lengths_squared(found)) <= ROW_NORM**2


def test_a_map_without_a_matrix_is_a_centre():
  x = np.array([[3.0, 4.0], [1.0, 0.0], [0.6, 0.8]], np.float32)
  rows = rows_of(dataset_from_arrays(x, np.zeros(3, int), num_classes=1))
  found = columns_of(rows.mapped(np.array([0.0, 0.8]), None))[0][:3]
  expected = np.array([[1, 0], [0.78, -0.62], [1, 0]]) * ROW_NORM
  np.testing.assert_allclose(found, expected, atol=ROW_NORM * 2e-2)
  # A row that the centre meets has no direction, and adds nothing.
  z = columns_of(rows)[0][1]
  met = columns_of(rows.mapped(z / ROW_NORM, None))[0][1]
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
