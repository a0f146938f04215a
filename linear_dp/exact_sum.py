"""The exact sharded sum of clipped gradients.

Rows stream through a mesh of devices as integers (see `clipping`): int32 sums
in chunks that cannot overflow, int64 across chunks. Addition of integers is
associative, so the result has the same bits for any order of the rows, any
block size and any number of devices.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Int32, Int64

from configs.errors import InputError
from linear_dp.clipping import GRID_RADIUS, ClippedGradientGrid

_ROWS_PER_DEVICE = 512
_MAX_ROWS_IN_INT32 = (2**31 - 1) // GRID_RADIUS
"""A class may gather this many rows before its int32 sums could overflow."""
_CHUNKS_IN_FLIGHT = 2


class RowBlock(Protocol):
  """Consecutive rows of a feature cache.

  Attributes:
    embedding: [rows, d] float16, bfloat16 or float32.
    embedding_norm: [rows] float32.
    label: [rows] int32.
    example_id: [rows] int64.
  """

  @property
  def embedding(self) -> np.ndarray: ...
  @property
  def embedding_norm(self) -> np.ndarray: ...
  @property
  def label(self) -> np.ndarray: ...
  @property
  def example_id(self) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretSum:
  """Exact per-class sums of private rows; only `release` may read it.

  It has no representation, cannot be compared and cannot be pickled, so that
  it does not reach a log, a traceback or a disk by accident.

  Attributes:
    grid: the grid of the sums; public.
    num_examples: rows summed; public.
    secret_class_sums: S, [K, D] int64 in grid steps. Private.
  """

  grid: ClippedGradientGrid
  num_examples: int
  secret_class_sums: Int64[np.ndarray, "K D"]

  def __repr__(self) -> str:
    return f"SecretSum(num_examples={self.num_examples}, <private>)"

  def __reduce__(self):
    raise TypeError("A SecretSum is private and is never serialised.")


def exact_clipped_sum(
  blocks: Iterable[RowBlock],
  grid: ClippedGradientGrid,
  *,
  num_examples: int,
  devices: Sequence[jax.Device] | None = None,
  on_rows: Callable[[int], object] = lambda rows: None,
) -> SecretSum:
  r"""Sums the clipped rows of every class: S_c = Σ_{y=c} rint(s·x̃).

  Formal guarantees: every row in S has ‖u‖² ≤ B², checked in integers on the
  values that were added; every example_id is in S once; the rows are
  `num_examples` in number. Where one of these fails nothing is returned.

  | row                             | what happens                          |
  |---------------------------------|---------------------------------------|
  | all zeros                       | adds zero (its bias, if trained)      |
  | NaN or infinity anywhere        | InputError that names the example_id  |
  | norm stored too small           | InputError, by the integer check      |
  | norm stored too large           | the row counts for less, never more   |
  | label outside [0, K)            | InputError that names the example_id  |
  | example_id seen before          | InputError that names it              |
  | no rows, or not `num_examples`  | InputError                            |

  Args:
    blocks: the rows, in any order and any block size.
    grid: the clipping.
    num_examples: n, the number of rows that there must be; public.
    devices: what to run on, rows sharded over all; None is all local devices.
    on_rows: called with the number of rows of each block read (progress).

  Returns:
    The private sum.

  Raises:
    InputError: see the table; labels and embeddings are never in the message.

  Source: Mehta et al. (TMLR 2023), algorithm 1, at the zero kernel.
  """
  accumulator = _ClassSums(grid, tuple(devices or jax.local_devices()))
  seen = []
  for block in blocks:
    _check_block(block, grid)
    accumulator.add(block)
    seen.append(np.array(block.example_id, np.int64))
    on_rows(len(block.label))
  class_sums = accumulator.finish()
  ids = np.concatenate(seen) if seen else np.empty(0, np.int64)
  if not ids.size:
    raise InputError("The cache has no rows, so there is nothing to train on.")
  if ids.size != num_examples:
    raise InputError(
      f"The cache gave {ids.size} rows where its metadata says {num_examples}:"
      " run `oneshot-dp verify` on it."
    )
  ids.sort()
  if (twice := ids[1:][ids[1:] == ids[:-1]]).size:
    raise InputError(
      f"example_id={twice[0]} comes more than once, which would double its"
      " influence: run `oneshot-dp verify` on the cache."
    )
  return SecretSum(
    grid=grid, num_examples=num_examples, secret_class_sums=class_sums
  )


def _check_block(block: RowBlock, grid: ClippedGradientGrid) -> None:
  """Everything about a block that the host can see at a glance."""
  rows = len(block.label)
  if block.embedding.shape != (rows, grid.feature_dim):
    raise InputError(
      f"A block of embeddings has shape {block.embedding.shape}, not"
      f" ({rows}, {grid.feature_dim})."
    )
  norm_ok = np.isfinite(block.embedding_norm) & (block.embedding_norm >= 0)
  if not norm_ok.all():
    _refuse(block.example_id, ~norm_ok, "its embedding_norm is not finite")
  label_bad = (block.label < 0) | (block.label >= grid.num_classes)
  if label_bad.any():
    _refuse(
      block.example_id,
      label_bad,
      f"its label is outside [0, {grid.num_classes})",
    )


def _refuse(
  example_id: Int64[np.ndarray, " rows"],
  bad: Bool[np.ndarray, " rows"],
  reason: str,
) -> None:
  raise InputError(
    f"example_id={example_id[np.flatnonzero(bad)[0]]}: {reason}. Run"
    " `oneshot-dp verify` on the cache, then extract it again."
  )


@functools.partial(jax.jit, static_argnames=("mesh", "bias"), donate_argnums=0)
def _add_chunk(
  sums: Int32[Array, "devices K D"],
  embedding: Float[Array, "rows d"],
  scale: Float[Array, " rows"],
  label: Int[Array, " rows"],
  *,
  mesh: Mesh,
  bias: bool,
) -> tuple[Int32[Array, "devices K D"], Bool[Array, " rows"]]:
  """Adds each device's rows to its own int32 sums; flags rows to refuse."""

  def on_device(
    sums: Array, embedding: Array, scale: Array, label: Array
  ) -> tuple[Array, Array]:
    features = embedding.shape[1]
    real = embedding.astype(jnp.float32) * scale[:, None]
    row = jnp.rint(real).astype(jnp.int32)
    # Computed anew from `real` rather than from `row`, and as int64 from the
    # start: XLA then fuses the check into one pass over the embeddings.
    wide = jnp.rint(real).astype(jnp.int64)
    squared = jnp.sum(wide * wide, axis=1)
    in_range = jnp.all(jnp.abs(real) <= GRID_RADIUS, axis=1)  # False for NaN
    updated = sums.at[0, label, :features].add(row)
    if bias:
      bias_row = jnp.rint(scale).astype(jnp.int32)
      wide_bias = bias_row.astype(jnp.int64)
      squared += wide_bias * wide_bias
      in_range &= scale <= GRID_RADIUS
      updated = updated.at[0, label, features].add(bias_row)
    return updated, ~in_range | (squared > GRID_RADIUS**2)

  rows = PartitionSpec("data")
  return jax.shard_map(
    on_device, mesh=mesh, in_specs=(rows,) * 4, out_specs=(rows, rows)
  )(sums, embedding, scale, label)


