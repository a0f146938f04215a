"""Writing a feature cache: shards that are put once, the metadata last.

A job begins by putting its name, `job.json`, into the directory; whoever
comes with another is refused. Each shard is encoded whole, with the digest of
the job in every record, and put under its final name by a step that can only
create: whatever is there is read, and refused if it is another job's. The
metadata makes the directory a cache. None of it needs a lock.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.block import tfds_files
from oneshot_dp.extract.cache.format import (
  DTYPES,
  INFO_FILE,
  CacheInfo,
  Rows,
  Shard,
)
from oneshot_dp.extract.cache.keys import embedding_keys
from oneshot_dp.extract.cache.read import FeatureCache, open_cache, read_shard
from oneshot_dp.extract.cache.shards import (
  CacheJob,
  checked,
  encode_shard,
  put_shard,
)

JOB_FILE = "job.json"
LISTING_FILE = "listing.json"
_OF_JOBS = (JOB_FILE, LISTING_FILE, "config.", "stop.", "shards-")
"""What the names of files start with that no finished cache has."""


def begin(out: str, job: CacheJob) -> bool:
  """Makes `out` this job's, new or resumed; False: the cache is finished.

  Raises:
    InputError: it is another job's, or holds anything else.
  """
  store = storage.store_at(out)
  mine = job.info.public() | {"job": job.digest}
  if (data := storage.read(store, INFO_FILE)) is not None:
    info = CacheInfo.from_json(data, store.where(INFO_FILE))
    found = info.public()
    if found == job.info.public():
      found["job"] = _job_of(store, info)
    _refuse_another(store, found, mine)
    _drop_job_files(store, storage.sizes(store))
    return False
  there = storage.read(store, JOB_FILE)
  if there is None:
    names = [n for n in storage.sizes(store) if not n.startswith(".")]
    if names and JOB_FILE not in names:
      raise InputError(
        f"{store.where()} holds other files, as {store.where(names[0])}:"
        " choose another --out, or empty it."
      )
    data = json.dumps(mine, indent=1, sort_keys=True).encode() + b"\n"
    there = storage.put_once(store, JOB_FILE, data)
  try:
    found = json.loads(there)
    found["job"]
  except (ValueError, TypeError, KeyError) as e:
    raise InputError(
      f"{store.where(JOB_FILE)} is damaged: remove {store.where()}, and run"
      " again."
    ) from e
  _refuse_another(store, found, mine)
  return True


def _job_of(store: storage.Store, info: CacheInfo) -> str:
  """The digest of the job of a finished cache, as its first shard says."""
  name = info.shard_name(0)
  try:
    blocks, _, _ = read_shard(store, name, info)
    return blocks[0][1]
  except (FileNotFoundError, IndexError, ValueError) as e:
    raise InputError(
      f"{store.where(name)} is damaged or gone; restore it, or remove"
      f" {store.where()} and run again."
    ) from e


def _refuse_another(
  store: storage.Store, there: dict[str, Any], now: dict[str, Any]
) -> None:
  said = list(_differences(there, now))
  if not said and there["job"] != now["job"]:
    said = ["images of the source came, went or changed since it began"]
  if said:
    raise InputError(
      f"{store.where()} belongs to another job: {'; '.join(said)}; choose"
      " another --out, or remove it to start again."
    )


def _differences(there: Any, now: Any, name: str = "") -> Iterator[str]:
  if isinstance(there, dict) and isinstance(now, dict):
    for key in sorted(there.keys() | now.keys()):
      if (inner := f"{name}.{key}".lstrip(".")) != "job":
        yield from _differences(there.get(key), now.get(key), inner)
  elif there != now:
    shown = [json.dumps(value)[:60] for value in (there, now)]
    yield f"{name} is {shown[0]} there and {shown[1]} now"


def _drop_job_files(store: storage.Store, names: Iterable[str]) -> None:
  storage.remove(store, [name for name in names if name.startswith(_OF_JOBS)])


def finish(out: str, job: CacheJob, shards: Iterable[Shard]) -> FeatureCache:
  """Makes the directory of all shards a cache, and drops the job's files.

  Raises:
    InputError: no shard has a row.
    RunError: a shard is not there, or the directory is another job's by now.
  """
  store = storage.store_at(out)
  found = {shard.file: shard for shard in shards}
  sizes = storage.sizes(store)
  names = [job.info.shard_name(i) for i in range(job.info.num_shards)]
  missing = [
    name
    for name in names
    if name not in found or sizes.get(name) != found[name].bytes
  ]
  if missing:
    raise RunError(
      f"{store.where()}: {len(missing)} of {len(names)} shards are not there,"
      f" as {missing[0]}; run the same command again."
    )
  every = tuple(found[name] for name in names)
  if not any(shard.rows for shard in every):
    raise InputError(
      f"{store.where()}: every example was skipped; nothing to cache."
    )
  info = dataclasses.replace(job.info, shards=every)
  begun = storage.read(store, JOB_FILE)
  is_ours = begun is not None and json.loads(begun).get("job") == job.digest
  # Or the same job has just been finished, by another launch of it.
  if not is_ours and storage.read(store, INFO_FILE) != info.to_json():
    raise RunError(
      f"{store.where()} was taken over by another job; nothing was written."
    )
  for name, data in (tfds_files(info) | {INFO_FILE: info.to_json()}).items():
    if storage.put_once(store, name, data) != data:
      raise RunError(f"{store.where(name)} is of another job; remove it.")
  _drop_job_files(store, sizes)
  return open_cache(out)


def write_cache(
  out: str | os.PathLike, info: CacheInfo, blocks: Iterable[Rows]
) -> FeatureCache:
  """Writes rows that come in blocks of any size; in memory is one shard.

  The rows have an embedding and a label, a `unit_id` if `info` says so, and an
  `example_id` unless it is their position. Their keys are made here, of the
  embeddings. The directory of a call that failed is left as it was.

  Args:
    out: a directory that is not there yet, or of a killed call for the same
      rows; a path or a URL.
    info: what the rows are; `source_num_examples` is how many.
    blocks: the rows, in order.

  Returns:
    The cache; the finished one, if it is there and of these rows.

  Raises:
    InputError: rows that a cache cannot hold, or an `out` that holds anything
      else.
    RunError: a full or broken disk.
  """
  out = os.fspath(out)
  info = dataclasses.replace(info, keys="embedding", shards=())
  job = CacheJob(info=info, more="import")
  store = storage.store_at(out)
  before = storage.sizes(store)
  begin(out, job)
  try:
    shards = []
    for i, rows in enumerate(_cut(blocks, info, store.where())):
      made, data = encode_shard(rows, job, i)
      shards.append(put_shard(out, job, i, made, data))
      if shards[-1] != made:
        raise InputError(
          f"{store.where()} holds other rows than these: choose another"
          " directory, or remove it."
        )
    return finish(out, job, shards)
  except BaseException:
    with contextlib.suppress(Exception):
      new = [n for n in storage.sizes(store) if n not in before]
      storage.remove(store, new)
      if store.remote is None:
        store.folder.rmdir()
    raise


def _cut(blocks: Iterable[Rows], info: CacheInfo, place: str) -> Iterator[Rows]:
  """Checked rows, as many at a time as a shard has."""
  pending: list[Rows] = []
  count = taken = 0

  def joined() -> Rows:
    return {n: np.concatenate([p[n] for p in pending]) for n in pending[0]}

  for block in blocks:
    block = dict(block)
    block.setdefault(
      "example_id", np.arange(taken, taken + len(block["label"]))
    )
    if "image_key" in block:
      raise InputError(f"{place}: image_key is made of the embeddings.")
    taken += len(block["label"])
    with np.errstate(over="ignore", invalid="ignore"):
      stored = block["embedding"].astype(DTYPES[info.embedding_dtype])
    block["image_key"] = embedding_keys(stored)
    block = checked(block, info, place)
    while len(block["label"]):
      space = info.shard_rows - count
      pending.append({n: a[:space] for n, a in block.items()})
      block = {n: a[space:] for n, a in block.items()}
      count += len(pending[-1]["label"])
      if count == info.shard_rows:
        yield joined()
        pending, count = [], 0
  if pending:
    yield joined()
  if taken != info.source_num_examples:
    raise InputError(
      f"{place}: {taken} rows came, and source_num_examples is"
      f" {info.source_num_examples}."
    )
