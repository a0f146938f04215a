"""Passes over private rows: integers on the devices, in chunks of one shape.

A row has a label and a weight. Where each row is a privacy unit of its own, it
weighs W. For units of many rows, `privacy_units` makes rows whose weights add
up to at most W; rows that units share are weighed by the dataset. A row of
zeros weighs nothing.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import Block, PrivateDataset, digest_of
from oneshot_dp.linear_dp.privacy_units import (
  StoredRows,
  place_whole_units,
  unit_rows,
)
from oneshot_dp.linear_dp.quantize import (
  ROW_NORM,
  integer_rows,
  mapped_rows,
  room_in_ball,
  row_scale,
)

DATA = PartitionSpec("data")
SAME = PartitionSpec()
"""How arrays lie on the devices: split by rows, or whole on each."""

_RESIDENT_BYTES = 2**33  # of rows that are kept in memory
_MAX_UNCHECKED = 1  # chunks, beside the last, that devices may still work on


class Chunk(NamedTuple):
  """Rows on the devices; padding is rows of zeros, of weight 0.

  Attributes:
    row: z int16 [c, d].
    label: int32 [c].
    weight: int32 [c].
    unit_slots: m, where privacy units of many rows lie whole: on each device,
      rows 0 to m − 1 are one unit's, the next m another's, and so on; rows
      behind the last full m are padding. None where each row stands alone.
  """

  row: Array
  label: Array
  weight: Array
  unit_slots: int | None = None

  @property
  def arrays(self) -> tuple[Any, Any, Any]:
    """The columns row, label and weight: arrays, or shapes to compile for."""
    return self.row, self.label, self.weight

  def __repr__(self) -> str:
    return "Chunk(<private>)"


class SumCache:
  """Exact sums over one `Rows`: PRIVATE, and for `PrivateSums` alone.

  Draws and larger ε release the same sums again; each is computed once.
  """

  def __init__(self):
    self._sums: dict[str, np.ndarray] = {}

  def __len__(self) -> int:
    return len(self._sums)

  def get(self, key: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """Returns the sum of this key, computed at the first call."""
    if key not in self._sums:
      self._sums[key] = compute()
    return self._sums[key]


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class Rows:
  """Chunks of one shape, made anew for each pass or kept in memory.

  Attributes:
    data: the dataset that the rows come from.
    iter_chunks: makes the chunks of one pass.
    identity: which function of the dataset the rows are, in hexadecimal.
    feature_dim: d, or p behind a map.
    weight_norm_order: p, where Σ w^p ≤ W^p over the rows of a unit. Order 2 is
      for class sums alone, whose blocks are orthogonal.
    mesh: the devices that the rows lie on.
    keep: whether rows stay in memory after the first pass, where they fit.
    note: a remark for the user about where the rows are summed; "" if none.
    sum_cache: exact sums over the rows, for `PrivateSums` alone.
  """

  data: PrivateDataset
  iter_chunks: Callable[[], Iterator[Chunk]]
  identity: str
  feature_dim: int
  weight_norm_order: int
  mesh: Mesh
  keep: bool = False
  note: str = ""
  sum_cache: SumCache = dataclasses.field(default_factory=SumCache)
  _kept: list[Chunk] | None = None

  def chunks(self) -> Iterator[Chunk]:
    """Yields the chunks of one pass, from memory if they were kept."""
    if self._kept is not None:
      yield from self._kept
      return
    # Rows are int16. They are kept only once a pass has come to its end: a part
    # of them, of a caller that stopped early, would be taken for all.
    size = 2 * self.data.n * self.feature_dim // self.data.hosts.count
    fits = self.keep and size <= _RESIDENT_BYTES
    kept = []
    for chunk in self.iter_chunks():
      if fits:
        kept.append(chunk)
      yield chunk
    if fits:
      self._kept = kept

  def validate(self) -> None:
    """Checks all rows, in one pass.

    Raises:
      InputError: on all hosts: a row of one is not valid, or all rows of all
        hosts are zeros.
    """

    def find_row() -> np.ndarray:
      has_row = False
      for chunk in self.chunks():
        # Devices are waited for only until the first row is found.
        has_row = has_row or bool(np.asarray(chunk.weight).any())
      return np.array([int(has_row)])

    # A budget would be spent on nothing: rows of zeros add to no sum.
    if not self.data.hosts.sum(find_row).any():
      raise InputError(
        f"{self.data.name}: all embeddings are zeros, or so short that they"
        " round to zeros: look for what went wrong in the backbone or import."
      )

  def mapped(
    self,
    center: Float64[np.ndarray, " d"],
    matrix: Float64[np.ndarray, "d p"] | None,
  ) -> "Rows":
    """The rows (z − c)·A, brought to norm R again and kept.

    Args:
      center: c [d] for rows at norm 1, public; rounded to integers.
      matrix: A [d, p], public; rounded to integers. None for z − c alone.

    Raises:
      InputError: A has no entry that is not 0, or one that is not finite.
    """
    # Public integers, so that products with rows are exact.
    integer_center = np.rint(np.clip(center, -1, 1) * ROW_NORM)
    integer_matrix = np.zeros((0, 0))
    feature_dim = self.feature_dim
    if matrix is not None:
      longest = np.linalg.norm(matrix, axis=0).max()
      if not 0 < longest < math.inf:
        raise InputError(f"a map whose longest column has norm {longest}.")
      integer_matrix = np.rint(matrix * (ROW_NORM / longest))
      feature_dim = matrix.shape[1]

    def iter_mapped_chunks() -> Iterator[Chunk]:
      on_all = NamedSharding(self.mesh, SAME)
      with jax.enable_x64(True):
        public = jax.device_put((integer_center, integer_matrix), on_all)
      for chunk in self.chunks():
        with jax.enable_x64(True):
          row = mapped_rows(chunk.row, *public)
        yield chunk._replace(row=row)

    return Rows(
      data=self.data,
      iter_chunks=iter_mapped_chunks,
      identity=digest_of(self.identity, integer_center, integer_matrix),
      feature_dim=feature_dim,
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
  """The rows of a dataset as integers; nothing is read yet.

  Args:
    data: the private dataset.
    max_inverse_norm: infinite for rows that are all brought to norm 1;
      otherwise rows are cut to norm 1/max_inverse_norm.
    weight_norm_order: 2 for class sums alone, 1 for everything else.
    per_row: gives the rows of a unit one by one, sharing its weight, in place
      of the means of its classes.
    keep: whether rows stay in memory after the first pass, where they fit.

  Returns:
    The rows. A pass raises InputError for a row that is not finite, or longer
    than its embedding_norm says, and as `PrivateDataset.checked_blocks` does.
  """
  # A TPU has no float64, but can add up int32, which is enough for class sums
  # where each row is a unit. All other sums run on the CPU of its host.
  needs_float64 = weight_norm_order == 1 or data.has_units
  is_on_host = jax.default_backend() == "tpu" and needs_float64
  devices = jax.local_devices(backend="cpu" if is_on_host else None)
  mesh = Mesh(np.array(devices), ("data",))
  num_rows = _chunk_rows(data, mesh.size)
  sharding = NamedSharding(mesh, DATA)

  def stored_chunks() -> Iterator[Chunk]:
    for chunk, _ in _integer_chunks(data, max_inverse_norm, num_rows, sharding):
      yield chunk

  def unit_chunks() -> Iterator[Chunk]:
    stored = _integer_chunks(data, max_inverse_norm, num_rows, sharding)
    # Rows at norm 1 are directions: so are their means.
    mean_norm = None
    if max_inverse_norm == math.inf:
      mean_norm = room_in_ball(data.feature_dim)
    of_units = unit_rows(
      _to_host(stored),
      data.hosts.own_units,
      data.weight,
      num_classes=data.num_classes,
      mean_norm=mean_norm,
      weight_norm_order=weight_norm_order,
      per_row=per_row,
    )
    for units in of_units:
      # One by one, the rows of a unit are bounded by their weights alone.
      slots = None if per_row else units.label.shape[1]
      for columns in place_whole_units(units, num_rows, mesh.size):
        row, label, weight = jax.device_put(columns, sharding)
        yield Chunk(row, label, weight, unit_slots=slots)

  identity = digest_of(
    float(max_inverse_norm), weight_norm_order, per_row, data.weight, data.unit
  )
  note = ""
  if is_on_host:
    note = "A TPU's host makes the sums, in its float64."
  return Rows(
    data=data,
    iter_chunks=unit_chunks if data.has_whole_units else stored_chunks,
    identity=identity,
    feature_dim=data.feature_dim,
    weight_norm_order=weight_norm_order,
    mesh=mesh,
    keep=keep,
    note=note,
  )


def _chunk_rows(data: PrivateDataset, devices: int) -> int:
  """How many rows a chunk has, over all devices.

  A power of two for each device, so that few shapes are compiled, and few
  enough that [c, d] and [c, K] stay in a processor's caches.
  """
  num_classes = data.num_classes
  rows_in_cache = max(2**18 // num_classes, min(1024, 2**22 // num_classes))
  rows_in_cache = min(2048, rows_in_cache, 2**21 // data.feature_dim)
  rows_in_cache = max(64, rows_in_cache)
  rows_there = max(64, -(-data.n // (devices * data.hosts.count)))
  power = min((rows_there - 1).bit_length(), rows_in_cache.bit_length() - 1)
  return (1 << power) * devices


def _integer_chunks(
  data: PrivateDataset,
  max_inverse_norm: float,
  num_rows: int,
  sharding: NamedSharding,
) -> Iterator[tuple[Chunk, np.ndarray]]:
  """Yields rows as they are stored, as integers, and their unit ids [c]."""
  # JAX computes asynchronously. To ask at once whether all rows of a chunk are
  # in the ball would wait for the device; it is asked one chunk later.
  unchecked: collections.deque[tuple[np.ndarray, Array]] = collections.deque()
  for part in _regrouped(data, max_inverse_norm, num_rows):
    with jax.enable_x64(False):
      embedding, scale, label, row_weight = jax.device_put(
        (part.embedding, part.scale, part.label, part.weight), sharding
      )
      row, weight, is_bad = integer_rows(embedding, scale, row_weight)
    unchecked.append((part.example_id, is_bad))
    yield Chunk(row, label, weight), part.unit
    while len(unchecked) > _MAX_UNCHECKED:
      _refuse_bad_rows(data, *unchecked.popleft())
  while unchecked:
    _refuse_bad_rows(data, *unchecked.popleft())


def _refuse_bad_rows(
  data: PrivateDataset, example_id: np.ndarray, is_bad: Array
) -> None:
  """Raises InputError for the first of these rows that is bad, if one is."""
  bad_rows = np.asarray(is_bad)
  if bad_rows.any():
    what = "is not finite, or longer than embedding_norm says"
    data.refuse(example_id, bad_rows, f"its embedding {what}")


def _to_host(
  chunks: Iterable[tuple[Chunk, np.ndarray]],
) -> Iterator[StoredRows]:
  for chunk, unit in chunks:
    yield StoredRows(
      row=np.asarray(chunk.row),
      label=np.asarray(chunk.label),
      weight=np.asarray(chunk.weight),
      unit=unit,
    )


class _Part(NamedTuple):
  """Rows of a dataset, before they are integers; every column has c rows."""

  embedding: np.ndarray
  scale: np.ndarray
  label: np.ndarray
  example_id: np.ndarray
  unit: np.ndarray
  weight: np.ndarray

  def rows(self, start: int, stop: int) -> "_Part":
    return _Part(*[column[start:stop] for column in self])

  def padded(self, num_rows: int) -> "_Part":
    missing = num_rows - len(self.label)
    padded = []
    for column in self:
      zeros = np.zeros((missing, *column.shape[1:]), column.dtype)
      padded.append(np.concatenate([column, zeros]))
    return _Part(*padded)


def _regrouped(
  data: PrivateDataset, max_inverse_norm: float, num_rows: int
) -> Iterator[_Part]:
  """Cuts blocks of any size into parts of one size; the last is padded."""
  # Devices compile a program for each shape: all chunks have one, whatever
  # sizes the blocks have in which rows are stored or passed.
  buffer: _Part | None = None  # a part that several blocks fill
  filled = 0
  for block in data.checked_blocks():
    columns = _part_of(data, block, max_inverse_norm)
    length = len(columns.label)
    start = 0
    while start < length:
      if not filled and length - start >= num_rows:
        # A whole part lies in this block: nothing is copied.
        yield columns.rows(start, start + num_rows)
        start += num_rows
        continue
      if buffer is None:
        buffer = columns.rows(0, 0).padded(num_rows)
      taken = min(num_rows - filled, length - start)
      for target, values in zip(buffer, columns, strict=True):
        target[filled : filled + taken] = values[start : start + taken]
      start += taken
      filled += taken
      if filled == num_rows:
        yield buffer
        buffer = None
        filled = 0
  if buffer is not None:
    yield buffer.rows(0, filled).padded(num_rows)


def _part_of(
  data: PrivateDataset, block: Block, max_inverse_norm: float
) -> _Part:
  return _Part(
    embedding=block["embedding"],
    scale=row_scale(
      block["embedding_norm"], data.feature_dim, max_inverse_norm
    ),
    label=block["label"],
    example_id=block["example_id"],
    unit=data.whole_units(block),
    weight=data.row_weights(block),
  )
