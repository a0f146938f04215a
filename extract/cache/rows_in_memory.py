"""Rows that are all in memory, as a cache: all of them are written, or none."""

import dataclasses
import os
from collections.abc import Callable, Iterator

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.block import BLOCK_ROWS, Block
from oneshot_dp.extract.cache.checked_rows import BlockBuilder, Rows
from oneshot_dp.extract.cache.identity import CacheIdentity
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.writer import begin, finish, write_shard


def write_rows(
  out: str | os.PathLike,
  identity: CacheIdentity,
  rows: Rows,
  on_rows: Callable[[int], object] = lambda rows: None,
) -> bool:
  """Writes the cache of an identity: all of its rows, or nothing.

  Args:
    out: a directory that is not there yet, or that an interrupted call left.
    identity: the cache.
    rows: all rows, in their order.
    on_rows: called with the number of rows of each shard written (progress).

  Returns:
    False if the finished cache of this identity is there, which is left alone.

  Raises:
    InputError: rows that the cache cannot hold (see `BlockBuilder.blocks`), a
      blank name, or an `out` that holds anything else.
    RunError: a full or broken disk.
  """
  _check_names(identity)
  for i in range(identity.num_shards):
    for _ in _blocks(identity, i, rows):
      pass  # they are only checked, before there is a shard to leave behind
  if not begin(out, identity):
    return False
  # All shards: those of an interrupted call may be of other rows, and nothing
  # in the identity can tell, since it must not depend on private rows.
  for i in range(identity.num_shards):
    indices = identity.shard_range(i)
    write_shard(out, identity, i, _parts(rows, indices))
    on_rows(len(indices))
  finish(out, identity)
  return True


def holds_rows(
  cache: FeatureCache,
  rows: Rows,
  on_rows: Callable[[int], object] = lambda rows: None,
) -> bool:
  """Whether a cache holds these very rows, to the bit.

  Args:
    cache: a finished cache.
    rows: as many, that the cache could hold.
    on_rows: called with the number of rows of each block compared (progress).
  """
  for i in range(len(cache.shards)):
    now = _blocks(cache.info, i, rows)
    for old, new in zip(cache.shard_blocks(i), now, strict=True):
      if not _same(old, new):
        return False
      on_rows(len(old))
  return True


def _check_names(identity: CacheIdentity) -> None:
  """Refuses what names nothing: ledgers go by the name of the data set."""
  names = {
    "dataset": identity.dataset,
    "split": identity.split,
    "backbone": identity.backbone.name,
  }
  for i, name in enumerate(identity.class_names):
    names[f"class_names[{i}]"] = name
  for place, name in names.items():
    if not (isinstance(name, str) and name.strip()):
      raise InputError(f"{place}={name!r} must be a name, and not blank.")


def _blocks(
  identity: CacheIdentity, shard_index: int, rows: Rows
) -> Iterator[Block]:
  """The blocks of a shard, as it would hold them."""
  builder = BlockBuilder(identity, identity.shard_name(shard_index))
  return builder.blocks(_parts(rows, identity.shard_range(shard_index)))


def _same(one: Block, other: Block) -> bool:
  # (The identity has seen to it that both have a unit_id, or neither.)
  columns = [f.name for f in dataclasses.fields(Block)]
  return all(
    getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for name in columns
    if getattr(one, name) is not None
  )


def _parts(rows: Rows, indices: range) -> Iterator[Rows]:
  for start in range(indices.start, indices.stop, BLOCK_ROWS):
    part = slice(start, min(start + BLOCK_ROWS, indices.stop))
    yield Rows(
      embedding=rows.embedding[part],
      label=rows.label[part],
      example_id=rows.example_id[part],
      unit_id=None if rows.unit_id is None else rows.unit_id[part],
    )
