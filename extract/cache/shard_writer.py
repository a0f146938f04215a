"""Writes one shard of a feature cache, by whoever does it first.

A shard is tried as often as need be, each attempt under a name of its own in
`_incomplete/`. The first whose record can be created, with the SHA-256 of its
files, is the shard, and is renamed to its final name; others, whatever their
bytes, are thrown away.
"""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import os
import pathlib
import secrets
from collections.abc import Callable, Iterable, Iterator

from array_record.python import array_record_module

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.cache.checked_rows import (
  BlockBuilder,
  Outside,
  Rows,
  Skipped,
)
from oneshot_dp.extract.cache.content_keys import row_keys
from oneshot_dp.extract.cache.identity import CacheIdentity
from oneshot_dp.extract.cache.info import INCOMPLETE_DIR, ShardRecord
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  file_sha256,
  json_bytes,
)
from oneshot_dp.extract.storage.store import Store, store_at
from oneshot_dp.extract.storage.typed_json import stored_json

# No compression: embeddings do not compress, and it costs speed. A group of
# one record keeps random access.
_WRITER_OPTIONS = "group_size:1,uncompressed"


def write_shard(
  out_dir: str | os.PathLike,
  identity: CacheIdentity,
  shard_index: int,
  rows: Iterable[Rows | Skipped | Outside],
) -> ShardRecord:
  """Writes one shard; it is there whole, or not at all.

  `rows` are the examples of `identity.shard_range(shard_index)`, in order, in
  batches of any size, on which the bytes do not depend. The writer rounds the
  embeddings to the cache's precision and computes their norms.

  Raises:
    InputError: rows that the cache cannot hold; see `BlockBuilder.blocks`.
    RunError: an example too many or too few; a full or broken disk.
  """
  store = store_at(out_dir)
  final = store.path / identity.shard_name(shard_index)
  attempt = f"{INCOMPLETE_DIR}/shard-{shard_index:05d}-{secrets.token_hex(8)}"
  try:
    with store.scratch(f"{attempt}.rows") as path:
      record, keys = _written(path, final, identity, shard_index, rows)
    store.put(f"{attempt}.keys", keys)
    return _settle(store, shard_index, _Attempt(name=attempt, record=record))
  except BaseException:
    store.remove(_files(attempt))
    raise


def _written(
  path: pathlib.Path,
  final: pathlib.Path,
  identity: CacheIdentity,
  shard_index: int,
  rows: Iterable[Rows | Skipped | Outside],
) -> tuple[ShardRecord, bytes]:
  """Writes a shard's rows to a path; returns its record and its keys' file."""
  indices = identity.shard_range(shard_index)
  codec = identity.codec()
  builder = BlockBuilder(identity, final.name)
  keys: list[bytes] = []
  num_rows = num_blocks = 0
  with _record_writer(path, final) as write:
    for block in builder.blocks(_noting_keys(rows, keys)):
      write(codec.encode(block))
      num_rows += len(block)
      num_blocks += 1
  seen = num_rows + len(builder.skipped_ids) + builder.outside
  if seen != len(indices):
    raise RunError(
      f"{final}: {seen} examples came, the shard has {len(indices)} "
      f"(source indices {indices.start} to {indices.stop - 1}); "
      "the source must not change while it is read."
    )
  with disk_errors(final):
    record = ShardRecord(
      file=final.name,
      first_index=indices.start,
      rows=num_rows,
      blocks=num_blocks,
      bytes=path.stat().st_size,
      sha256=file_sha256(path),
      skipped_example_ids=tuple(sorted(builder.skipped_ids)),
      outside=builder.outside,
      keys_sha256=hashlib.sha256(b"".join(keys)).hexdigest(),
    )
  return record, b"".join(keys)


def finished_shard(
  out_dir: str | os.PathLike, identity: CacheIdentity, shard_index: int
) -> ShardRecord | None:
  """The record of a shard whose files have the sizes and SHA-256 it names."""
  store = store_at(out_dir)
  there = _attempt(store, shard_index)
  name = identity.shard_name(shard_index)
  if there and there.record.file == name and _holds(store, there):
    return there.record
  return None


