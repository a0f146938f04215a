r"""Private rows: integers of norm ≤ R, a label, and a weight.

    z = rint(x·s),   s = min((R − √d/2 − 1)/‖x‖, R·most),   ‖z‖ ≤ R = 2¹⁴

`most` = ∞ brings every row to norm 1, anything else leaves those shorter than
1/`most` as they are. A privacy unit's rows weigh W together, an integer: one
row of a unit of its own weighs W, and what a unit of many rows is, `units`
says. A row of zeros weighs nothing, and adds nothing to any sum.
"""

import dataclasses
import functools
import hashlib
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float64, Int, Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.hosts import ALONE, Hosts

R = 2**14
"""Norm of the longest row: it fits int16, and a float16 is no finer."""
WEIGHT = 2**20
"""What a privacy unit weighs, where n leaves room for it in int64."""
MOST_ROWS = 10**10
_RESIDENT_BYTES = 2**33
_STORED = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)

Block = Mapping[str, np.ndarray]
"""Columns embedding [r, d], embedding_norm, label, example_id [r] and, where a
privacy unit may have many rows, unit_id [r]."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Data:
  """Private rows as they are read, and what is public of them.

  Attributes:
    blocks: starts a pass over this host's rows, in any order, any block size.
    n: the public number of rows; of a part, its mean.
    feature_dim: d.
    num_classes: K.
    unit: what the privacy unit is; where not "example", rows have a unit_id.
    hosts: that have a part of the rows each.
  """

  blocks: Callable[[], Iterable[Block]]
  n: int
  feature_dim: int
  num_classes: int
  unit: str = "example"
  hosts: Hosts = ALONE

  def __post_init__(self):
    if not 1 <= self.n <= MOST_ROWS:
      raise InputError(
        f"n={self.n} rows: exact sums are of 1 to {MOST_ROWS:.0e} rows."
      )
    if self.num_classes < 1 or self.feature_dim < 1:
      raise InputError(
        f"num_classes={self.num_classes} and feature_dim={self.feature_dim}"
        " must be at least 1."
      )

  @property
  def has_units(self) -> bool:
    return self.unit != "example"

  @property
  def weight(self) -> int:
    """W: a power of two, so small that n·W·R is at most 2⁶¹."""
    return min(WEIGHT, 2**47 >> (self.n - 1).bit_length())


class Chunk(NamedTuple):
  """Rows on the devices: int16 [c, d], int32 [c] labels, int32 [c] weights.

  Padding is rows of zeros, of weight 0.
  """

  row: Array
  label: Array
  weight: Array


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Rows:
  """What sums are of: chunks of one shape, made anew or kept in memory.

  No representation: chunks are private, all else is public.

  Attributes:
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

    c is of rows at norm 1. Both are rounded to integers, so that what is
    rounded of a row has the same bits wherever it is.
    """
    c = np.rint(np.clip(centre, -1, 1) * R)
    a = None
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      a = np.rint(matrix * (R / longest))

    def make() -> Iterator[Chunk]:
      for row, label, weight in self.chunks():
        with jax.enable_x64(True):
          yield Chunk(_map(row, c, a), label, weight)

    made = dataclasses.replace(
      self,
      make=make,
      identity=digest_of(self.identity, c, a),
      feature_dim=self.feature_dim if a is None else a.shape[1],
      _kept=None,
    )
    return made.kept()


def rows_of(data: Data, *, most: float = math.inf, power: int = 1) -> Rows:
  """The rows of a pass over `data`, brought to norm 1, or shortened to 1/most.

  Args:
    most: ∞, or R·most is the scale of rows that are short enough.
    power: 2 for rows that only class sums are of.

  InputError, in a pass: a row that is not finite or longer than its
  embedding_norm says, or of no class, by its example_id alone.
  """
  from oneshot_dp.linear_dp.units import mean_rows

  mesh = Mesh(np.array(sum_devices()), ("data",))
  rows = chunk_rows(data, mesh.size)

  def make() -> Iterator[Chunk]:
    parts = mean_rows(data, most, power) if data.has_units else _own(data, most)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    for columns in _regrouped(parts, rows):
      yield Chunk(*(jax.device_put(column, sharding) for column in columns))

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


def array_data(
  embeddings: Shaped[np.ndarray | jax.Array, "..."],
  labels: Shaped[np.ndarray | jax.Array, "..."],
  *,
  num_classes: int,
  unit_ids: Shaped[np.ndarray | jax.Array, "..."] | None = None,
) -> Data:
  """Arrays in memory as private rows, all checked.

  Args:
    embeddings: [n, d] floats; float64 is rounded to float32.
    labels: [n] integers in [0, K).
    num_classes: K, known without the labels, which are private.
    unit_ids: [n] integers, whose each row is; None where every row is a unit.

  InputError: a wrong dtype or shape, no rows, an embedding that is not finite
  in float32, a label outside [0, K). Names the first such row, never its
  label or numbers.
  """
  embedding = np.asarray(embeddings)
  if embedding.dtype not in _STORED:
    raise InputError(
      f"embeddings are {embedding.dtype}: give float16, bfloat16, float32 or"
      " float64."
    )
  if embedding.ndim != 2 or not embedding.size:
    raise InputError(
      f"embeddings have shape {embedding.shape}: give [n, d], n and d at"
      " least 1."
    )
  if embedding.dtype == np.float64:
    with np.errstate(over="ignore"):  # what leaves float32 is refused below
      embedding = embedding.astype(np.float32)
  n = len(embedding)
  columns = {
    "embedding": embedding,
    "embedding_norm": norms(embedding),
    "label": _integers("labels", labels, n),
    "example_id": np.arange(n),
  }
  outside = (columns["label"] < 0) | (columns["label"] >= num_classes)
  if outside.any():
    raise InputError(
      f"labels[{outside.argmax()}] is not one of the num_classes={num_classes}"
      f" classes: labels run from 0 to {num_classes - 1}."
    )
  if not (fine := np.isfinite(columns["embedding_norm"])).all():
    raise InputError(
      f"embeddings[{fine.argmin()}] is not finite, or too long for float32:"
      " mend the row, or leave it out."
    )
  columns["label"] = columns["label"].astype(np.int32)
  if unit_ids is not None:
    columns["unit_id"] = _integers("unit_ids", unit_ids, n)
  return Data(
    blocks=lambda: [columns],
    n=n,
    feature_dim=embedding.shape[1],
    num_classes=num_classes,
    unit="example" if unit_ids is None else "unit",
  )


def norms(embedding: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
  """L2 norms in float64, rounded once to float32."""
  norm = np.empty(len(embedding), np.float32)
  with np.errstate(over="ignore"):
    for start in range(0, len(embedding), 4096):  # as float64 takes room
      part = slice(start, start + 4096)
      norm[part] = np.linalg.norm(embedding[part].astype(np.float64), axis=1)
  return norm


def integers_of(
  block: Block, most: float
) -> tuple[Int[np.ndarray, "r d"], Int[np.ndarray, " r"]]:
  """z of a block's rows, and 1 where one is not null. InputError: see above."""
  embedding, norm = block["embedding"], block["embedding_norm"]
  room = R - math.sqrt(embedding.shape[1]) / 2 - 1
  wide = norm.astype(np.float64)
  floor = room / float(np.finfo(np.float32).max)
  scale = np.divide(room, wide, out=np.zeros_like(wide), where=wide > floor)
  scale = np.minimum(scale, R * most).astype(np.float32)
  with np.errstate(over="ignore", invalid="ignore"):
    z = np.rint(embedding.astype(np.float32) * scale[:, None])
    inside = np.square(z, dtype=np.float64).sum(axis=1) <= R * R
  if not inside.all():
    refuse(
      block,
      ~inside,
      "its embedding is not finite, or longer than its embedding_norm says",
    )
  return z.astype(np.int16), z.any(axis=1)


