r"""Private rows: integers of norm ≤ R, a label, and a weight.

    z = rint(x·s),   s = min((R − √d/2 − 1)/‖x‖, R·most),   ‖z‖ ≤ R = 2¹⁴

`most` = ∞ brings every row to norm 1, anything else leaves those shorter than
1/`most` as they are. A privacy unit's rows weigh W together, an integer: the
row of a unit of its own weighs W, and what a unit of many rows is, `units`
says. A row of zeros weighs nothing, and adds nothing to any sum.
"""

import collections
import dataclasses
import hashlib
import math
import resource
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.data import Data, refuse
from oneshot_dp.linear_dp.hosts import Hosts
from oneshot_dp.linear_dp.integers import (
  R,
  integer_rows,
  mapped_rows,
  row_scale,
)

_RESIDENT_BYTES = 2**33
_BUFFERS = 2
"""Chunks that devices may still be reading."""
_ALIGNMENT = 64
"""Of memory that a CPU device reads in place."""


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
  """What sums are of: chunks of one shape, made anew or kept in memory.

  No representation: chunks are private, all else is public.

  Attributes:
    make: starts a pass.
    identity: which function of the cache's rows these are, in hexadecimal.
    power: Σ w^power ≤ W^power over the rows of a unit; 2 is for class sums.
  """

  make: Callable[[], Iterator[Chunk]]
  identity: str
  n: int
  feature_dim: int
  num_classes: int
  weight: int
  power: int
  has_units: bool
  mesh: Mesh
  hosts: Hosts
  _kept: list[Chunk] | None = None

  def chunks(self) -> Iterator[Chunk]:
    """One pass."""
    yield from self.make() if self._kept is None else self._kept

  def kept(self) -> "Rows":
    """These rows, in memory from here on where they fit."""
    size = 2 * self.n * self.feature_dim // self.hosts.count
    if self._kept is None and size <= _RESIDENT_BYTES:
      self._kept = list(self.make())
    return self

  def mapped(
    self,
    centre: Float64[np.ndarray, " d"],
    matrix: Float64[np.ndarray, "d p"] | None,
  ) -> "Rows":
    """(z − c)·A at norm R again: of the row and of what is public alone.

    c is of rows at norm 1. Both are rounded to integers, so that a row has the
    same bits wherever it is. Rows of zeros stay such. InputError: A is of zeros
    or not finite.
    """
    c = np.rint(np.clip(centre, -1, 1) * R)
    a = np.zeros((0, 0))
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      a = np.rint(matrix * (R / longest))

    def make() -> Iterator[Chunk]:
      with jax.enable_x64(True):
        public = jax.device_put(
          (c, a), NamedSharding(self.mesh, PartitionSpec())
        )
      for row, label, weight in self.chunks():
        with jax.enable_x64(True):
          made = mapped_rows(row, *public)
        yield Chunk(made, label, weight)

    made = dataclasses.replace(
      self,
      make=make,
      identity=digest_of(self.identity, c, a),
      feature_dim=self.feature_dim if matrix is None else a.shape[1],
      _kept=None,
    )
    return made.kept()


def rows_of(data: Data, *, most: float = math.inf, power: int = 1) -> Rows:
  """The rows of passes over `data`, brought to norm 1, or cut to norm 1/most.

  Args:
    data: private rows.
    most: ∞, or R·most is the scale of rows that are short enough.
    power: 2 for rows that only class sums are of.

  InputError, in a pass: a row that is not finite or longer than its
  embedding_norm says, or see `Data.checked_blocks`.
  """
  from oneshot_dp.linear_dp.units import mean_rows

  # A TPU adds up int32, which is what class sums are of where no unit has many
  # rows; it has no float64, so its host's CPU does the rest.
  on_tpu = power == 2 and not data.has_units
  devices = jax.local_devices(backend=None if on_tpu else float64_backend())
  mesh = Mesh(np.array(devices), ("data",))
  rows = chunk_rows(data, mesh.size)
  sharding = NamedSharding(mesh, PartitionSpec("data"))

  def make() -> Iterator[Chunk]:
    given = integer_chunks(data, most, rows, sharding)
    if not data.has_units:
      yield from (chunk for chunk, _ in given)
      return
    for columns in mean_rows(given, data, most, power):
      for start in range(0, len(columns[0]), rows):
        some = [padded(c[start : start + rows], rows) for c in columns]
        yield Chunk(*jax.device_put(some, sharding))

  return Rows(
    make=make,
    identity=digest_of(float(most), power, data.weight, data.unit),
    n=data.n,
    feature_dim=data.feature_dim,
    num_classes=data.num_classes,
    weight=data.weight,
    power=power,
    has_units=data.has_units,
    mesh=mesh,
    hosts=data.hosts,
  )


