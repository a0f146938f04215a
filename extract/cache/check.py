"""Checks a cache down to each row: its bytes, columns, ids, TFDS files."""

import json
import os
from collections.abc import Iterator

import numpy as np

from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import BLOCK_ROWS, CacheInfo, Rows, Shard
from oneshot_dp.extract.cache.keys import embedding_keys
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.extract.cache.row_values import stored_norm
from oneshot_dp.extract.cache.shard_file import StoredShard, read_shard
from oneshot_dp.extract.cache.tfds_metadata import tfds_files


def check_cache(path: str | os.PathLike) -> list[str]:
  """Checks that a cache is what its metadata says, down to each row.

  *Formal guarantee*: with no problem found every shard has the SHA-256 with
  which it was written, and is of one job; every row is finite, has the norm of
  its stored embedding to the last bit, a label in [0, K), an id that no other
  row has, and, of what was imported, the key of its embedding; and TFDS is told
  the same. (The key of an image cannot be checked without the image: the
  ledger goes by the embedding's direction as well.)

  Args:
    path: the directory, or its URL.

  Returns:
    Every problem found, one line each; they name shards and ids, and no values.

  Raises:
    InputError: there is no cache to check, or its metadata cannot be read.
  """
  info = open_cache(path).info
  store = storage.store_at(path)
  problems = [*_stray_shards(store, info), *_tfds_problems(store, info)]
  # Ids are collected over all shards: a row that comes twice would be counted
  # twice, and may be in two of them.
  ids = [np.empty(0, np.int64)]
  jobs = set()
  for shard in info.shards:
    place = store.display_path(shard.file)
    try:
      stored = read_shard(store, shard.file, info, shard)
    except FileNotFoundError:
      problems.append(f"{place} does not exist")
      continue
    except ValueError as error:
      problems.append(f"{place} is damaged ({error})")
      continue
    jobs |= stored.jobs
    problems += _count_problems(place, stored, shard, info)
    for rows in stored.blocks:
      ids.append(rows["example_id"])
      problems += _row_problems(place, rows, info)
  distinct, counts = np.unique(np.concatenate(ids), return_counts=True)
  repeated = distinct[counts > 1]
  if len(repeated):
    problems.append(
      f"{store.display_path()}: {len(repeated)} ids come more than once, the"
      f" first is example_id {repeated[0]}"
    )
  if len(jobs) > 1:
    problems.append(
      f"{store.display_path()}: its shards are of {len(jobs)} jobs"
    )
  return problems


def _stray_shards(store: storage.Store, info: CacheInfo) -> Iterator[str]:
  """Problems: shards in the directory that the metadata do not list."""
  names = {shard.file for shard in info.shards}
  for name in storage.list_files(store):
    if ".array_record-" in name and name not in names:
      place = store.display_path(name)
      yield f"{place} is not one of the cache's shards"


def _tfds_problems(store: storage.Store, info: CacheInfo) -> Iterator[str]:
  """Problems: files of TFDS that do not say what the metadata say."""
  for name, text in tfds_files(info).items():
    try:
      stored = json.loads(storage.read(store, name) or b"")
    except ValueError:  # not JSON; or an InputError: it may not be read
      stored = None
    if stored != json.loads(text):
      place = store.display_path(name)
      yield f"{place}: missing, or not what TFDS must be told"


def _count_problems(
  place: str, stored: StoredShard, expected: Shard, info: CacheInfo
) -> Iterator[str]:
  """Problems: a shard of other numbers of rows and blocks than stated."""
  actual = stored.shard
  # All blocks but the last are full; a shard of no rows has one empty block.
  lengths = [len(rows["label"]) for rows in stored.blocks]
  starts = range(0, max(1, actual.rows), BLOCK_ROWS)
  full = [min(BLOCK_ROWS, actual.rows - start) for start in starts]
  if actual != expected or lengths != full or actual.rows > info.shard_rows:
    yield (
      f"{place}: {actual.rows} rows in {actual.blocks} blocks, and the metadata"
      f" say {expected.rows} in {expected.blocks}, of {BLOCK_ROWS} at most"
    )


def _row_problems(place: str, rows: Rows, info: CacheInfo) -> Iterator[str]:
  """Problems: rows whose columns contradict each other; names the first."""
  embedding = rows["embedding"]
  label = rows["label"]
  key = rows["image_key"]
  with np.errstate(invalid="ignore", over="ignore"):
    is_finite = np.isfinite(embedding).all(axis=1)
    has_norm = stored_norm(embedding) == rows["embedding_norm"]
    if info.keys == "embedding":
      has_key = (embedding_keys(embedding) == key).all(axis=1)
    else:
      has_key = key.any(axis=1)
  k = info.num_classes
  # The first row of each fault is named, by its id. Its values are private,
  # also in an error.
  for is_good, fault in (
    (is_finite, "an embedding that is not finite"),
    (has_norm | ~is_finite, "an embedding_norm that is not its norm"),
    ((label >= 0) & (label < k), f"a label outside [0, {k})"),
    (has_key, "an image_key that is not its key"),
  ):
    if not is_good.all():
      first = rows["example_id"][~is_good][0]
      yield f"{place}: example_id {first} has {fault}"
