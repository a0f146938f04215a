"""What sums are of: rows of integers, each with a label and a weight.

A privacy unit weighs W, an integer: one row, or what `units` makes of many. A
row of zeros weighs nothing, and adds nothing to any sum.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import (
  ROW_NORM,
  PrivateDataset,
  integer_rows,
  mapped_rows,
  room_in_ball,
  row_scale,
  unit_rows,
)

DATA, SAME = PartitionSpec("data"), PartitionSpec()
_RESIDENT_BYTES = 2**33
_IN_FLIGHT = 1  # chunks, beside the last, that devices may still be reading


class Chunk(NamedTuple):
  """Rows on the devices: z int16 [c, d], labels and weights int32 [c].

  Padding is rows of zeros, of weight 0.
  """

  row: Array
  label: Array
  weight: Array

  def __repr__(self) -> str:
    return "Chunk(<private>)"


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Rows:
  """Chunks of one shape, made anew for each pass or kept in memory.

  Attributes:
    data: which rows they are of.
    iter_chunks: starts a pass.
    identity: which function of the data these are, in hexadecimal.
    feature_dim: d, or p behind a map.
    weight_norm_order: p, where Σ w^p ≤ W^p over the rows of a unit; 2 is for
      class sums.
    mesh: of the devices that they are on.
    keep: from the first pass on in memory, where they fit.
    note: what a person is told of where these are summed, if anything.
  """

  data: PrivateDataset
  iter_chunks: Callable[[], Iterator[Chunk]]
  identity: str
  feature_dim: int
  weight_norm_order: int
  mesh: Mesh
  keep: bool = False
  note: str = ""
  # Exact, private sums: the door's own, so that what many ε buy is summed once.
  _totals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  _kept: list[Chunk] | None = None

  def chunks(self) -> Iterator[Chunk]:
    """One pass."""
    if self._kept is not None:
      yield from self._kept
      return
    size = 2 * self.data.n * self.feature_dim // self.data.hosts.count
    kept, fits = [], self.keep and size <= _RESIDENT_BYTES
    for chunk in self.iter_chunks():
      if fits:
        kept.append(chunk)
      yield chunk
    self._kept = kept if fits else None

  def validate(self) -> None:
    """One pass; what is wrong with a row is an InputError, on all hosts."""
    self.data.hosts.sum(lambda: np.array([sum(1 for _ in self.chunks())]))

  def mapped(
    self,
    centre: Float64[np.ndarray, " d"],
    matrix: Float64[np.ndarray, "d p"] | None,
  ) -> "Rows":
    """(z − c)·A at norm R again, kept; see `mapped_rows`.

    Both are public, and rounded to integers; c is of rows at norm 1.
    InputError: A is of zeros or not finite.
    """
    c, a = np.rint(np.clip(centre, -1, 1) * ROW_NORM), np.zeros((0, 0))
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      a = np.rint(matrix * (ROW_NORM / longest))

    def iter_chunks() -> Iterator[Chunk]:
      with jax.enable_x64(True):
        public = jax.device_put((c, a), NamedSharding(self.mesh, SAME))
      for chunk in self.chunks():
        with jax.enable_x64(True):
          row = mapped_rows(chunk.row, *public)
        yield chunk._replace(row=row)

    return Rows(
      data=self.data,
      iter_chunks=iter_chunks,
      identity=digest_of(self.identity, c, a),
      feature_dim=self.feature_dim if matrix is None else a.shape[1],
      weight_norm_order=self.weight_norm_order,
      mesh=self.mesh,
      keep=True,
    )


def rows_of(
  data: PrivateDataset,
  *,
  max_inverse_norm: float = math.inf,
  weight_norm_order: int = 1,
  per_row: bool = False,
  keep: bool = False,
) -> Rows:
  """Rows of `data`, brought to norm 1, or cut to norm 1/max_inverse_norm.

  With weight_norm_order 2 they are for class sums alone; with `per_row` (and
  order 1) the rows of a unit come one by one, not as their means.

  InputError, in a pass: a row that is not finite or longer than its
  embedding_norm says, or see `PrivateDataset.checked_blocks`.
  """
  # A TPU adds up int32, which is what class sums are of where no unit has many
  # rows; it has no float64, so its host's CPU does the rest.
  on_host = jax.default_backend() == "tpu" and (
    weight_norm_order == 1 or data.has_units
  )
  devices = jax.local_devices(backend="cpu" if on_host else None)
  mesh = Mesh(np.array(devices), ("data",))
  rows = _chunk_rows(data, mesh.size)

  def iter_chunks() -> Iterator[Chunk]:
    parts = _integer_chunks(
      data, max_inverse_norm, rows, NamedSharding(mesh, DATA)
    )
    if not data.has_units:
      yield from (chunk for chunk, _ in parts)
      return
    stored = ((*map(np.asarray, chunk), unit) for chunk, unit in parts)
    for columns in unit_rows(
      stored,
      data.hosts.own_units,
      data.weight,
      room=room_in_ball(data.feature_dim)
      if max_inverse_norm == math.inf
      else None,
      power=weight_norm_order,
      each=per_row,
    ):
      for start in range(0, len(columns[0]), rows):
        some = (column[start : start + rows] for column in columns)
        padded = [
          np.pad(c, [(0, rows - len(c)), (0, 0)][: c.ndim]) for c in some
        ]
        yield Chunk(*jax.device_put(padded, NamedSharding(mesh, DATA)))

  return Rows(
    data=data,
    iter_chunks=iter_chunks,
    identity=digest_of(
      float(max_inverse_norm),
      weight_norm_order,
      per_row,
      data.weight,
      data.unit,
    ),
    feature_dim=data.feature_dim,
    weight_norm_order=weight_norm_order,
    mesh=mesh,
    keep=keep,
    note="A TPU's host makes the sums, in its float64." if on_host else "",
  )


def _chunk_rows(data: PrivateDataset, devices: int) -> int:
  """A power of two a device: few are compiled; [c, d] and [c, K] fit caches."""
  k, d = data.num_classes, data.feature_dim
  most = max(2**18 // k, min(1024, 2**22 // k))
  most = max(64, min(2048, most, 2**21 // d))
  each = max(64, -(-data.n // (devices * data.hosts.count)))
  few = min(1 << (each - 1).bit_length(), 1 << (most.bit_length() - 1))
  return few * devices


def _integer_chunks(
  data: PrivateDataset, most: float, rows: int, sharding: NamedSharding
) -> Iterator[tuple[Chunk, np.ndarray]]:
  """Rows as they are stored, as integers, and their units."""
  flying: list[tuple[np.ndarray, Array]] = []

  def land(most: int) -> None:
    """Waits until so few are on their way: the others are in the ball."""
    while len(flying) > most:
      ids, bad = flying.pop(0)
      if (found := np.asarray(bad)).any():
        what = "is not finite, or longer than embedding_norm says"
        data.refuse(ids, found, f"its embedding {what}")

  for embedding, scale, label, ids, unit in _regrouped(data, most, rows):
    with jax.enable_x64(False):
      given = jax.device_put((embedding, scale, label), sharding)
      row, weight, bad = integer_rows(*given[:2], data.weight)
    flying.append((ids, bad))
    yield Chunk(row, given[2], weight), unit
    land(most=_IN_FLIGHT)
  land(most=0)


def _regrouped(
  data: PrivateDataset, most: float, rows: int
) -> Iterator[tuple[np.ndarray, ...]]:
  """Embeddings, scales, labels, ids, units in chunks, zeros behind the last."""
  into: list[np.ndarray] = []
  filled = 0
  for block in data.checked_blocks():
    ids = block["example_id"]
    scale = row_scale(block["embedding_norm"], data.feature_dim, most)
    unit = block.get("unit_id", ids)
    given = block["embedding"], scale, block["label"], ids, unit
    start = 0
    while start < len(ids):
      columns = [c[start : start + rows - filled] for c in given]
      if len(columns[0]) == rows:  # as it lies
        start += rows
        yield tuple(columns)
        continue
      into = into or [np.empty((rows, *c.shape[1:]), c.dtype) for c in columns]
      stop = filled + len(columns[0])
      for column, values in zip(into, columns, strict=True):
        column[filled:stop] = values
      start, filled = start + stop - filled, stop
      if filled == rows:
        yield tuple(into)
        into, filled = [], 0
  for column in into:
    column[filled:] = 0
  if into:
    yield tuple(into)


def digest_of(*public: Any) -> str:
  """SHA-256 of public numbers, texts and arrays, in hexadecimal."""
  found = hashlib.sha256()
  for value in public:
    array = np.asarray("" if value is None else value)
    found.update(f"{array.dtype.str}{array.shape}".encode())
    found.update(np.ascontiguousarray(array).tobytes())
  return found.hexdigest()
