"""Writes a feature cache: resumable, atomic, the same bytes every time.

    if begin(out_dir, identity):
      done = finished_shards(out_dir, identity)
      for i in set(range(identity.num_shards)) - set(done):  # any order, hosts
        write_shard(out_dir, identity, i, rows_of(identity.shard_range(i)))
      finish(out_dir, identity)

Everything is written under a temporary name in `_incomplete/`, made durable,
then renamed; the keys of a shard's rows come before it. A shard counts once its
record, `_incomplete/shard-00003.json`, is there; the directory is a cache once
`cache_info.json` is there.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterable, Iterator

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
  SHARDS_FILE,
  CacheInfo,
  ShardRecord,
)
from oneshot_dp.extract.cache.reader import FeatureCache, repeated_ids
from oneshot_dp.extract.cache.tfds_metadata import tfds_metadata
from oneshot_dp.extract.storage.durable_files import (
  TEMPORARY_SUFFIX,
  disk_errors,
  file_sha256,
  publish,
  read_json,
  temporary_file,
  write_bytes,
  write_json,
  write_text,
)

_JOB_FILE = "job.json"
# No compression: embeddings do not compress, and it costs speed. A group of
# one record keeps random access.
_WRITER_OPTIONS = "group_size:1,uncompressed"


def begin(out_dir: str | os.PathLike, identity: CacheIdentity) -> bool:
  """Makes `out_dir` this job's, new or to be resumed; one job at a time.

  Returns:
    Whether there is anything to do; False if the cache is finished already.

  Raises:
    InputError: the directory holds something else.
    RunError: it cannot be written.
  """
  out = pathlib.Path(out_dir)
  if is_complete(out, identity):
    # Killed between its last two steps; the cache itself is whole.
    shutil.rmtree(out / INCOMPLETE_DIR, ignore_errors=True)
    return False
  job = out / INCOMPLETE_DIR / _JOB_FILE
  # Shards of another format would not fit those to come.
  this = identity.to_json() | {"format_version": FORMAT_VERSION}
  if out.exists() and not out.is_dir():
    raise InputError(f"{out} is not a directory; choose another --out.")
  if job.is_file():
    refuse_another(out, read_json(job), this)
  elif out.exists() and {p.name for p in out.iterdir()} - {INCOMPLETE_DIR}:
    raise InputError(
      f"{out} is not empty and is not this job's; choose another --out."
    )
  with disk_errors(out):
    out.parent.mkdir(parents=True, exist_ok=True)
    out.mkdir(mode=0o700, exist_ok=True)
    job.parent.mkdir(mode=0o700, exist_ok=True)
    for stale in job.parent.glob(f"*{TEMPORARY_SUFFIX}"):
      stale.unlink(missing_ok=True)
  if not job.is_file():
    write_json(job.parent, job, this)
  return True


def is_complete(out_dir: str | os.PathLike, identity: CacheIdentity) -> bool:
  """Whether the finished cache of this very job is there.

  Library versions may differ: nothing more will be computed. Refuses the
  finished cache of another job.
  """
  out = pathlib.Path(out_dir)
  if not (out / INFO_FILE).is_file():
    return False
  there = read_json(out / INFO_FILE)
  now = identity.to_json()
  same_job = {key: there.get(key) for key in now}
  if "%" in identity.split and there.get("format_version") == 1:
    raise InputError(
      f"{out} holds a part of its split that an earlier version cut by"
      " position, not by each image's bytes; choose another --out."
    )
  refuse_another(out, same_job | {"libraries": now["libraries"]}, now)
  return True


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
  out = pathlib.Path(out_dir)
  work = out / INCOMPLETE_DIR
  final = out / identity.shard_name(shard_index)
  indices = identity.shard_range(shard_index)
  codec = identity.codec()
  builder = BlockBuilder(identity, final.name)
  keys: list[bytes] = []
  num_rows = num_blocks = 0
  with temporary_file(work, final.name) as temporary:
    with _record_writer(temporary, final) as write:
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
        bytes=temporary.stat().st_size,
        sha256=file_sha256(temporary),
        skipped_example_ids=tuple(sorted(builder.skipped_ids)),
        outside=builder.outside,
        keys_sha256=hashlib.sha256(b"".join(keys)).hexdigest(),
      )
    write_bytes(work, out / record.keys_file, b"".join(keys))
    publish(temporary, final)
  write_json(work, _record_file(out, shard_index), dataclasses.asdict(record))
  return record


def finished_shard(
  out_dir: str | os.PathLike, identity: CacheIdentity, shard_index: int
) -> ShardRecord | None:
  """The record of a shard whose files still have their sizes and SHA-256."""
  out = pathlib.Path(out_dir)
  record = _shard_record(out, identity, shard_index)
  if (
    record is None
    or file_sha256(out / record.file) != record.sha256
    or file_sha256(out / record.keys_file) != record.keys_sha256
  ):
    return None
  return record


def finished_shards(
  out_dir: str | os.PathLike,
  identity: CacheIdentity,
  on_shard: Callable[[], object] = lambda: None,
) -> dict[int, ShardRecord]:
  """`finished_shard` of every shard that has one; reads every byte.

  `on_shard` is called after each shard, finished or not (progress).
  """
  found = {}
  for i in range(identity.num_shards):
    if record := finished_shard(out_dir, identity, i):
      found[i] = record
    on_shard()
  return found


def finish(out_dir: str | os.PathLike, identity: CacheIdentity) -> CacheInfo:
  """Counts every example once, then makes the directory a cache.

  Raises:
    InputError: two examples have the same id.
    RunError: a shard is missing, or its size is wrong, or no example is left;
      a full or broken disk.
  """
  out = pathlib.Path(out_dir)
  work = out / INCOMPLETE_DIR
  found = [_shard_record(out, identity, i) for i in range(identity.num_shards)]
  records = [record for record in found if record is not None]
  missing = [i for i, record in enumerate(found) if record is None]
  if missing:
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
  write_json(work, out / SHARDS_FILE, {"shards": shards})
  for name, text in tfds_metadata(identity, records).items():
    write_text(work, out / name, text)
  write_json(work, out / INFO_FILE, info.to_json())
  # Left over, it would be removed by the next `begin`.
  shutil.rmtree(work, ignore_errors=True)
  return info


def check_distinct(cache: FeatureCache) -> None:
  """Refuses two examples of one id, whichever shards they are in; reads all."""
  ids = [
    block.example_id
    for i in range(len(cache.shards))
    for block in cache.shard_blocks(i)
  ]
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


def _shard_record(
  out: pathlib.Path, identity: CacheIdentity, shard_index: int
) -> ShardRecord | None:
  """The shard's record, if its files are there, and its size is right."""
  try:
    data = json.loads(_record_file(out, shard_index).read_text("utf-8"))
    record = ShardRecord.from_json(data)
    size = (out / record.file).stat().st_size
    (out / record.keys_file).stat()
  except (OSError, ValueError, KeyError, TypeError):
    return None
  name = identity.shard_name(shard_index)
  return record if (record.file, record.bytes) == (name, size) else None


def _record_file(out: pathlib.Path, shard_index: int) -> pathlib.Path:
  return out / INCOMPLETE_DIR / f"shard-{shard_index:05d}.json"
