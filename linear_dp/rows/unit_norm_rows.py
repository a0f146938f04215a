"""Private rows as integers on the devices, for several passes.

Every row has the norm B, but for the rounding: only its direction is kept, so
every row weighs the same and none needs clipping. Where norms are to count, s
is at most B/R, and R, which is public, the largest norm that a row may have.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.batches import padded, regrouped
from oneshot_dp.linear_dp.rows.block import (
  OFF_THE_BALL,
  RowBlock,
  checked,
  refuse,
  refuse_units,
)
from oneshot_dp.linear_dp.rows.integers import (
  GRID_RADIUS,
  integer_rows,
  row_scale,
  within_ball_float64,
)
from oneshot_dp.linear_dp.rows.secret import Secret

ROWS_PER_DEVICE = 8192
"""The rows of a chunk: 2¹³·B² = 2⁵³, so float64 products add up exactly."""
_LEAST_ROWS = 64
_FLOAT64_PLATFORMS = ("cpu", "cuda", "rocm", "gpu")
RESIDENT_BYTES = 4 * 2**30

Chunk = tuple[Array, Array, Array]
"""Embeddings as stored [rows, d], scales [rows], labels [rows], sharded. Rows
of padding have scale 0."""


class SecretRows(Secret):
  """What private heads of several steps read, once or many times.

  Formal guarantees: in every pass each row obeys ‖u‖² ≤ B², checked in
  integers; every example_id comes once; there are `num_rows` rows. Where
  one of these fails the pass ends with an error.

  Args:
    read: starts a pass over the blocks, in any order and any block size.
    feature_dim: d.
    num_classes: K.
    num_examples: n, public.
    num_rows: how many rows there must be, private; None is n.
    most_rows: public bound of that; None is n.
    max_norm: R, of rows that keep their norm, longer ones being shortened to
      it; public. None is for directions.
    devices: rows are sharded over them; None is all local devices.
    resident_bytes: up to which rows are kept after the first pass, not read
      again.

  Raises:
    InputError: devices without float64; or, in a pass, damaged rows, or rows
      with a `unit_id`.
  """

  public = ("num_examples",)

  def __init__(
    self,
    read: Callable[[], Iterable[RowBlock]],
    *,
    feature_dim: int,
    num_classes: int,
    num_examples: int,
    num_rows: int | None = None,
    most_rows: int | None = None,
    max_norm: float | None = None,
    devices: Sequence[jax.Device] | None = None,
    resident_bytes: int = RESIDENT_BYTES,
  ):
    devices = tuple(devices or jax.local_devices())
    if devices[0].platform not in _FLOAT64_PLATFORMS:
      raise InputError(
        f"this head needs float64, which a {devices[0].platform} has not: train"
        " it with JAX_PLATFORMS=cpu; the cache is all it reads."
      )
    self.feature_dim = feature_dim
    self.num_classes = num_classes
    self.num_examples = num_examples
    self.num_rows = num_rows or num_examples
    self.most_rows = most_rows or num_examples
    self.max_norm = max_norm
    self._most_scale = math.inf if max_norm is None else GRID_RADIUS / max_norm
    self.mesh = Mesh(np.array(devices), ("data",))
    self._read = read
    self._resident_bytes = resident_bytes
    self._resident: list[Chunk] | None = None
    self._order: Int64[np.ndarray, " n"] | None = None

  def secret_chunks(
    self, chosen: Bool[np.ndarray, " n"] | None = None
  ) -> Iterator[Chunk]:
    """One pass over rows, in chunks of one shape. Private.

    Args:
      chosen: whether each row is wanted, by its place in a pass, the same in
        all; None is every row.

    Raises:
      InputError: see the class; once the last chunk was asked for.
    """
    if chosen is None:
      return self._all_chunks()
    picked = regrouped(self._picked(chosen), self._chunk_rows)
    return map(self._sharded, picked)

  @property
  def _chunk_rows(self) -> int:
    """No more than all rows take, in a power of two: padding costs as much."""
    all_rows = -(-self.num_examples // self.mesh.size)
    few = max(_LEAST_ROWS, 1 << (all_rows - 1).bit_length())
    return min(few, ROWS_PER_DEVICE) * self.mesh.size

  def _picked(
    self, chosen: Bool[np.ndarray, " n"]
  ) -> Iterator[list[np.ndarray]]:
    size = self._chunk_rows
    for start, chunk in zip(itertools.count(0, size), self._all_chunks()):
      of_chunk = chosen[start : start + size]
      yield [np.asarray(c)[: len(of_chunk)][of_chunk] for c in chunk]

  def _all_chunks(self) -> Iterator[Chunk]:
    if self._resident is not None:
      yield from self._resident
      return
    kept: list[Chunk] | None = []
    size = 0
    for chunk in self._chunks():
      yield chunk
      size += sum(column.nbytes for column in chunk)
      if kept is not None and size <= self._resident_bytes:
        kept.append(chunk)
      else:
        kept = None
    self._resident = kept

  def _chunks(self) -> Iterator[Chunk]:
    blocks = checked(
      self._read(),
      feature_dim=self.feature_dim,
      num_classes=self.num_classes,
      num_examples=self.num_rows,
    )
    ids = []
    for columns in regrouped(_columns(blocks), self._chunk_rows):
      embedding, norm, label, example_id = columns
      scale = row_scale(norm, self.feature_dim, self._most_scale)
      chunk = self._sharded([embedding, scale, label])
      with jax.enable_x64(True):
        bad = np.asarray(_leaves_ball(*chunk[:2]))[: len(label)]
      if bad.any():
        refuse(example_id, bad, OFF_THE_BALL)
      ids.append(example_id)
      yield chunk
    order = np.concatenate(ids)
    if self._order is not None and not np.array_equal(order, self._order):
      raise InputError(
        "The rows came in another order than before: has the cache changed?"
      )
    self._order = order

  def _sharded(self, columns: list[np.ndarray]) -> Chunk:
    sharding = NamedSharding(self.mesh, PartitionSpec("data"))
    with jax.enable_x64(True):
      embedding, scale, label = (
        jax.device_put(padded(column, self._chunk_rows), sharding)
        for column in columns
      )
    return embedding, scale, label


@jax.jit
def _leaves_ball(embedding: Array, scale: Array) -> Array:
  return ~within_ball_float64(integer_rows(embedding, scale))


def _columns(blocks: Iterable[RowBlock]) -> Iterator[tuple[np.ndarray, ...]]:
  for block in blocks:
    refuse_units(block)
    yield block.embedding, block.embedding_norm, block.label, block.example_id
