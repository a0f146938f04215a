"""Checks every byte and every row of a feature cache, and says what it is."""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import escaped
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.block import stored_norm, tfds_files
from oneshot_dp.extract.cache.format import (
  BLOCK_ROWS,
  CacheInfo,
  Rows,
  Shard,
)
from oneshot_dp.extract.cache.keys import embedding_keys
from oneshot_dp.extract.cache.read import FeatureCache, open_cache, read_shard


def check_cache(path: str | os.PathLike) -> list[str]:
  """Checks that a cache is what its metadata says, down to each row.

  *Formal guarantee*: with no problem found every shard has the SHA-256 with
  which it was written, and is of one job; every row is finite, has the norm of
  its stored embedding to the last bit, a label in [0, K), an id that no other
  row has, and, of what was imported, the key of its embedding; and TFDS is told
  the same. (The key of an image cannot be checked without the image: the
  ledger goes by the embedding's direction as well.)

  Returns:
    Every problem found, one line each; they name shards and ids, and no values.

  Raises:
    InputError: there is no cache to check, or its metadata cannot be read.
  """
  cache = open_cache(path)
  info, store = cache.info, storage.store_at(path)
  problems = list(_file_problems(store, info))
  ids, jobs = [np.empty(0, np.int64)], set()
  for index, shard in enumerate(info.shards):
    where = store.where(shard.file)
    try:
      blocks, sha256, size = read_shard(store, shard.file, info)
    except FileNotFoundError:
      continue  # said already
    except ValueError as e:
      problems.append(f"{where} is damaged ({e})")
      continue
    jobs |= {job for _, job in blocks}
    if (sha256, size) != (shard.sha256, shard.bytes):
      problems.append(f"{where}: its SHA-256 is another")
    lengths = [len(rows["label"]) for rows, _ in blocks]
    problems += _block_problems(where, lengths, shard, info, index)
    for rows, _ in blocks:
      ids.append(rows["example_id"])
      problems += _row_problems(where, rows, info)
  found, counts = np.unique(np.concatenate(ids), return_counts=True)
  if (counts > 1).any():
    problems.append(
      f"{store.where()}: {(counts > 1).sum()} ids come more than once, the"
      f" first is example_id {found[counts > 1][0]}"
    )
  if len(jobs) > 1:
    problems.append(f"{store.where()}: its shards are of {len(jobs)} jobs")
  return problems


def _file_problems(store: storage.Store, info: CacheInfo) -> Iterator[str]:
  there = storage.sizes(store)
  listed = {shard.file for shard in info.shards}
  for name in sorted(listed - there.keys()):
    yield f"{store.where(name)} is not there"
  for name in there:
    if ".array_record-" in name and name not in listed:
      yield f"{store.where(name)} is not one of the cache's shards"
  for name, text in tfds_files(info).items():
    try:
      same = json.loads(storage.read(store, name) or b"") == json.loads(text)
    except ValueError:  # an InputError, too
      same = False
    if not same:
      yield f"{store.where(name)}: missing, or not what TFDS must be told"


def _block_problems(
  where: str, lengths: list[int], shard: Shard, info: CacheInfo, index: int
) -> Iterator[str]:
  most = len(info.shard_range(index))
  whole = all(length == BLOCK_ROWS for length in lengths[:-1])
  last = 0 < lengths[-1] <= BLOCK_ROWS or len(lengths) == 1
  if not (whole and last and sum(lengths) <= most) or (
    (sum(lengths), len(lengths)) != (shard.rows, shard.blocks)
  ):
    yield (
      f"{where}: {sum(lengths)} rows in {len(lengths)} blocks, and the metadata"
      f" say {shard.rows} in {shard.blocks}, of {BLOCK_ROWS} at most"
    )


def _row_problems(where: str, rows: Rows, info: CacheInfo) -> Iterator[str]:
  embedding, label = rows["embedding"], rows["label"]
  finite = np.isfinite(embedding).all(axis=1)
  with np.errstate(invalid="ignore", over="ignore"):
    norm = stored_norm(embedding) == rows["embedding_norm"]
    key = rows["image_key"].any(axis=1)
    if info.keys == "embedding":
      key = (embedding_keys(embedding) == rows["image_key"]).all(axis=1)
  in_range = (label >= 0) & (label < info.num_classes)
  for good, what in (
    (finite, "an embedding that is not finite"),
    (norm | ~finite, "an embedding_norm that is not its norm"),
    (in_range, f"a label outside [0, {info.num_classes})"),
    (key, "an image_key that is not its key"),
  ):
    if not good.all():
      yield f"{where}: example_id {rows['example_id'][~good][0]} has {what}"


def describe(cache: FeatureCache) -> dict[str, str]:
  """What a cache is, for its holder: exact counts, no label statistics."""
  info = cache.info

  def listed(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{k}={v}" for k, v in (values or {}).items()) or "-"

  names = ", ".join(info.class_names[:8])
  more = f", … ({info.num_classes} in all)" if info.num_classes > 8 else ""
  size, count = sum(s.bytes for s in info.shards), cache.num_shards
  backbone = {k: v for k, v in info.backbone.items() if k != "preprocess"}
  return {
    "data set": f"{info.dataset}, split {info.split}{cache.part}",
    "examples": f"{cache.num_rows:,} of {info.source_num_examples:,}",
    "features": f"{info.feature_dim} x {info.embedding_dtype}",
    "classes": f"{info.num_classes} (from {info.num_classes_source})",
    "class names": escaped(names + more),
    "backbone": escaped(listed(backbone)),
    "preprocessing": listed(info.backbone.get("preprocess")),
    "computed by": escaped(listed(info.computed_by)),
    "views": listed(info.views),
    "privacy unit": info.unit,
    "example ids": info.id_source,
    "size": f"{size:,} bytes in {count:,} shard{'s' * (count != 1)}",
    "fingerprint": info.fingerprint,
  }
