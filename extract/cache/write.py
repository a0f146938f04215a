"""Writing a feature cache: each shard once, the metadata last, no locks.

The protocol between any number of launchers and workers of one directory:

  1. `start_or_resume` writes `job.json`, which identifies the job. Whoever
     comes with another job finds it there, and is refused.
  2. Every shard is encoded whole, with the digest of the job in each record,
     and put under its final name by a step that can only create. A worker that
     finds a file there reads it, and refuses it if it belongs to another job:
     a worker of an earlier job may wake up at any time, and what it leaves must
     never be counted.
  3. `finalize` checks that all shards are there, and writes `cache_info.json`,
     which makes the directory a cache. Then the files of the job are removed.

A kill between any two of these steps leaves a directory that the same command
finishes, with the same bytes.
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import DISTINCT_IMAGE
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import (
  DTYPES,
  INFO_FILE,
  CacheInfo,
  Rows,
  Shard,
)
from oneshot_dp.extract.cache.keys import embedding_keys, image_units
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.row_values import validate_and_cast_rows
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
  load_existing_shard,
  put_shard,
)
from oneshot_dp.extract.cache.tfds_metadata import tfds_files

JOB_FILE = "job.json"
"""Names of files that a finished cache does not have begin with "job."."""
_SHOWN_DIFFERENCES = 3
_WORDS_OF_FIELDS = {
  "source_num_examples": "the number of images",
  "num_classes_source": "where the number of classes is known from",
}
_SHOWN_CHARACTERS = 60


def start_or_resume(out: str, job: CacheJob) -> bool:
  """Makes a directory this job's, whether it is new or was begun before.

  Args:
    out: the directory of the cache.
    job: the job that is to write it.

  Returns:
    Whether there is work to do; False if the cache is finished.

  Raises:
    InputError: the directory belongs to another job, or holds other files.
  """
  store = storage.store_at(out)
  # `job.json` is read before `cache_info.json`, since `finalize` removes the
  # one after it wrote the other: so at least one of both is seen.
  begun = storage.read(store, JOB_FILE)
  finished = storage.read(store, INFO_FILE)
  if finished is not None:
    _check_same_job(store, _identity_of_cache(out, job, finished), job)
    _remove_job_files(store, storage.list_files(store))
    return False
  if begun is None:
    _check_no_other_files(store)
    begun = storage.write_if_absent(store, JOB_FILE, _encode_identity(job))
  _check_same_job(store, _decode_identity(store, begun), job)
  return True


def _identity(job: CacheJob) -> dict[str, Any]:
  """Returns what identifies a job: public metadata, and a digest of it all."""
  return job.info.public() | {"job": job.digest}


def _encode_identity(job: CacheJob) -> bytes:
  return json.dumps(_identity(job), indent=1, sort_keys=True).encode() + b"\n"


def _decode_identity(store: storage.Store, data: bytes) -> dict[str, Any]:
  try:
    return dict(json.loads(data))
  except (ValueError, TypeError) as e:
    raise InputError(
      f"{store.display_path(JOB_FILE)} is damaged: remove"
      f" {store.display_path()}."
    ) from e


def _identity_of_cache(
  out: str, job: CacheJob, metadata: bytes
) -> dict[str, Any]:
  """The identity of a finished cache, so far as it is that of `job`.

  The metadata are public, so they hold no digest of the listing: the records
  of the first shard do.
  """
  place = storage.store_at(out).display_path(INFO_FILE)
  identity = CacheInfo.from_json(metadata, place).public()
  if identity == job.info.public():
    with contextlib.suppress(RunError):  # another listing's, or damaged
      if load_existing_shard(out, job, job.info.shard_name(0)):
        identity["job"] = job.digest
  return identity


def _check_no_other_files(store: storage.Store) -> None:
  names = storage.list_files(store)
  if JOB_FILE in names:  # another launcher has just begun
    return
  for name in names:
    if not name.startswith("."):
      raise InputError(
        f"{store.display_path()} holds other files, such as"
        f" {store.display_path(name)}: choose another --out, or empty it."
      )


def _check_same_job(
  store: storage.Store, stored: dict[str, Any], job: CacheJob
) -> None:
  """Raises InputError, with what differs, unless `stored` is the job's."""
  identity = _identity(job)
  if stored == identity:
    return
  # The digest is a function of all the rest, so it says nothing on its own,
  # unless nothing but the listing, which it is a function of, too, differs.
  differences = list(
    _differences(
      {name: value for name, value in stored.items() if name != "job"},
      job.info.public(),
    )
  )
  if not differences:
    differences = [
      "images of the source came, went or changed, --max-pixels is another, or"
      " its shard is damaged"
    ]
  raise InputError(
    f"{store.display_path()} belongs to another job:"
    f" {'; '.join(differences[:_SHOWN_DIFFERENCES])}; choose another --out, or"
    " remove it to start again."
  )