def checked_blocks(data: Data) -> Iterator[Block]:
  """The blocks of a pass, each of the right shapes and of rows with a class."""
  for block in data.blocks():
    r = len(block["label"])
    if block["embedding"].shape != (r, data.feature_dim):
      raise InputError(
        f"A block of embeddings has shape {block['embedding'].shape}, not"
        f" ({r}, {data.feature_dim})."
      )
    if data.has_units != ("unit_id" in block):
      raise InputError(
        f"The rows have {'no' if data.has_units else 'a'} unit_id, but the"
        f" privacy unit is {data.unit!r}."
      )
    norm = block["embedding_norm"]
    if not (fine := np.isfinite(norm) & (norm >= 0)).all():
      refuse(block, ~fine, "its embedding_norm is not finite")
    bad = (block["label"] < 0) | (block["label"] >= data.num_classes)
    if bad.any():
      refuse(block, bad, f"its label is outside [0, {data.num_classes})")
    yield block


def refuse(block: Block, bad: np.ndarray, reason: str) -> None:
  """Raises an InputError for the first bad row, by its id alone."""
  raise InputError(
    f"example_id={block['example_id'][np.flatnonzero(bad)[0]]}: {reason}. Run"
    " `oneshot-dp verify` on the cache, then extract it again."
  )


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


