"""Checks every byte and every row of a feature cache, and says what it is."""

import json
import os
from collections.abc import Iterator

import numpy as np

from oneshot_dp.configs.errors import escaped
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import BLOCK_ROWS, CacheInfo, Rows
from oneshot_dp.extract.cache.keys import embedding_keys
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.shard_file import (
  read_shard,
  stored_norm,
  tfds_files,
)


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
  info, store = open_cache(path).info, storage.store_at(path)
  problems = list(_file_problems(store, info))
  ids, jobs = [np.empty(0, np.int64)], set()
  for shard in info.shards:
    where = store.where(shard.file)
    try:
      blocks, of_jobs, found = read_shard(store, shard.file, info)
    except (FileNotFoundError, ValueError) as e:
      problems.append(f"{where} is damaged, or not there ({e})")
      continue
    jobs |= of_jobs
    lengths = [len(rows["label"]) for rows in blocks]
    whole = all(length == BLOCK_ROWS for length in lengths[:-1])
    if found.sha256 != shard.sha256:
      problems.append(f"{where}: its SHA-256 is another")
    if found != shard or not (
      whole and lengths[-1] <= BLOCK_ROWS and found.rows <= info.shard_rows
    ):
      problems.append(
        f"{where}: {found.rows} rows in {found.blocks} blocks, and the metadata"
        f" say {shard.rows} in {shard.blocks}, of {BLOCK_ROWS} at most"
      )
    for rows in blocks:
      ids.append(rows["example_id"])
      problems += _row_problems(where, rows, info)
  found, counts = np.unique(np.concatenate(ids), return_counts=True)
  if len(again := found[counts > 1]):
    problems.append(
      f"{store.where()}: {len(again)} ids come more than once, the first is"
      f" example_id {again[0]}"
    )
  if len(jobs) > 1:
    problems.append(f"{store.where()}: its shards are of {len(jobs)} jobs")
  return problems


def _file_problems(store: storage.Store, info: CacheInfo) -> Iterator[str]:
  listed = {shard.file for shard in info.shards}
  for name in storage.sizes(store):
    if ".array_record-" in name and name not in listed:
      yield f"{store.where(name)} is not one of the cache's shards"
  for name, text in tfds_files(info).items():
    try:
      same = json.loads(storage.read(store, name) or b"") == json.loads(text)
    except ValueError:  # an InputError, too
      same = False
    if not same:
      yield f"{store.where(name)}: missing, or not what TFDS must be told"


def _row_problems(where: str, rows: Rows, info: CacheInfo) -> Iterator[str]:
  embedding, label, key = rows["embedding"], rows["label"], rows["image_key"]
  with np.errstate(invalid="ignore", over="ignore"):
    finite = np.isfinite(embedding).all(axis=1)
    norm = stored_norm(embedding) == rows["embedding_norm"]
    known = key.any(axis=1)
    if info.keys == "embedding":
      known = (embedding_keys(embedding) == key).all(axis=1)
  for good, what in (
    (finite, "an embedding that is not finite"),
    (norm | ~finite, "an embedding_norm that is not its norm"),
    (
      (label >= 0) & (label < info.num_classes),
      f"a label outside [0, {info.num_classes})",
    ),
    (known, "an image_key that is not its key"),
  ):
    if not good.all():
      yield f"{where}: example_id {rows['example_id'][~good][0]} has {what}"


def describe(cache: FeatureCache) -> dict[str, str]:
  """What a cache is, for its holder: exact counts, no label statistics."""
  info = cache.info

  made_by = [info.backbone.get(name) for name in ("name", "layer")]
  if sha256 := info.backbone.get("weights_sha256"):
    made_by.append(f"weights {sha256[:12]}")
  libraries = (info.computed_by or {}).get("libraries", {})
  versions = ", ".join(f"{name} {v}" for name, v in libraries.items())
  names = ", ".join(info.class_names[:8]) + ", …" * (info.num_classes > 8)
  return {
    "data set": f"{info.dataset}, split {info.split}{cache.part}",
    "examples": f"{cache.num_rows:,} of {info.source_num_examples:,}",
    "features": f"{info.feature_dim} x {info.embedding_dtype}",
    "classes": f"{info.num_classes} (from {info.num_classes_source})",
    "class names": escaped(names),
    "backbone": escaped(", ".join(map(str, filter(None, made_by)))),
    "computed by": escaped(versions or "-"),
    "views": str((info.views or {}).get("count", "-")),
    "privacy unit": info.unit,
    "size": f"{sum(s.bytes for s in info.shards):,} bytes",
    "fingerprint": info.fingerprint,
  }