def _differences(
  existing: Any, requested: Any, name: str = ""
) -> Iterator[str]:
  """Says what differs between two JSON values, field by field."""
  if isinstance(existing, dict) and isinstance(requested, dict):
    for key in sorted(existing.keys() | requested.keys()):
      inner = f"{name}.{key}".lstrip(".")
      yield from _differences(existing.get(key), requested.get(key), inner)
  elif existing != requested:
    before = json.dumps(existing)[:_SHOWN_CHARACTERS]
    after = json.dumps(requested)[:_SHOWN_CHARACTERS]
    words = _WORDS_OF_FIELDS.get(name, name)
    yield f"{words} is {before} there and {after} now"


def _remove_job_files(store: storage.Store, names: Iterable[str]) -> None:
  storage.remove(store, [name for name in names if name.startswith("job.")])


def finalize(out: str, job: CacheJob, shards: Iterable[Shard]) -> FeatureCache:
  """Turns the directory of all shards into a cache, and removes job files.

  Args:
    out: the directory.
    job: the job that began in it.
    shards: descriptions of all its shards, in any order.

  Returns:
    The finished cache.

  Raises:
    InputError: no shard has a row.
    RunError: a shard does not exist, or the directory is another job's by now.
  """
  store = storage.store_at(out)
  files = storage.list_files(store)
  info = dataclasses.replace(
    job.info, shards=_all_shards(store, job.info, shards, files)
  )
  if not any(shard.rows for shard in info.shards):
    raise InputError(f"{store.display_path()}: every example was skipped.")
  _check_still_ours(store, job, info)
  # The metadata of the cache come last: they make it one.
  for name, data in {**tfds_files(info), INFO_FILE: info.to_json()}.items():
    if storage.write_if_absent(store, name, data) != data:
      raise RunError(
        f"{store.display_path(name)} belongs to another job; remove it."
      )
  _remove_job_files(store, files)
  return open_cache(out)


def _all_shards(
  store: storage.Store,
  info: CacheInfo,
  shards: Iterable[Shard],
  files: dict[str, tuple[int, str]],
) -> tuple[Shard, ...]:
  """The shards in order; RunError: one of them is not in the directory."""
  # Descriptions come from workers, which may be elsewhere: what they describe
  # must be in the listing, at that size. Its SHA-256 is compared whenever it is
  # read.
  described = {shard.file: shard for shard in shards}
  ordered = []
  missing = []
  for index in range(info.num_shards):
    name = info.shard_name(index)
    shard = described.get(name)
    size, _ = files.get(name, (None, ""))
    if shard is None or size != shard.bytes:
      missing.append(name)
    else:
      ordered.append(shard)
  if missing:
    raise RunError(
      f"{store.display_path()}: {len(missing)} of {info.num_shards} shards do"
      f" not exist, such as {missing[0]}; run the same command again."
    )
  return tuple(ordered)


def _check_still_ours(
  store: storage.Store, job: CacheJob, info: CacheInfo
) -> None:
  """RunError: somebody emptied the directory and began another job in it."""
  begun = storage.read(store, JOB_FILE)
  if begun is not None and json.loads(begun).get("job") == job.digest:
    return
  # Another launcher of this very job may have just finished it.
  if storage.read(store, INFO_FILE) != info.to_json():
    raise RunError(f"{store.display_path()} was taken over by another job.")


def write_cache(
  out: str | os.PathLike, info: CacheInfo, blocks: Iterable[Rows]
) -> FeatureCache:
  """Writes existing embeddings as a cache, from blocks of any size.

  One shard is in memory at a time. The keys of the rows are computed here, from
  the embeddings. A call that failed leaves the directory as it was.

  Args:
    out: a path or a URL that does not exist yet, or where a killed call wrote;
      a finished cache of the same rows is opened and returned.
    info: the metadata; `source_num_examples` is the number of rows.
    blocks: in order, columns embedding and label, `unit_id` if `info` has a
      unit (for distinct images it is computed here), and `example_id` unless
      ids are positions.

  Returns:
    The finished cache.

  Raises:
    InputError: rows that a cache cannot hold, an `out` that holds anything
      else, or an argument of another kind.
    RunError: a full or broken disk.
  """
  if not isinstance(out, str | os.PathLike):
    raise InputError(f"out={out!a:.80} must be a path or a URL.")
  if not isinstance(info, CacheInfo):
    raise InputError(f"info={info!a:.80} must be a CacheInfo.")
  if isinstance(blocks, Mapping | str) or not isinstance(blocks, Iterable):
    raise InputError("blocks must be an iterable of dicts of columns.")
  directory = os.fspath(out)
  info = dataclasses.replace(info, keys="embedding")
  job = CacheJob(info=info, extra_identity="import")
  store = storage.store_at(directory)
  # What is there before is not this call's, and stays if it fails.
  names_before = set(storage.list_files(store))
  folder_before = store.remote is None and os.path.isdir(store.place)
  shards = []
  start_or_resume(directory, job)
  try:
    for rows in _cut_into_shards(blocks, info, store.display_path()):
      shard, data = encode_shard(rows, job, len(shards))
      if put_shard(directory, job, shard, data) != shard:
        raise InputError(
          f"{store.display_path()} holds other rows than these: choose another"
          " directory, or remove it."
        )
      shards.append(shard)
    return finalize(directory, job, shards)
  except BaseException:
    # Whatever cannot be undone, the error that led here is what to report.
    with contextlib.suppress(Exception):
      written = {shard.file for shard in shards} - names_before
      _undo(store, written, names_before)
      if store.remote is None and not folder_before:
        os.rmdir(store.place)  # fails where something is left
    raise


