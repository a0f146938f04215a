"""Per-class integer sums on a mesh of devices.

int32 on the devices, in chunks that cannot overflow; int64 across chunks.
"""

import collections
import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.rows.block import OFF_THE_BALL, RowBlock, refuse
from oneshot_dp.linear_dp.rows.integers import (
  GRID_RADIUS,
  MAX_ROW_DIM,
  integer_rows,
  within_ball_float64,
  within_ball_int32,
)

_ROWS_PER_DEVICE = 1024
_ROWS_PER_TILE = 128
"""Rows that a CPU works on at once: their float64 squares fit in its cache."""
_MAX_ROWS_IN_INT32 = (2**31 - 1) // GRID_RADIUS
"""A class may gather this many rows before its int32 sums could overflow."""
_CHUNKS_IN_FLIGHT = 2
_FLOAT64_PLATFORMS = ("cpu",)
_ALIGNMENT = 64

_Added = tuple[Array, Array]
"""The sums, and a flag for every row that is to be refused."""


def _add_in_tiles(bias: bool, sums: Array, *columns: Array) -> _Added:
  """On a CPU, one cache's worth of rows after another."""

  def add_tile(sums: Array, tile: tuple[Array, ...]) -> _Added:
    embedding, scale, label = tile
    features = embedding.shape[1]
    parts = [integer_rows(embedding, scale)]
    sums = sums.at[label, :features].add(parts[0].astype(jnp.int32))
    if bias:
      parts.append(jnp.rint(scale)[:, None])
      sums = sums.at[label, features].add(parts[1][:, 0].astype(jnp.int32))
    return sums, ~within_ball_float64(*parts)

  tiles = [c.reshape(-1, _ROWS_PER_TILE, *c.shape[1:]) for c in columns]
  sums, flags = jax.lax.scan(add_tile, sums, tuple(tiles))
  return sums, flags.ravel()


def _add_at_once(
  bias: bool, sums: Array, embedding: Array, scale: Array, label: Array
) -> _Added:
  """On a TPU or a GPU: one scatter of whole rows.

  On a v5e 21 cycles a row at d = 1280, by XLA's estimate; one-hot labels times
  int8 limbs, on the matrix unit, had the same bits and took 1.3 to 1.5 times as
  many. A scatter into a slice of the sums would become a small program per row.
  """
  row = integer_rows(embedding, scale)
  if bias:
    row = jnp.concatenate([row, jnp.rint(scale)[:, None]], axis=1)
  return sums.at[label].add(row.astype(jnp.int32)), ~within_ball_int32(row)


@functools.cache
def _chunk_adder(
  mesh: Mesh, bias: bool, form: Callable[..., _Added]
) -> Callable[..., _Added]:
  """Compiles (sums, embedding, scale, label) → (sums, rows to refuse).

  Shapes: int32 [devices·K, D], [rows, d], [rows], [rows] → bool [rows], all
  sharded; each device adds its rows to its own sums.
  """
  rows = PartitionSpec("data")
  sharding = NamedSharding(mesh, rows)
  return jax.jit(
    jax.shard_map(
      functools.partial(form, bias),
      mesh=mesh,
      in_specs=(rows,) * 4,
      out_specs=(rows, rows),
    ),
    in_shardings=sharding,
    out_shardings=sharding,
    donate_argnums=0,
  )


class _Chunk:
  """Rows on their way to the devices, in memory that is used again and again.

  Fresh memory, handed out page by page, would cost more than the sum itself.
  Its alignment lets a CPU device read it in place.
  """

  def __init__(self, rows: int, feature_dim: int, dtype: np.dtype):
    self.embedding = _aligned((rows, feature_dim), dtype)
    self.scale = _aligned((rows,), np.dtype(np.float32))
    self.label = _aligned((rows,), np.dtype(np.int32))
    self.example_id = np.zeros(rows, np.int64)
    self.columns = (self.embedding, self.scale, self.label, self.example_id)
    self.rows = 0

  @property
  def room(self) -> int:
    return len(self.label) - self.rows

  def append(self, columns: Sequence[np.ndarray]) -> None:
    stop = self.rows + len(columns[0])
    for column, values in zip(self.columns, columns, strict=True):
      column[self.rows : stop] = values
    self.rows = stop

  def pad(self) -> None:
    """Fills up with rows of zeros, which add nothing to class 0."""
    for column in self.columns:
      column[self.rows :] = 0


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
  size = math.prod(shape) * dtype.itemsize
  raw = np.zeros(size + _ALIGNMENT, np.uint8)
  start = -raw.ctypes.data % _ALIGNMENT
  return raw[start : start + size].view(dtype).reshape(shape)