def finished_shards(
  out_dir: str | os.PathLike, identity: CacheIdentity, *, compare: bool = True
) -> dict[int, ShardRecord]:
  """`finished_shard` of every shard that has one.

  It reads every byte, unless `compare` is False: then files of the right names
  and sizes are believed, for whoever has them compared elsewhere.
  """
  store = store_at(out_dir)
  sizes = {} if compare else store.sizes()

  def check(shard_index: int) -> ShardRecord | None:
    if compare:
      return finished_shard(out_dir, identity, shard_index)
    there = _attempt(store, shard_index)
    record = there.record if there else None
    if (
      record
      and record.file == identity.shard_name(shard_index)
      and record.keys_file in sizes
      and sizes.get(record.file) == record.bytes
    ):
      return record
    return None

  # Hashing lets go of Python's lock, as does waiting for a store.
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    shards = range(identity.num_shards)
    found = zip(shards, pool.map(check, shards), strict=True)
    return {i: record for i, record in found if record}


def forget_shards(out_dir: str | os.PathLike, shards: Iterable[int]) -> None:
  """Lets shards of a job that `claim` holds be done again."""
  store_at(out_dir).remove(_record_file(i) for i in shards)


def _noting_keys(
  batches: Iterable[Rows | Skipped | Outside], keys: list[bytes]
) -> Iterator[Rows | Skipped | Outside]:
  """The batches, and their rows' keys once they are found to be sound."""
  for batch in batches:
    yield batch
    if isinstance(batch, Rows):
      keys.append(row_keys(batch.embedding, batch.image_key).tobytes())


@contextlib.contextmanager
def _record_writer(
  path: pathlib.Path, final: pathlib.Path
) -> Iterator[Callable[[bytes], None]]:
  """An ArrayRecord file; its errors speak of `final`, the caller's pass."""
  with disk_errors(final, RuntimeError):
    writer = array_record_module.ArrayRecordWriter(str(path), _WRITER_OPTIONS)

  def write(record: bytes) -> None:
    with disk_errors(final, RuntimeError):
      writer.write(record)

  try:
    yield write
  except BaseException:
    # The file is thrown away; what went wrong comes first.
    with contextlib.suppress(Exception):
      writer.close()
    raise
  with disk_errors(final, RuntimeError):
    writer.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Attempt:
  """One try at a shard, with files of this name until they are renamed."""

  name: str
  record: ShardRecord


def _files(attempt: str) -> tuple[str, str]:
  return f"{attempt}.rows", f"{attempt}.keys"


def _record_file(shard_index: int) -> str:
  return f"{INCOMPLETE_DIR}/shard-{shard_index:05d}.json"


def _attempt(store: Store, shard_index: int) -> _Attempt | None:
  """The attempt that is the shard, if its record can be read."""
  try:
    return stored_json(store, _record_file(shard_index), _Attempt)
  except (FileNotFoundError, InputError):
    return None


def _settle(store: Store, shard_index: int, mine: _Attempt) -> ShardRecord:
  """Makes an attempt the shard, unless another one is already."""
  name, data = _record_file(shard_index), json_bytes(dataclasses.asdict(mine))
  if not store.put(name, data, create=True):
    there = _attempt(store, shard_index)
    if there and _holds(store, there):
      store.remove(_files(mine.name))
      return there.record
    store.put(name, data)  # It was damaged, and is done again.
  _rename(store, mine)
  return mine.record


def _holds(store: Store, attempt: _Attempt) -> bool:
  """Whether a shard's files, renamed if need be, are those of its record."""
  record = attempt.record
  # Whoever created the record may have been killed before it renamed them.
  for first in (lambda: None, lambda: _rename(store, attempt)):
    with contextlib.suppress(FileNotFoundError):
      first()
      keys = hashlib.sha256(store.read(record.keys_file)).hexdigest()
      for path in store.local_files([(record.file, record.bytes)]):
        rows = file_sha256(path)
        return (rows, keys) == (record.sha256, record.keys_sha256)
  return False


def _rename(store: Store, attempt: _Attempt) -> None:
  record = attempt.record
  finals = record.file, record.keys_file
  for name, final in zip(_files(attempt.name), finals, strict=True):
    store.move(name, final)
