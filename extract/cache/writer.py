"""Makes a directory a feature cache: resumable, the same bytes every time.

    with claim(out, identity) as unfinished:
      if unfinished:
        done = finished_shards(out, identity)
        for i in set(range(identity.num_shards)) - set(done):  # any order
          write_shard(out, identity, i, rows_of(identity.shard_range(i)))
        finish(out, identity)

The directory is a cache once `cache_info.json`, the last file, is there.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import POSITION_IDS
from oneshot_dp.extract.cache.identity import CacheIdentity, refuse_another
from oneshot_dp.extract.cache.info import (
  FORMAT_VERSION,
  INCOMPLETE_DIR,
  INFO_FILE,
  LISTING_SHA256,
  SHARDS_FILE,
  CacheInfo,
  tfds_metadata,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.shard_writer import finished_shards
from oneshot_dp.extract.storage.durable_files import json_bytes
from oneshot_dp.extract.storage.scratch import Repeated
from oneshot_dp.extract.storage.store import Store, store_at
from oneshot_dp.extract.storage.typed_json import stored_json

_JOB_FILE = f"{INCOMPLETE_DIR}/job.json"
_COMPUTED_ON_FILE = f"{INCOMPLETE_DIR}/computed_on.json"
_LOCK_FILE = f"{INCOMPLETE_DIR}/lock"


@contextlib.contextmanager
def claim(
  out_dir: str | os.PathLike, identity: CacheIdentity
) -> Iterator[bool]:
  """`begin`, and keeps other jobs out until the context ends."""
  store = store_at(out_dir)
  if is_complete(out_dir, identity):
    yield begin(out_dir, identity)
    return
  _check(store, identity)
  with store.lock(_LOCK_FILE):
    yield begin(out_dir, identity)


def begin(out_dir: str | os.PathLike, identity: CacheIdentity) -> bool:
  """Makes `out_dir` this job's; False if the cache is finished already.

  InputError: it holds something else. RunError: it cannot be written.
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
    there = stored_json(store, _JOB_FILE)
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
  """Whether the finished cache of this job is there, by any libraries."""
  store = store_at(out_dir)
  out = store.path
  try:
    there = stored_json(store, INFO_FILE)
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
    there = stored_json(store, _COMPUTED_ON_FILE)
    refuse_another(store.path, there, dict(computed_on))


def finish(
  out_dir: str | os.PathLike,
  identity: CacheIdentity,
  source_listing_sha256: str | None = None,
  *,
  compare: bool = True,
) -> CacheInfo:
  """Counts every example once, then makes the directory a cache.

  It believes no record: every shard is read and compared with its SHA-256,
  unless `compare` is False, because this job's workers have done so.

  Raises:
    InputError: two examples have the same id.
    RunError: a shard is missing or damaged, or no example is left;
      a full or broken disk.
  """
  store = store_at(out_dir)
  out = store.path
  found = finished_shards(out_dir, identity, compare=compare)
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
  with Repeated(cache.info.source_num_examples) as ids:
    ids.add(np.array(cache.info.skipped_example_ids, np.int64))
    for block in cache.blocks():
      ids.add(block.example_id)
    repeated = ids.found()
  if len(repeated):
    raise InputError(
      f"{cache.path}: {len(repeated)} numbers in {cache.info.id_source!r} come"
      f" more than once, the first is {repeated[0]}, so they name no example:"
      " delete it and extract without source.id_key."
    )
