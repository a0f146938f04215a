"""From batches of rows of any size to the checked blocks of one shard."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Float, Integer, UInt64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import (
  BLOCK_ROWS,
  EMBEDDING_DTYPES,
  Block,
  columns,
  cut,
  stored_norm,
)
from oneshot_dp.extract.cache.identity import CacheIdentity

_FLOATS = (np.dtype(np.float64), *EMBEDDING_DTYPES.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
  """Examples on their way into the cache.

  Attributes:
    embedding: any float dtype; the cache stores its own.
    unit_id: whose each row is; None where the privacy unit is an example.
    image_key: of the image that each row comes from; None where there is none.
  """

  embedding: Float[np.ndarray, "rows d"]
  label: Integer[np.ndarray, " rows"]
  example_id: Integer[np.ndarray, " rows"]
  unit_id: Integer[np.ndarray, " rows"] | None = None
  image_key: UInt64[np.ndarray, "rows 2"] | None = None

  def __len__(self) -> int:
    return len(self.label)


@dataclasses.dataclass(frozen=True)
class Skipped:
  """An example that is left out, and said to be."""

  example_id: int


@dataclasses.dataclass(frozen=True)
class Outside:
  """Examples that are not in the part of the split that is asked for."""

  count: int


class BlockBuilder:
  """Cuts and checks the rows of one shard, which errors call `place`.

  `skipped_ids` are those of the examples left out so far, and `outside` counts
  those outside the part of the split.
  """

  def __init__(self, identity: CacheIdentity, place: str):
    self._identity = identity
    self._place = place
    self._dtype = EMBEDDING_DTYPES[identity.embedding_dtype]
    self._ids: set[int] = set()
    self.skipped_ids: list[int] = []
    self.outside = 0

  def blocks(
    self, batches: Iterable[Rows | Skipped | Outside]
  ) -> Iterator[Block]:
    """Yields blocks of exactly `BLOCK_ROWS` rows, and one of the rest.

    So a shard's bytes do not depend on the batch size that made its rows.

    Raises:
      InputError: a wrong shape or dtype, an embedding that is not finite in
        the cache's precision, a label outside [0, K), an id seen before.
        Names the example's id, never its label or embedding.
    """
    pending: list[Block] = []
    space = BLOCK_ROWS
    for batch in batches:
      if isinstance(batch, Skipped):
        self._claim([batch.example_id])
        self.skipped_ids.append(batch.example_id)
        continue
      if isinstance(batch, Outside):
        self.outside += batch.count
        continue
      rows = self._checked(batch)
      while len(rows):
        pending.append(cut(rows, slice(0, space)))
        rows = cut(rows, slice(space, None))
        space -= len(pending[-1])
        if not space:
          yield _joined(pending)
          pending, space = [], BLOCK_ROWS
    if pending:
      yield _joined(pending)

  def _checked(self, rows: Rows) -> Block:
    k, d = self._identity.num_classes, self._identity.feature_dim
    if (rows.unit_id is not None) != self._identity.has_units:
      raise InputError(
        f"{self._place}: rows with{'' if rows.unit_id is not None else 'out'}"
        f" unit_id, and the cache's privacy unit is"
        f" {self._identity.privacy_unit!r}; every row has a unit_id, unless"
        " each example is a unit of its own."
      )
    integers = columns(rows)
    del integers["embedding"]
    integers.pop("image_key", None)
    count = rows.label.shape
    if (
      len(count) != 1
      or rows.embedding.shape != (*count, d)
      or any(array.shape != count for array in integers.values())
    ):
      shapes = ", ".join(f"{n} {a.shape}" for n, a in columns(rows).items())
      raise InputError(
        f"{self._place}: {shapes}: the cache takes embedding [rows, {d}] and"
        f" {', '.join(integers)} [rows]."
      )
    if rows.embedding.dtype not in _FLOATS:
      raise InputError(
        f"{self._place}: embedding has dtype {rows.embedding.dtype}; "
        "it must be a float."
      )
    for name, array in integers.items():
      if array.dtype.kind not in "iu" or not np.can_cast(array.dtype, np.int64):
        raise InputError(
          f"{self._place}: {name} has dtype {array.dtype}; it must be an"
          " integer that int64 holds."
        )
    self._claim(rows.example_id.tolist())
    with np.errstate(over="ignore"):
      stored = rows.embedding.astype(self._dtype)
    norm = stored_norm(stored)
    scale = "scale the features down."
    if self._dtype != np.float32:
      scale = "use embedding_dtype float32."
    for good, why in (
      (
        (rows.label >= 0) & (rows.label < k),
        f"has a label outside [0, {k}); mend the labels or the"
        " number of classes.",
      ),
      (
        np.isfinite(rows.embedding).all(axis=1),
        "has an embedding that is not finite; look at the example, the weights"
        " and the compute dtype.",
      ),
      (
        np.isfinite(stored).all(axis=1) & np.isfinite(norm),
        f"has an embedding that overflows {self._dtype}; {scale}",
      ),
    ):
      if not good.all():
        first = int(rows.example_id[~good][0])
        raise InputError(f"{self._place}: example_id {first} {why}")
    return Block(
      embedding=stored,
      embedding_norm=norm,
      label=rows.label.astype(np.int32),
      example_id=rows.example_id.astype(np.int64),
      unit_id=None if rows.unit_id is None else rows.unit_id.astype(np.int64),
    )

  def _claim(self, ids: list[int]) -> None:
    for example_id in ids:
      if example_id in self._ids:
        raise InputError(
          f"{self._place}: example_id {example_id} comes twice; an example "
          "may be counted only once."
        )
      self._ids.add(example_id)


def _joined(blocks: list[Block]) -> Block:
  if len(blocks) == 1:
    return blocks[0]
  parts = [columns(block) for block in blocks]
  return Block(**{n: np.concatenate([p[n] for p in parts]) for n in parts[0]})
