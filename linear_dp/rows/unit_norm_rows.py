"""Private rows on their way to the devices, in chunks of one shape.

Only the direction of a row counts, so every row weighs the same and none needs
clipping. Where norms are to count, they go beside it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.batches import padded, regrouped
from oneshot_dp.linear_dp.rows.block import (
  OFF_THE_BALL,
  RowBlock,
  checked,
  refuse,
  refuse_units,
)
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.rows.integers import (
  integer_rows,
  row_scale,
  within_ball_float64,
  within_ball_int32,
)
from oneshot_dp.linear_dp.rows.mean_rows import mean_rows
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes, count_rows

ROWS_PER_DEVICE = 4096
"""The rows of a chunk: 2¹²·B² < 2⁵³, so float64 products add up exactly."""
_CACHED, _LEAST_CACHED = 2**20, 1024
"""How many numbers a CPU's cache holds while a step makes them, one for each
row and class; with fewer rows, adding up what a chunk gives costs as much."""
_LEAST_ROWS = 64
FLOAT64_PLATFORMS = ("cpu", "cuda", "rocm", "gpu")


class Chunk(NamedTuple):
  """Rows, sharded; those of padding have scale 0.

  Embeddings are as stored, [rows, d]; scales to integers on the grid of radius
  B, [rows]; lengths the norms that count, 1 where only directions do; weights
  in steps of 1/B, None where each row is a privacy unit.
  """

  embedding: Array
  scale: Array
  length: Array
  label: Array
  weight: Array | None = None


class SecretRows(Secret):
  """What private heads of several steps read, once or many times.

  Formal guarantees: in every pass each row obeys ‖u‖² ≤ B², checked in
  integers; every example_id comes once; there are `num_rows` rows. Where
  one of these fails the pass ends with an error. With units, all this holds of
  the rows that are read, and what is given are `mean_rows`.

  Args:
    read: starts a pass over the blocks, in any order and any block size.
    feature_dim, num_classes, num_examples: d, K and n, public.
    num_rows: how many rows there must be, private; None is n.
    most_rows: public bound of that; None is n.
    has_units: whether a privacy unit may have many rows, by their `unit_id`.
    max_norm: R, of rows whose norms count, longer ones being shortened to it;
      public. None is for directions.
    devices: rows are sharded over them; None is all local devices.
    hosts: that have a part of the rows each.
    own_rows: which of all rows `read` gives, by their places; None is all.
    sizes: of the units, where they are known.

  InputError: in a pass, damaged rows, or a `unit_id` that nobody awaits.
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
    has_units: bool = False,
    max_norm: float | None = None,
    devices: Sequence[jax.Device] | None = None,
    hosts: Hosts = ALONE,
    own_rows: range | None = None,
    sizes: UnitSizes | None = None,
  ):
    devices = tuple(devices or jax.local_devices())
    self.feature_dim = feature_dim
    self.num_classes = num_classes
    self.num_examples = num_examples
    self.num_rows = num_rows or num_examples
    self.most_rows = most_rows or num_examples
    self.max_norm = max_norm
    self.hosts = hosts
    self.own_rows = range(self.num_rows) if own_rows is None else own_rows
    self.mesh = Mesh(np.array(devices), ("data",))
    self._read = read
    self._order: Int64[np.ndarray, " n"] | None = None
    self.has_units = has_units
    self._sizes = sizes
    self.secret_places: list[Int64[np.ndarray, " rows"]] = []
    """The unit, among all, of each row of the chunks of the last pass."""

  @property
  def wide(self) -> jnp.dtype:
    """What holds large integers: float64, which a TPU has not, or int64."""
    has_float64 = self.mesh.devices.flat[0].platform in FLOAT64_PLATFORMS
    return jnp.dtype(jnp.float64 if has_float64 else jnp.int64)

  @property
  def chunk_rows(self) -> int:
    """As few as n rows take in as few chunks: padding costs as much as rows."""
    most = ROWS_PER_DEVICE
    if self.mesh.devices.flat[0].platform == "cpu":
      most = min(most, max(_LEAST_CACHED, _CACHED // self.num_classes))
    rows = -(-self.num_examples // (self.mesh.size * self.hosts.count))
    each = -(-rows // -(-rows // most))
    if each < rows:
      few = -(-each // _LEAST_ROWS) * _LEAST_ROWS
    else:  # a power of two: others of about as many need no other program
      few = max(_LEAST_ROWS, 1 << (rows - 1).bit_length())
    return min(few, most) * self.mesh.size

  @property
  def secret_units(self) -> int:
    """How many privacy units there are; known after the first pass."""
    sizes = self._sizes
    return self.num_rows if sizes is None else len(sizes.secret_rows)

  def count_units(self) -> None:
    """Counts the rows of each unit, by a pass of all hosts, if none did."""
    if self.has_units and self._sizes is None:
      self._sizes = count_rows(self._read(), self.hosts)

  def secret_chunks(self) -> Iterator[Chunk]:
    """One pass, in chunks of one shape; private, and checked at its end."""
    blocks = checked(
      self._read(),
      feature_dim=self.feature_dim,
      num_classes=self.num_classes,
      num_examples=len(self.own_rows),
      hosts=self.hosts,
    )
    leaves = _leaves_ball(self.wide)
    ids = [np.empty(0, np.int64)]
    self.secret_places = []
    for columns in regrouped(self._weighted(blocks), self.chunk_rows):
      embedding, norm, label, example_id, *of_units = columns
      weight = of_units[:1]
      self.secret_places += of_units[1:]
      scale = row_scale(norm, self.feature_dim)
      length = np.ones_like(norm)
      if self.max_norm is not None:
        length = np.minimum(norm, np.float32(self.max_norm))
      chunk = Chunk(*self.sharded(embedding, scale, length, label, *weight))
      with jax.enable_x64(True):
        bad = np.asarray(leaves(chunk.embedding, chunk.scale))[: len(label)]
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

  def _weighted(
    self, blocks: Iterable[RowBlock]
  ) -> Iterable[Sequence[np.ndarray]]:
    if not self.has_units:
      return _columns(blocks)
    self.count_units()
    assert self._sizes is not None
    return mean_rows(blocks, self._sizes, self.feature_dim, self.max_norm)

  def sharded(self, *columns: np.ndarray) -> list[Array]:
    """Columns of up to `chunk_rows` rows on the devices, behind them zeros."""
    sharding = NamedSharding(self.mesh, PartitionSpec("data"))
    return [
      jax.device_put(padded(column, self.chunk_rows), sharding)
      for column in columns
    ]


@functools.cache
def _leaves_ball(wide: jnp.dtype) -> Callable[[Array, Array], Array]:
  in_float64 = wide == jnp.float64
  within = within_ball_float64 if in_float64 else within_ball_int32
  return jax.jit(lambda x, scale: ~within(integer_rows(x, scale)))


def _columns(blocks: Iterable[RowBlock]) -> Iterator[tuple[np.ndarray, ...]]:
  for block in blocks:
    refuse_units(block)
    yield block.embedding, block.embedding_norm, block.label, block.example_id