def integer_chunks(
  data: Data, most: float, rows: int, sharding: NamedSharding
) -> Iterator[tuple[Chunk, np.ndarray]]:
  """Rows as they are stored, as integers, and their unit_id; 0 without one.

  Two chunks are on their way at a time.
  """
  flying: collections.deque[tuple[np.ndarray, Array]] = collections.deque()
  for embedding, scale, label, ids, unit_id in _regrouped(data, most, rows):
    with jax.enable_x64(False):
      given = jax.device_put((embedding, scale, label), sharding)
      row, weight, bad = integer_rows(*given[:2], data.weight)
    flying.append((ids, bad))
    yield Chunk(row, given[2], weight), unit_id
    if len(flying) == _BUFFERS:
      _retire(*flying.popleft())
  for waiting in flying:
    _retire(*waiting)


def _retire(ids: np.ndarray, bad: Array) -> None:
  """Waits for a chunk; only then is its memory free for other rows."""
  if (found := np.asarray(bad)).any():
    refuse(
      ids,
      found,
      "its embedding is not finite, or longer than its embedding_norm says",
    )


def _regrouped(
  data: Data, most: float, rows: int
) -> Iterator[tuple[np.ndarray, ...]]:
  """Embeddings, scales, labels, ids and units in chunks, zeros behind the last.

  Embeddings lie in memory that is used again after the next `_BUFFERS`: fresh
  memory, handed out page by page, would cost more than the sums.
  """
  buffers: list[np.ndarray] = []
  into: tuple[np.ndarray, ...] = ()
  turn = filled = 0
  for block in data.checked_blocks():
    embedding = block["embedding"]
    scale = row_scale(block["embedding_norm"], data.feature_dim, most)
    ids = block["example_id"]
    given = embedding, scale, block["label"], ids, block.get("unit_id", ids)
    start = 0
    while start < len(scale):
      if not into:
        if turn <= _BUFFERS:
          buffers.append(_aligned((rows, data.feature_dim), embedding.dtype))
        into = (
          buffers[turn % (_BUFFERS + 1)],
          np.zeros(rows, np.float32),
          np.zeros(rows, np.int32),
          np.full(rows, -1),
          np.zeros(rows, np.int64),
        )
        turn += 1
      if into[0].dtype != embedding.dtype:
        raise InputError(
          f"Blocks of {into[0].dtype} and {embedding.dtype} in one cache:"
          " extract it again."
        )
      stop = min(start + rows - filled, len(scale))
      for column, values in zip(into, given, strict=True):
        column[filled : filled + stop - start] = values[start:stop]
      filled, start = filled + stop - start, stop
      if filled == rows:
        yield into
        into, filled = (), 0
  if into:
    into[0][filled:] = 0
    yield into


def chunk_rows(data: Data, devices: int) -> int:
  """The rows of a chunk, a power of two for each device: few are compiled.

  What a pass makes of a chunk, [c, d] and [c, K], is to stay in a CPU's cache.
  """
  most = 2**18 // data.num_classes, 2**21 // data.feature_dim
  most = min(4096, max(1024, most[0]), max(64, most[1]))
  each = -(-data.n // (devices * data.hosts.count))
  few = max(64, 1 << (each - 1).bit_length())
  return min(few, 1 << (most.bit_length() - 1)) * devices


def float64_backend() -> str | None:
  """Where float64 is: on a TPU's host; None is the devices that JAX has."""
  return "cpu" if jax.default_backend() == "tpu" else None


def padded(column: np.ndarray, rows: int) -> np.ndarray:
  """The column with zeros behind it."""
  missing = [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1)
  return np.pad(column, missing)


def no_core_dumps() -> None:
  """From here on this process leaves no memory on the disk if it crashes."""
  resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def digest_of(*public: Any) -> str:
  """SHA-256 of public numbers, texts and arrays, in hexadecimal."""
  found = hashlib.sha256()
  for value in public:
    array = np.asarray("" if value is None else value)
    found.update(f"{array.dtype.str}{array.shape}".encode())
    found.update(np.ascontiguousarray(array).tobytes())
  return found.hexdigest()


def _aligned(shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
  size = math.prod(shape) * dtype.itemsize
  raw = np.zeros(size + _ALIGNMENT, np.uint8)
  start = -raw.ctypes.data % _ALIGNMENT
  return raw[start : start + size].view(dtype).reshape(shape)
