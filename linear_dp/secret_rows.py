r"""Private rows at unit norm, as integers on the devices, for several passes.

A row is u = rint(x̃·s), with s = (B − √d/2 − 1)/‖x‖: of norm B, but for the
rounding, and never more. Nothing but its direction is kept, so every row weighs
the same, whatever the backbone's norms, and no row needs clipping.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float64

from configs.errors import InputError
from linear_dp.ball_check import within_ball_float64
from linear_dp.clipping import GRID_RADIUS
from linear_dp.row_block import (
  OFF_THE_BALL,
  RowBlock,
  refuse,
  refuse_units,
)
from linear_dp.row_stream import checked

ROWS_PER_DEVICE = 8192
"""In a chunk: 2¹³·B² = 2⁵³, so float64 products of rows add up exactly."""
_FLOAT64_PLATFORMS = ("cpu", "cuda", "rocm", "gpu")
_RESIDENT_BYTES = 4 * 2**30

Chunk = tuple[Array, Array, Array]
"""Embeddings as stored [rows, d], scales [rows], labels [rows], sharded. Rows
of padding have scale 0."""


class SecretRows:
  """What private heads of several steps read, once or many times.

  Formal guarantees: in every pass each row obeys ‖u‖² ≤ B², checked in
  integers; every example_id comes once; there are `num_examples` rows. Where
  one of these fails the pass ends with an error.

  Args:
    read: starts a pass over the blocks, in any order and any block size.
    feature_dim: d.
    num_classes: K.
    num_examples: n, the number of rows that there must be; public.
    devices: what to run on, rows sharded over all; None is all local devices.
    resident_bytes: rows are kept after the first pass if they take no more
      than this; otherwise each pass reads them again.

  Raises:
    InputError: devices without float64; or, in a pass, damaged rows, or rows
      with a `unit_id`.
  """

  def __init__(
    self,
    read: Callable[[], Iterable[RowBlock]],
    *,
    feature_dim: int,
    num_classes: int,
    num_examples: int,
    devices: Sequence[jax.Device] | None = None,
    resident_bytes: int = _RESIDENT_BYTES,
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
    self.mesh = Mesh(np.array(devices), ("data",))
    self._read = read
    self._resident_bytes = resident_bytes
    self._resident: list[Chunk] | None = None

  def __repr__(self) -> str:
    return f"SecretRows(num_examples={self.num_examples}, <private>)"

  def __reduce__(self):
    raise TypeError("SecretRows are private and are never serialised.")

  def secret_chunks(self) -> Iterator[Chunk]:
    """One pass over all rows, in chunks of one shape. Private.

    Raises:
      InputError: see the class; only once the last chunk was asked for.
    """
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
    rows = ROWS_PER_DEVICE * self.mesh.size
    sharding = NamedSharding(self.mesh, PartitionSpec("data"))
    blocks = checked(
      self._read(),
      feature_dim=self.feature_dim,
      num_classes=self.num_classes,
      num_examples=self.num_examples,
    )
    for columns in _regrouped(blocks, rows):
      embedding, norm, label, example_id = columns
      scale = unit_scale(norm, self.feature_dim)
      with jax.enable_x64(True):
        chunk = tuple(
          jax.device_put(_padded(column, rows), sharding)
          for column in (embedding, scale, label)
        )
        bad = np.asarray(_leaves_ball(*chunk[:2]))[: len(label)]
      if bad.any():
        refuse(example_id, bad, OFF_THE_BALL)
      yield chunk


def unit_scale(
  norm: Float[np.ndarray, " rows"], feature_dim: int
) -> Float[np.ndarray, " rows"]:
  r"""The factor from an embedding to its integers: (B − √d/2 − 1)/‖x‖.

  A little less than B: rounding moves a row by at most √d/2 steps, and 1 step
  pays for the float32 products.

  Args:
    norm: [rows] L2 norm of each stored embedding.
    feature_dim: d.

  Returns:
    [rows] float32; 0 for a row of zeros, and for one so short that its factor
    would leave float32.
  """
  radius = GRID_RADIUS - math.sqrt(feature_dim) / 2 - 1
  norm = np.asarray(norm, np.float64)
  floor = radius / float(np.finfo(np.float32).max)
  return np.divide(
    radius, norm, out=np.zeros_like(norm), where=norm > floor
  ).astype(np.float32)


def integer_rows(embedding: Array, scale: Array) -> Float64[Array, "rows d"]:
  """u, exact integers in float64; to be traced under `jax.enable_x64`."""
  products = embedding.astype(jnp.float32) * scale[:, None]
  return jnp.rint(products).astype(jnp.float64)


@jax.jit
def _leaves_ball(embedding: Array, scale: Array) -> Array:
  products = embedding.astype(jnp.float32) * scale[:, None]
  return ~within_ball_float64(jnp.rint(products))


def _regrouped(
  blocks: Iterable[RowBlock], rows: int
) -> Iterator[list[np.ndarray]]:
  """Columns of `rows` rows each, the last ones perhaps of fewer."""
  waiting: list[list[np.ndarray]] = []
  count = 0
  for block in blocks:
    refuse_units(block)
    columns = [
      block.embedding,
      block.embedding_norm,
      block.label,
      block.example_id,
    ]
    start = 0
    while start < len(block.label):
      part = [np.array(c[start : start + rows - count]) for c in columns]
      waiting.append(part)
      count += len(part[0])
      start += len(part[0])
      if count == rows:
        yield _joined(waiting)
        waiting, count = [], 0
  if waiting:
    yield _joined(waiting)


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
  return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _padded(column: np.ndarray, rows: int) -> np.ndarray:
  missing = rows - len(column)
  return np.pad(column, [(0, missing)] + [(0, 0)] * (column.ndim - 1))