class ClassSums:
  """Gathers blocks into chunks of one shape and adds them on the devices."""

  def __init__(
    self, grid: ClippedGradientGrid, devices: tuple[jax.Device, ...]
  ):
    if grid.row_dim > MAX_ROW_DIM:
      raise InputError(
        f"feature_dim={grid.feature_dim} is more than {MAX_ROW_DIM - 1}, which"
        " the exact sum can check: extract an embedding of fewer numbers."
      )
    self._grid = grid
    mesh = Mesh(np.array(devices), ("data",))
    # The same bits either way; a CPU alone is at its best in float64.
    self._x64 = devices[0].platform in _FLOAT64_PLATFORMS
    form = _add_in_tiles if self._x64 else _add_at_once
    self._add_chunk = _chunk_adder(mesh, grid.train_bias, form)
    self._chunk_rows = _ROWS_PER_DEVICE * len(devices)
    self._total = np.zeros((grid.num_classes, grid.row_dim), np.int64)
    self._sharding = NamedSharding(mesh, PartitionSpec("data"))
    self._zeros = functools.partial(
      jnp.zeros,
      (len(devices) * grid.num_classes, grid.row_dim),
      jnp.int32,
      device=self._sharding,
    )
    self._sums = self._zeros()
    self._class_rows = np.zeros(grid.num_classes, np.int64)
    self._chunk: _Chunk | None = None
    self._free: list[_Chunk] = []
    self._in_flight: collections.deque[tuple[_Chunk, Array]] = (
      collections.deque()
    )

  def add(
    self, block: RowBlock, counts: Bool[np.ndarray, " rows"] | None = None
  ) -> None:
    """Adds a block whose shapes and labels have been checked.

    A row that does not count is added as zeros, which takes the same work: how
    many there are does not show in the time.

    InputError: this or an earlier row is not finite or leaves the ball, or
    blocks differ in dtype.
    """
    scale = self._grid.row_scale(block.embedding_norm)
    columns = (
      block.embedding,
      scale if counts is None else np.where(counts, scale, np.float32(0)),
      block.label,
      block.example_id,
    )
    start, rows = 0, len(block.label)
    while start < rows:
      if self._chunk is None:
        self._chunk = (
          self._free.pop()
          if self._free
          else _Chunk(
            self._chunk_rows, self._grid.feature_dim, block.embedding.dtype
          )
        )
      chunk = self._chunk
      if chunk.embedding.dtype != block.embedding.dtype:
        raise InputError(
          f"Blocks of {chunk.embedding.dtype} and {block.embedding.dtype} in"
          " one cache: extract it again."
        )
      stop = min(rows, start + chunk.room)
      chunk.append([column[start:stop] for column in columns])
      start = stop
      if not chunk.room:
        self._dispatch(chunk)

  def finish(self) -> Int64[np.ndarray, "K D"]:
    """Waits for everything added; S in grid steps, private."""
    if self._chunk is not None:
      self._dispatch(self._chunk)
    while self._in_flight:
      self._retire_oldest()
    self._carry()
    return self._total

  def _dispatch(self, chunk: _Chunk) -> None:
    chunk.pad()
    arriving = np.bincount(chunk.label, minlength=self._grid.num_classes)
    if (self._class_rows + arriving).max() > _MAX_ROWS_IN_INT32:
      self._carry()
    self._class_rows += arriving
    with jax.enable_x64(self._x64):
      rows = (chunk.embedding, chunk.scale, chunk.label)
      # (Where there are more hosts, jit itself puts no row anywhere.)
      on_devices = jax.device_put(rows, self._sharding)
      self._sums, flags = self._add_chunk(self._sums, *on_devices)
    self._chunk = None
    self._in_flight.append((chunk, flags))
    if len(self._in_flight) > _CHUNKS_IN_FLIGHT:
      self._retire_oldest()

  def _retire_oldest(self) -> None:
    """Waits for a chunk; only then is its memory free for other rows."""
    chunk, flags = self._in_flight.popleft()
    bad = np.asarray(flags)
    if bad.any():
      refuse(chunk.example_id, bad, OFF_THE_BALL)
    chunk.rows = 0
    self._free.append(chunk)

  def _carry(self) -> None:
    """Moves the int32 sums of the devices into the int64 total."""
    of_devices = np.asarray(self._sums).reshape(-1, *self._total.shape)
    self._total += of_devices.sum(axis=0, dtype=np.int64)
    self._sums = self._zeros()
    self._class_rows[:] = 0