def sum_devices() -> list[jax.Device]:
  """The devices that have float64: a TPU's host has them in its stead."""
  devices = jax.local_devices()
  return (
    jax.local_devices(backend="cpu")
    if devices[0].platform == "tpu"
    else devices
  )


def chunk_rows(data: Data, devices: int) -> int:
  """The rows of a chunk, a power of two for each device: few are compiled."""
  most = min(4096, max(1024, 2**20 // data.num_classes))
  each = -(-data.n // (devices * data.hosts.count))
  return min(most, max(64, 1 << (each - 1).bit_length())) * devices


def _own(data: Data, most: float) -> Iterator[tuple[np.ndarray, ...]]:
  """Columns of rows that are privacy units: z, label, weight."""
  for block in checked_blocks(data):
    z, counts = integers_of(block, most)
    yield z, block["label"].astype(np.int32), counts * np.int32(data.weight)


def _regrouped(
  parts: Iterable[tuple[np.ndarray, ...]], rows: int
) -> Iterator[tuple[np.ndarray, ...]]:
  """Columns of `rows` rows each; behind the last ones there are zeros."""
  into: tuple[np.ndarray, ...] | None = None
  filled = 0
  for columns in parts:
    start = 0
    while start < len(columns[0]):
      if into is None:
        into = tuple(np.zeros((rows, *c.shape[1:]), c.dtype) for c in columns)
      taken = min(rows - filled, len(columns[0]) - start)
      for column, given in zip(into, columns, strict=True):
        column[filled : filled + taken] = given[start : start + taken]
      filled, start = filled + taken, start + taken
      if filled == rows:
        yield into
        into, filled = None, 0
  if into is not None:
    yield into


def _integers(name: str, values: Any, rows: int) -> Int[np.ndarray, " n"]:
  array = np.asarray(values)
  if array.dtype.kind not in "iu":
    raise InputError(f"{name} are {array.dtype}: give integers.")
  if array.shape != (rows,):
    raise InputError(
      f"{name} have shape {array.shape}: give one for each of the {rows}"
      " embeddings."
    )
  return array.astype(np.int64)


@functools.partial(jax.jit)
def _map(row: Array, centre: Array, matrix: Array | None) -> Array:
  y = row.astype(jnp.float64) - centre
  if matrix is not None:
    y = y @ matrix  # of integers below 2⁵³: exact
  p = y.shape[1]
  # To as many bits as squares add up exactly with, by a power of two.
  bits = (52 - (p - 1).bit_length()) // 2
  _, exponent = jnp.frexp(jnp.abs(y).max(1, keepdims=True))
  part = jnp.rint(jnp.ldexp(y, bits - exponent))
  norm = jnp.sqrt(jnp.square(part).sum(1, keepdims=True))
  room = R - math.sqrt(p) / 2 - 1
  z = jnp.rint(part * (room / jnp.maximum(norm, 1)))
  z = jnp.where((row != 0).any(1, keepdims=True), z, 0)  # a null row stays one
  short = jnp.square(z).sum(1, keepdims=True) <= R * R
  return jnp.where(short, z, 0).astype(jnp.int16)
