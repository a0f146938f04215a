"""From batches of rows of any size to the checked blocks of one shard."""

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Bool, Float, Integer

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import (
  BLOCK_ROWS,
  EMBEDDING_DTYPES,
  Block,
  stored_norm,
)
from oneshot_dp.extract.cache.identity import CacheIdentity

_FLOATS = (np.dtype(np.float64), *EMBEDDING_DTYPES.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
  """Examples on their way into the cache.

  Attributes:
    embedding: any float dtype; the cache stores its own.
    label: in [0, K).
    example_id: unique in the cache.
    unit_id: whose each row is; None where the privacy unit is an example.
  """

  embedding: Float[np.ndarray, "rows d"]
  label: Integer[np.ndarray, " rows"]
  example_id: Integer[np.ndarray, " rows"]
  unit_id: Integer[np.ndarray, " rows"] | None = None

  def __len__(self) -> int:
    return len(self.label)


@dataclasses.dataclass(frozen=True)
class Skipped:
  """An example that is left out, and said to be."""

  example_id: int


class BlockBuilder:
  """Cuts and checks the rows of one shard.

  Args:
    identity: what the rows must fit.
    place: the shard's name, for errors.

  Attributes:
    skipped_ids: ids of the examples left out so far.
  """

  def __init__(self, identity: CacheIdentity, place: str):
    self._identity = identity
    self._place = place
    self._dtype = EMBEDDING_DTYPES[identity.embedding_dtype]
    self._ids: set[int] = set()
    self.skipped_ids: list[int] = []

  def blocks(self, batches: Iterable[Rows | Skipped]) -> Iterator[Block]:
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
      rows = self._checked(batch)
      while len(rows):
        pending.append(_cut(rows, slice(0, space)))
        rows = _cut(rows, slice(space, None))
        space -= len(pending[-1])
        if not space:
          yield _joined(pending)
          pending, space = [], BLOCK_ROWS
    if pending:
      yield _joined(pending)

  def _checked(self, rows: Rows) -> Block:
    k, d = self._identity.num_classes, self._identity.feature_dim
    count = rows.label.shape
    if (rows.unit_id is not None) != self._identity.has_units:
      raise InputError(
        f"{self._place}: rows with{'' if rows.unit_id is not None else 'out'}"
        f" unit_id, and the cache's privacy unit is"
        f" {self._identity.privacy_unit!r}; every row has a unit_id, unless"
        " each example is a unit of its own."
      )
    units = {} if rows.unit_id is None else {"unit_id": rows.unit_id}
    if (
      len(count) != 1
      or rows.embedding.shape != (*count, d)
      or rows.example_id.shape != count
    ):
      raise InputError(
        f"{self._place}: embedding {rows.embedding.shape}, label {count}, "
        f"example_id {rows.example_id.shape}: the cache takes [rows, {d}], "
        "[rows], [rows]."
      )
    if any(unit_id.shape != count for unit_id in units.values()):
      raise InputError(
        f"{self._place}: unit_id and label have not the same shape; both must"
        " be [rows]."
      )
    if rows.embedding.dtype not in _FLOATS:
      raise InputError(
        f"{self._place}: embedding has dtype {rows.embedding.dtype}; "
        "it must be a float."
      )
    for name in ("label", "example_id", *units):
      dtype = getattr(rows, name).dtype
      if dtype.kind not in "iu" or not np.can_cast(dtype, np.int64):
        raise InputError(
          f"{self._place}: {name} has dtype {dtype}; it must be an integer "
          "that int64 holds."
        )
    self._claim(rows.example_id.tolist())
    self._refuse(
      rows,
      (rows.label < 0) | (rows.label >= k),
      f"has a label outside [0, {k}); mend the labels or the class names.",
    )
    self._refuse(
      rows,
      ~_finite(rows.embedding),
      "has an embedding that is not finite; look at the example, the weights "
      "and the compute dtype.",
    )
    with np.errstate(over="ignore"):
      stored = rows.embedding.astype(self._dtype)
    norm = stored_norm(stored)
    self._refuse(
      rows,
      ~_finite(stored) | ~np.isfinite(norm),
      f"has an embedding that overflows {self._dtype}; "
      + (
        "scale the features down."
        if self._dtype == np.float32
        else "use embedding_dtype float32."
      ),
    )
    return Block(
      embedding=stored,
      embedding_norm=norm,
      label=rows.label.astype(np.int32),
      example_id=rows.example_id.astype(np.int64),
      **{name: values.astype(np.int64) for name, values in units.items()},
    )

  def _claim(self, ids: list[int]) -> None:
    for example_id in ids:
      if example_id in self._ids:
        raise InputError(
          f"{self._place}: example_id {example_id} comes twice; an example "
          "may be counted only once."
        )
      self._ids.add(example_id)

  def _refuse(
    self, rows: Rows, bad: Bool[np.ndarray, " rows"], why: str
  ) -> None:
    if bad.any():
      first = int(rows.example_id[bad][0])
      raise InputError(f"{self._place}: example_id {first} {why}")


def _finite(
  embedding: Float[np.ndarray, "rows d"],
) -> Bool[np.ndarray, " rows"]:
  return np.asarray(np.isfinite(embedding).all(axis=1))


def _cut(block: Block, rows: slice) -> Block:
  return Block(
    embedding=block.embedding[rows],
    embedding_norm=block.embedding_norm[rows],
    label=block.label[rows],
    example_id=block.example_id[rows],
    unit_id=None if block.unit_id is None else block.unit_id[rows],
  )


def _joined(blocks: list[Block]) -> Block:
  if len(blocks) == 1:
    return blocks[0]
  units = [b.unit_id for b in blocks if b.unit_id is not None]
  return Block(
    embedding=np.concatenate([b.embedding for b in blocks]),
    embedding_norm=np.concatenate([b.embedding_norm for b in blocks]),
    label=np.concatenate([b.label for b in blocks]),
    example_id=np.concatenate([b.example_id for b in blocks]),
    unit_id=np.concatenate(units) if units else None,
  )