class _ClassSums:
  """Gathers blocks into chunks of one shape and adds them on the devices."""

  def __init__(
    self, grid: ClippedGradientGrid, devices: tuple[jax.Device, ...]
  ):
    self._grid = grid
    self._mesh = Mesh(np.array(devices), ("data",))
    self._sharding = NamedSharding(self._mesh, PartitionSpec("data"))
    self._chunk_rows = _ROWS_PER_DEVICE * len(devices)
    shape = (grid.num_classes, grid.row_dim)
    self._total = np.zeros(shape, np.int64)
    self._zeros = functools.partial(
      jnp.zeros, (len(devices), *shape), jnp.int32, device=self._sharding
    )
    self._sums = self._zeros()
    self._class_rows = np.zeros(grid.num_classes, np.int64)
    self._waiting: list[tuple[np.ndarray, ...]] = []
    self._waiting_rows = 0
    self._in_flight = collections.deque()

  def add(self, block: RowBlock) -> None:
    scale = self._grid.row_scale(block.embedding_norm)
    arrays = (block.embedding, scale, block.label, block.example_id)
    start, rows = 0, len(block.label)
    while start < rows:
      stop = min(rows, start + self._chunk_rows - self._waiting_rows)
      self._waiting.append(tuple(a[start:stop] for a in arrays))
      self._waiting_rows += stop - start
      start = stop
      if self._waiting_rows == self._chunk_rows:
        self._dispatch()

  def finish(self) -> Int64[np.ndarray, "K D"]:
    if self._waiting_rows:
      self._dispatch()
    while self._in_flight:
      self._check_oldest()
    self._carry()
    return self._total

  def _dispatch(self) -> None:
    columns = [
      parts[0] if len(parts) == 1 else np.concatenate(parts)
      for parts in zip(*self._waiting, strict=True)
    ]
    if padding := self._chunk_rows - self._waiting_rows:
      # A padded row has scale 0, so it is a row of zeros whatever its label.
      columns = [
        np.pad(c, [(0, padding)] + [(0, 0)] * (c.ndim - 1)) for c in columns
      ]
    embedding, scale, label, example_id = columns
    self._waiting, self._waiting_rows = [], 0

    arriving = np.bincount(label, minlength=self._grid.num_classes)
    if (self._class_rows + arriving).max() > _MAX_ROWS_IN_INT32:
      self._carry()
    self._class_rows += arriving
    with jax.enable_x64(True):
      put = functools.partial(jax.device_put, device=self._sharding)
      self._sums, bad = _add_chunk(
        self._sums,
        put(embedding),
        put(scale),
        put(label),
        mesh=self._mesh,
        bias=self._grid.train_bias,
      )
    self._in_flight.append((bad, example_id))
    if len(self._in_flight) > _CHUNKS_IN_FLIGHT:
      self._check_oldest()

  def _check_oldest(self) -> None:
    """Waits for a chunk; this also bounds how far dispatch runs ahead."""
    flags, example_id = self._in_flight.popleft()
    bad = np.asarray(flags)
    if bad.any():
      _refuse(
        example_id,
        bad,
        "its embedding is not finite, or longer than its embedding_norm says",
      )

  def _carry(self) -> None:
    """Moves the int32 sums of the devices into the int64 total."""
    self._total += np.asarray(self._sums).sum(axis=0, dtype=np.int64)
    self._sums = self._zeros()
    self._class_rows[:] = 0