def _undo(
  store: storage.Store, written: set[str], names_before: set[str]
) -> None:
  """Removes what a failed import wrote, but nothing that is another's."""
  # Others may be at work in the same directory: only what this call wrote is
  # removed, and the job's file only if nobody else's shards need it.
  names_now = set(storage.list_files(store))
  if INFO_FILE not in names_now:  # else it is another call's finished cache
    own = set(written)
    others = [n for n in names_now - own if ".array_record-" in n]
    if not others and JOB_FILE not in names_before:
      own.add(JOB_FILE)
    storage.remove(store, own & names_now)


def _cut_into_shards(
  blocks: Iterable[Rows], info: CacheInfo, place: str
) -> Iterator[Rows]:
  """Checks rows, and yields as many at a time as a shard has."""
  # Blocks may have any size; shards have one, as it decides which rows are in
  # which file, and so the bytes of the cache.
  waiting: Rows = {}
  num_rows = 0
  given_ids = []
  for block in blocks:
    rows = _complete_block(block, num_rows, info, place)
    num_rows += len(rows["label"])
    if "example_id" in block:
      given_ids.append(rows["example_id"])
    waiting = _concatenate(waiting, rows)
    while len(waiting["label"]) >= info.shard_rows:
      yield {name: a[: info.shard_rows] for name, a in waiting.items()}
      waiting = {name: a[info.shard_rows :] for name, a in waiting.items()}
  _check_ids(given_ids, place)
  if waiting and len(waiting["label"]):
    yield waiting
  if num_rows != info.source_num_examples:
    raise InputError(
      f"{place}: {num_rows} rows came, and source_num_examples is"
      f" {info.source_num_examples}."
    )


def _check_ids(blocks: list[np.ndarray], place: str) -> None:
  """Raises InputError if an id comes twice, in whatever shards.

  Positions cannot; where blocks bring ids of their own, training would count
  such a row twice, and one host alone could not see it.
  """
  if not blocks:
    return
  ids = np.concatenate(blocks)
  ids.sort()
  is_repeated = ids[1:] == ids[:-1]
  if is_repeated.any():
    first = ids[1:][is_repeated][0]
    raise InputError(
      f"{place}: example_id {first} comes more than once; give every row an id"
      " of its own."
    )


def _complete_block(
  block: Rows, start: int, info: CacheInfo, place: str
) -> Rows:
  """All columns of a block whose first row is number `start` of all."""
  if not isinstance(block, Mapping) or not {"embedding", "label"} <= set(block):
    raise InputError(f'{place}: a block is a dict of "embedding" and "label".')
  for name, values in block.items():
    if not isinstance(values, np.ndarray) or values.dtype.kind in "OSU":
      raise InputError(f"{place}: {name} must be an array of numbers.")
  if "image_key" in block:
    raise InputError(f"{place}: image_key is made of the embeddings.")
  positions = np.arange(start, start + len(block["label"]))
  with np.errstate(over="ignore", invalid="ignore"):
    stored = block["embedding"].astype(DTYPES[info.embedding_dtype])
    # NumPy warns of a signaling NaN, which is refused below like any NaN.
    keys = embedding_keys(stored)
  rows = {"example_id": positions} | block
  rows["image_key"] = keys
  if info.unit == DISTINCT_IMAGE:
    rows["unit_id"] = image_units(rows["image_key"])
  return validate_and_cast_rows(rows, info, place)


def _concatenate(first: Rows, second: Rows) -> Rows:
  if not first:
    return second
  return {name: np.concatenate([first[name], second[name]]) for name in second}
