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
from oneshot_dp.extract.cache.format import (
  DTYPES,
  INFO_FILE,
  CacheInfo,
  Rows,
  Shard,
  tfds_files,
)
from oneshot_dp.extract.cache.keys import embedding_keys
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  checked,
  encode_shard,
  load_existing_shard,
  put_shard,
)

JOB_FILE = "job.json"
"""Like all that no finished cache has, it starts with "job."."""


def begin(out: str, job: CacheJob) -> bool:
  """Makes `out` this job's, new or resumed; False: the cache is finished.

  InputError: it is another job's, or holds anything else.
  """
  store, info = storage.store_at(out), job.info
  mine = info.public() | {"job": job.digest}
  text = storage.read(store, JOB_FILE)  # first: it is dropped last
  finished = storage.read(store, INFO_FILE)
  if finished is not None:
    there = CacheInfo.from_json(finished, store.display_path(INFO_FILE))
    found: Any = there.public()
    with contextlib.suppress(RunError):  # its first shard says of what listing
      if found == info.public() and load_existing_shard(
        out, job, info.shard_name(0)
      ):
        found["job"] = job.digest
  else:
    names = {} if text else storage.list_files(store)
    if strays := [n for n in names if n[0] != "." and JOB_FILE not in names]:
      raise InputError(
        f"{store.display_path()} holds other files, as"
        f" {store.display_path(strays[0])}:"
        " choose another --out, or empty it."
      )
    data = json.dumps(mine, indent=1, sort_keys=True).encode() + b"\n"
    text = text or storage.write_if_absent(store, JOB_FILE, data)
    try:
      found = dict(json.loads(text))
    except (ValueError, TypeError) as e:
      raise InputError(
        f"{store.display_path(JOB_FILE)} is damaged: remove"
        f" {store.display_path()}."
      ) from e
  if said := list(_differences(found, mine)):
    said = said[:-1] or [
      "images of the source came, went or changed, or its shard is damaged"
    ]
    raise InputError(
      f"{store.display_path()} belongs to another job:"
      f" {'; '.join(said[:3])}; choose"
      " another --out, or remove it to start again."
    )
  if finished is not None:
    _drop_job_files(store, storage.list_files(store))
  return finished is None


def _differences(there: Any, now: Any, name: str = "") -> Iterator[str]:
  """What differs, `job`, which is a function of all of it, last."""
  if isinstance(there, dict) and isinstance(now, dict):
    for key in sorted(there.keys() | now.keys(), key=lambda k: (k == "job", k)):
      inner = f"{name}.{key}".lstrip(".")
      yield from _differences(there.get(key), now.get(key), inner)
  elif there != now:
    shown = [json.dumps(value)[:60] for value in (there, now)]
    yield f"{name} is {shown[0]} there and {shown[1]} now"


def _drop_job_files(store: storage.Store, names: Iterable[str]) -> None:
  storage.remove(store, [n for n in names if n.startswith("job.")])


def finish(out: str, job: CacheJob, shards: Iterable[Shard]) -> FeatureCache:
  """Makes the directory of all shards a cache, and drops the job's files.

  InputError: no shard has a row. RunError: a shard is not there, or the
  directory is another job's by now.
  """
  store, found = storage.store_at(out), {shard.file: shard for shard in shards}
  files = storage.list_files(store)
  sizes = {name: size for name, (size, _) in files.items()}
  names = [job.info.shard_name(i) for i in range(job.info.num_shards)]
  there = {n for n, shard in found.items() if sizes.get(n) == shard.bytes}
  if missing := [name for name in names if name not in there]:
    raise RunError(
      f"{store.display_path()}: {len(missing)} of {len(names)} shards are"
      " not there,"
      f" as {missing[0]}; run the same command again."
    )
  info = dataclasses.replace(job.info, shards=tuple(found[n] for n in names))
  if not any(shard.rows for shard in info.shards):
    raise InputError(f"{store.display_path()}: every example was skipped.")
  begun = storage.read(store, JOB_FILE)
  is_ours = begun is not None and json.loads(begun).get("job") == job.digest
  # Or the same job has just been finished, by another launch of it.
  if not is_ours and storage.read(store, INFO_FILE) != info.to_json():
    raise RunError(f"{store.display_path()} was taken over by another job.")
  for name, data in (tfds_files(info) | {INFO_FILE: info.to_json()}).items():
    if storage.write_if_absent(store, name, data) != data:
      raise RunError(
        f"{store.display_path(name)} is of another job; remove it."
      )
  _drop_job_files(store, files)
  return open_cache(out)


def write_cache(
  out: str | os.PathLike, info: CacheInfo, blocks: Iterable[Rows]
) -> FeatureCache:
  """Writes rows that come in blocks of any size; in memory is one shard.

  Their keys are made here, of the embeddings. The directory of a call that
  failed is left as it was. InputError: rows that a cache cannot hold, or an
  `out` that holds anything else. RunError: a full or broken disk.

  Args:
    out: a path or a URL that is not there yet, or of a killed call; a finished
      cache of these rows is given back.
    info: what the rows are; `source_num_examples` is how many.
    blocks: in order; embedding and label, `unit_id` if `info` says so, and
      `example_id` unless it is their position.
  """
  out, info = os.fspath(out), dataclasses.replace(info, keys="embedding")
  job, store = CacheJob(info=info, more="import"), storage.store_at(out)
  before, shards = storage.list_files(store), []
  begin(out, job)
  try:
    for rows in _cut(blocks, info, store.display_path()):
      made, data = encode_shard(rows, job, len(shards))
      if put_shard(out, job, made, data) != made:
        raise InputError(
          f"{store.display_path()} holds other rows than these: choose another"
          " directory, or remove it."
        )
      shards.append(made)
    return finish(out, job, shards)
  except BaseException:
    with contextlib.suppress(Exception):
      there = storage.list_files(store)
      if INFO_FILE not in there:  # else it is another call's cache
        own = {shard.file for shard in shards} - before.keys()
        if not any(".array_record-" in n for n in there.keys() - own):
          own |= {JOB_FILE} - before.keys()
        storage.remove(store, own & there.keys())
      if store.remote is None:
        os.rmdir(store.place)
    raise


def _cut(blocks: Iterable[Rows], info: CacheInfo, place: str) -> Iterator[Rows]:
  """Checked rows, as many at a time as a shard has."""
  rows, taken, size = {}, 0, info.shard_rows
  for block in blocks:
    if "image_key" in block:
      raise InputError(f"{place}: image_key is made of the embeddings.")
    ids = np.arange(taken, taken + len(block["label"]))
    taken += len(ids)
    with np.errstate(over="ignore", invalid="ignore"):
      stored = block["embedding"].astype(DTYPES[info.embedding_dtype])
    more = {"image_key": embedding_keys(stored)}
    more = checked({"example_id": ids} | block | more, info, place)
    for name, column in more.items():
      rows[name] = np.concatenate([rows.get(name, column[:0]), column])
    while len(rows["label"]) >= size:
      yield {name: column[:size] for name, column in rows.items()}
      rows = {name: column[size:] for name, column in rows.items()}
  if rows and len(rows["label"]):
    yield rows
  if taken != info.source_num_examples:
    raise InputError(
      f"{place}: {taken} rows came, and source_num_examples is"
      f" {info.source_num_examples}."
    )
