"""Writes a feature cache: resumable, atomic, the same bytes every time.

    with claim(out, identity) as unfinished:
      if unfinished:
        done = finished_shards(out, identity)
        for i in set(range(identity.num_shards)) - set(done):  # any order
          write_shard(out, identity, i, rows_of(identity.shard_range(i)))
        finish(out, identity)

A shard is tried as often as need be, each attempt under a name of its own in
`_incomplete/`. The first whose record can be created, with the SHA-256 of its
files, is the shard, and is renamed to its final name; others, whatever their
bytes, are thrown away. The directory is a cache once `cache_info.json`, the
last file, is there.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from array_record.python import array_record_module

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import POSITION_IDS
from oneshot_dp.extract.cache.checked_rows import (
  BlockBuilder,
  Outside,
  Rows,
  Skipped,
)
from oneshot_dp.extract.cache.content_keys import row_keys
from oneshot_dp.extract.cache.identity import CacheIdentity, refuse_another
from oneshot_dp.extract.cache.info import (
  FORMAT_VERSION,
  INCOMPLETE_DIR,
  INFO_FILE,
  LISTING_SHA256,
  SHARDS_FILE,
  CacheInfo,
  ShardRecord,
)
from oneshot_dp.extract.cache.reader import FeatureCache, repeated_ids
from oneshot_dp.extract.cache.tfds_metadata import tfds_metadata
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  file_sha256,
  json_bytes,
  json_object,
)
from oneshot_dp.extract.storage.store import Store, store_at

_JOB_FILE = f"{INCOMPLETE_DIR}/job.json"
_COMPUTED_ON_FILE = f"{INCOMPLETE_DIR}/computed_on.json"
_LOCK_FILE = f"{INCOMPLETE_DIR}/lock"
# No compression: embeddings do not compress, and it costs speed. A group of
# one record keeps random access.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@contextlib.contextmanager
def claim(
  out_dir: str | os.PathLike, identity: CacheIdentity
) -> Iterator[bool]:
  """`begin`, and keeps other jobs out until the context ends.

  Raises:
    InputError: `begin`'s, or another job is at it, which loses nothing.
    RunError: the directory cannot be written.
  """
  store = store_at(out_dir)
  if is_complete(out_dir, identity):
    yield begin(out_dir, identity)
    return
  _check(store, identity)
  with store.lock(_LOCK_FILE):
    yield begin(out_dir, identity)


def begin(out_dir: str | os.PathLike, identity: CacheIdentity) -> bool:
  """Makes `out_dir` this job's, new or to be resumed.

  Returns:
    Whether there is anything to do; False if the cache is finished already.

  Raises:
    InputError: the directory holds something else.
    RunError: it cannot be written.
  """
  store = store_at(out_dir)
  if is_complete(out_dir, identity):
    # Killed between its last two steps; the cache itself is whole.
    store.remove([f"{INCOMPLETE_DIR}/"])
    return False
  _check(store, identity)
  if not store.put(_JOB_FILE, json_bytes(_job(identity)), create=True):
    _check(store, identity)  # Another job's came first.
  return True


def _job(identity: CacheIdentity) -> dict[str, Any]:
  # Shards of another format would not fit those to come.
  return identity.to_json() | {"format_version": FORMAT_VERSION}


def _check(store: Store, identity: CacheIdentity) -> None:
  """Refuses a directory of another job, or of something else."""
  try:
    there = json_object(store.path / _JOB_FILE, store.read(_JOB_FILE))
  except FileNotFoundError:
    left = store.sizes().keys() - {f"{INCOMPLETE_DIR}/"}
    if left and INFO_FILE not in left:
      raise InputError(
        f"{store.path} is not empty and is not this job's; choose another"
        " --out."
      ) from None
  else:
    refuse_another(store.path, there, _job(identity))


def is_complete(out_dir: str | os.PathLike, identity: CacheIdentity) -> bool:
  """Whether the finished cache of this very job is there.

  Library versions may differ: nothing more will be computed. Refuses the
  finished cache of another job.
  """
  store = store_at(out_dir)
  out = store.path
  try:
    there = json_object(out / INFO_FILE, store.read(INFO_FILE))
  except FileNotFoundError:
    return False
  now = identity.to_json()
  same_job = {key: there.get(key) for key in now}
  if "%" in identity.split and there.get("format_version") == 1:
    raise InputError(
      f"{out} holds a part of its split that an earlier version cut by"
      " position, not by each image's bytes; choose another --out."
    )
  refuse_another(out, same_job | {"libraries": now["libraries"]}, now)
  return True


def forget_shards(out_dir: str | os.PathLike, shards: Iterable[int]) -> None:
  """Lets shards of a job that `claim` holds be done again."""
  store_at(out_dir).remove(_record_file(i) for i in shards)


def start_again(out_dir: str | os.PathLike) -> None:
  """Forgets all shards of a job that `claim` holds."""
  store = store_at(out_dir)
  names = store.sizes(INCOMPLETE_DIR)
  store.remove(
    f"{INCOMPLETE_DIR}/{name}" for name in names if name.startswith("shard-")
  )


def check_computed_on(
  out_dir: str | os.PathLike, computed_on: Mapping[str, Any]
) -> None:
  """Refuses devices other than those of the first shard: they round otherwise.

  `computed_on` is JSON-able: their kind, their number, the batch size. The job
  is that of its workers; where it is started there may be no device.
  """
  store = store_at(out_dir)
  if not store.put(_COMPUTED_ON_FILE, json_bytes(computed_on), create=True):
    there = store.read(_COMPUTED_ON_FILE)
    place = store.path / _COMPUTED_ON_FILE
    refuse_another(store.path, json_object(place, there), dict(computed_on))


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
  out_dir: str | os.PathLike,
  identity: CacheIdentity,
  on_shard: Callable[[], object] = lambda: None,
) -> dict[int, ShardRecord]:
  """`finished_shard` of every shard that has one; reads every byte.

  `on_shard` is called after each shard, finished or not (progress).
  """
  found = {}
  # Hashing lets go of Python's lock.
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    shards = range(identity.num_shards)
    check = functools.partial(finished_shard, out_dir, identity)
    for i, record in zip(shards, pool.map(check, shards), strict=True):
      if record:
        found[i] = record
      on_shard()
  return found


def finish(
  out_dir: str | os.PathLike,
  identity: CacheIdentity,
  source_listing_sha256: str | None = None,
) -> CacheInfo:
  """Counts every example once, then makes the directory a cache.

  It believes no record: every shard is read and compared with its SHA-256.

  Raises:
    InputError: two examples have the same id.
    RunError: a shard is missing or damaged, or no example is left;
      a full or broken disk.
  """
  store = store_at(out_dir)
  out = store.path
  found = finished_shards(out_dir, identity)
  records = list(found.values())
  if missing := sorted(set(range(identity.num_shards)) - found.keys()):
    first = identity.shard_range(missing[0])
    few = ", ".join(map(str, missing[:5])) + ", …" * (len(missing) > 5)
    raise RunError(
      f"{out}: {len(missing)} of {identity.num_shards} shards are missing: "
      f"{few} (shard {missing[0]} holds source indices "
      f"{first.start} to {first.stop - 1}); run the same command again."
    )
  num_examples = sum(r.rows for r in records)
  skipped = sorted(i for r in records for i in r.skipped_example_ids)
  outside = sum(r.outside for r in records)
  if num_examples + len(skipped) + outside != identity.source_num_examples:
    raise RunError(
      f"{out}: {num_examples} rows, {len(skipped)} skipped examples and "
      f"{outside} outside the part are not the "
      f"{identity.source_num_examples} examples of the split; delete {out} and"
      " extract again."
    )
  if not num_examples:
    left_out = "skipped, or is outside the part" if outside else "skipped"
    raise RunError(f"{out}: every example was {left_out}; nothing to cache.")
  info = CacheInfo.of(
    identity, num_examples=num_examples, skipped_example_ids=tuple(skipped)
  )
  if identity.id_source != POSITION_IDS:
    check_distinct(FeatureCache(path=out, info=info, shards=tuple(records)))
  shards = [dataclasses.asdict(record) for record in records]
  listed: dict[str, Any] = {"shards": shards}
  if source_listing_sha256:
    listed[LISTING_SHA256] = source_listing_sha256
  files = {SHARDS_FILE: json_bytes(listed)}
  for name, text in tfds_metadata(identity, records).items():
    files[name] = text.encode()
  files[INFO_FILE] = json_bytes(info.to_json())
  for name, data in files.items():
    # Never under a name in `out` that no cache has: it might be left there.
    store.put(f"{INCOMPLETE_DIR}/{name}", data)
    store.move(f"{INCOMPLETE_DIR}/{name}", name)
  # Left over, it would be removed by the next `begin`.
  store.remove([f"{INCOMPLETE_DIR}/"])
  return info


def check_distinct(cache: FeatureCache) -> None:
  """Refuses two examples of one id, whichever shards they are in; reads all."""
  ids = (
    block.example_id
    for i in range(len(cache.shards))
    for block in cache.shard_blocks(i)
  )
  if len(repeated := repeated_ids(cache, ids)):
    raise InputError(
      f"{cache.path}: {len(repeated)} numbers in {cache.info.id_source!r} come"
      f" more than once, the first is {repeated[0]}, so they name no example:"
      " delete it and extract without source.id_key."
    )


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
  with disk_errors(final):
    writer = array_record_module.ArrayRecordWriter(str(path), _WRITER_OPTIONS)

  def write(record: bytes) -> None:
    with disk_errors(final):
      writer.write(record)

  try:
    yield write
  except BaseException:
    # The file is thrown away; what went wrong comes first.
    with contextlib.suppress(Exception):
      writer.close()
    raise
  with disk_errors(final):
    writer.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Attempt:
  """One try at a shard; what `_incomplete/shard-00003.json` says.

  Attributes:
    name: what its two files start with, until they are renamed.
    record: what is in them.
  """

  name: str
  record: ShardRecord


def _files(attempt: str) -> tuple[str, str]:
  return f"{attempt}.rows", f"{attempt}.keys"


def _record_file(shard_index: int) -> str:
  return f"{INCOMPLETE_DIR}/shard-{shard_index:05d}.json"


def _attempt(store: Store, shard_index: int) -> _Attempt | None:
  """The attempt that is the shard, if its record can be read."""
  try:
    name = _record_file(shard_index)
    data = json_object(store.path / name, store.read(name))
    return _Attempt(
      name=data["name"], record=ShardRecord.from_json(data["record"])
    )
  except (FileNotFoundError, InputError, KeyError, TypeError):
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
