r"""Rows as the steps of a head read them: of integers, mapped, of one norm.

    z = rint(y·(R − √p/2 − 1)/‖y‖),   y = (v − c)·A,   R = `STEP_RADIUS`

with v the row on the grid of radius R and A, c a `ReleasedMap`; z = v where
there is none. v and y are exact, ‖y‖ is that of integers, of 26 bits, so z has
the same bits wherever its row is. Rows of zeros stay such, wherever c is.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int32

from oneshot_dp.linear_dp.rows.batches import regrouped
from oneshot_dp.linear_dp.rows.integers import integer_rows, row_radius
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.exact_map import STEP_RADIUS, ReleasedMap
from oneshot_dp.linear_dp.statistics.exact_product import (
  exact_product,
  squared_norm,
)

STEP_ROWS, READING = "step rows", "reading"
"""What other hosts are asked for: rows behind a map, and a look at them."""
RESIDENT_BYTES = 2**30
_NORM_BITS = 26


class StepChunk(NamedTuple):
  """z [rows, p] int16, ν [rows] float32, labels [rows] int32, sharded.

  And weights [rows] int32 in steps of 1/B, where rows are parts of units.
  """

  row: Array
  length: Array
  label: Array
  weight: Array | None = None


class StepRows(Secret):
  """z of all rows, kept where they fit in memory, made again where not.

  Formal guarantees: z is a function of its own row and the map, and ‖z‖ ≤ R is
  checked in integers: a row that fails, which none does whose arithmetic is
  IEEE 754's, is one of zeros.

  c and A are those of `released_map`; None leaves rows where they are. Up to
  `resident_bytes` they are kept after the first pass, by all hosts or by none.
  """

  public = ("num_examples",)

  def __init__(
    self,
    rows: SecretRows,
    released_map: ReleasedMap | None = None,
    resident_bytes: int = RESIDENT_BYTES,
  ):
    self.num_examples = rows.num_examples
    self.most_rows = rows.most_rows
    self.mesh = rows.mesh
    self.hosts = rows.hosts
    self.wide = rows.wide
    self.has_units = rows.has_units
    self._rows = rows
    self._map = released_map or ReleasedMap()
    self._resident_bytes = resident_bytes
    self._resident: list[StepChunk] | None = None

  @property
  def secret_units(self) -> int:
    """How many privacy units there are; known after the first pass."""
    return self._rows.secret_units

  def secret_chunks(
    self, chosen: Bool[np.ndarray, " n"] | None = None
  ) -> Iterator[StepChunk]:
    """One pass over rows, in chunks of one shape. Private.

    `chosen` is whether each row is wanted, by its place in a pass, the same in
    all, or each unit by its place; None is every row.

    InputError: see `SecretRows`; once the last chunk was asked for.
    """
    if chosen is None:
      yield from self._all_chunks()
      return
    for columns in regrouped(self._picked(chosen), self._rows.chunk_rows):
      yield StepChunk(*self._rows.sharded(*columns))

  def read(self) -> None:
    """Looks at every row, and keeps those that fit; see `secret_chunks`."""
    self.share()
    self.hosts.ask(READING)
    for _ in self._all_chunks():
      pass
    self.hosts.sum()

  def share(self) -> None:
    """Has the other hosts take theirs of these rows, where they do not yet."""
    if self.hosts.count > 1 and self.hosts.rows is not self:
      self._rows.count_units()
      self.hosts.rows, self._resident = self, None
      where = self._map
      self.hosts.ask(
        STEP_ROWS,
        max_norm=self._rows.max_norm,
        matrix=where.matrix,
        centre=where.centre,
      )
      self.hosts.sum()

  def _picked(
    self, chosen: Bool[np.ndarray, " n"]
  ) -> Iterator[list[np.ndarray]]:
    own = self._rows.own_rows
    start = own.start
    for i, chunk in enumerate(self._all_chunks()):
      if self.has_units:
        of_chunk = chosen[self._rows.secret_places[i]]
      else:
        of_chunk = chosen[start : own.stop][: len(chunk.label)]
        start += len(chunk.label)
      yield [
        np.asarray(column)[: len(of_chunk)][of_chunk]
        for column in chunk
        if column is not None
      ]

  def _all_chunks(self) -> Iterator[StepChunk]:
    if self._resident is not None:
      yield from self._resident
      return
    kept: list[StepChunk] | None = []
    size = 0
    with jax.enable_x64(True):
      same = NamedSharding(self.mesh, PartitionSpec())
      where = self._map
      parts = jax.device_put(
        tuple(
          part if part is None else part.astype(np.int32)
          for part in (where.matrix, where.centre, where.image_of_centre)
        ),
        same,
      )
    for chunk in self._rows.secret_chunks():
      with jax.enable_x64(True):
        row = _mapper(self.mesh, self.wide)(
          *parts, chunk.embedding, chunk.scale
        )
      made = StepChunk(row, chunk.length, chunk.label, chunk.weight)
      yield made
      size += sum(column.nbytes for column in jax.tree.leaves(made))
      if kept is not None and size <= self._resident_bytes:
        kept.append(made)
      else:
        kept = None
    # All hosts or none: a pass over units is one that they make together.
    (missing,) = self.hosts.sum(np.array([kept is None], int), ends_pass=False)
    self._resident = None if missing.any() else kept


@functools.cache
def _mapper(mesh: Mesh, wide: jnp.dtype) -> Callable[..., Array]:
  """Compiles (A, c, c·A, embedding, scale) → z."""

  def mapped(
    matrix: Array | None,
    centre: Array | None,
    image: Array | None,
    embedding: Array,
    scale: Array,
  ) -> Array:
    d = embedding.shape[1]
    coarser = row_radius(d, STEP_RADIUS) / row_radius(d)
    v = integer_rows(embedding, scale * jnp.float32(coarser)).astype(jnp.int32)
    y = v
    if matrix is not None:
      y = exact_product(v, matrix, (2, 2), wide, jnp.int32)
    if image is not None:
      y = jnp.where(scale[:, None] > 0, y - image, 0)
    z = v if y is v else _directions(y, wide)
    return jnp.where(squared_norm(z, wide) <= STEP_RADIUS**2, z, 0).astype(
      jnp.int16
    )

  data, same = PartitionSpec("data"), PartitionSpec()
  return jax.jit(
    jax.shard_map(
      mapped, mesh=mesh, in_specs=(same,) * 3 + (data,) * 2, out_specs=data
    )
  )


def _directions(
  y: Int32[Array, "rows p"], wide: jnp.dtype
) -> Int32[Array, "rows p"]:
  """y at the norm R − √p/2 − 1, rounded; zeros stay zeros."""
  p = y.shape[1]
  real = y.astype(jnp.float32)
  most = jnp.maximum(jnp.abs(real).max(axis=1, keepdims=True), 1)
  half_dim_bits = ((p - 1).bit_length() + 1) // 2
  inverse = 1 / most  # of rows: XLA may, or may not, divide by it so
  part = jnp.rint(real * inverse * 2.0 ** (_NORM_BITS - half_dim_bits))
  norm = jnp.sqrt(squared_norm(part, wide).astype(jnp.float32))
  radius = jnp.float32(row_radius(p, STEP_RADIUS))
  z = jnp.rint(part * (radius / jnp.maximum(norm, 1)))
  return z.astype(jnp.int32)
