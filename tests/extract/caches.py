"""Small caches for the tests of the feature cache."""

import hashlib
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneshot_dp.extract.cache.block import cut
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  CacheIdentity,
  numbered_class_names,
)
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.cache.shard_writer import finished_shards, write_shard
from oneshot_dp.extract.cache.writer import begin, finish


def make_identity(n: int = 20, d: int = 3, **changes: Any) -> CacheIdentity:
  fields: dict[str, Any] = {
    "dataset": "pets",
    "dataset_version": "3.2.0",
    "split": "train",
    "source_num_examples": n,
    "feature_dim": d,
    "class_names": numbered_class_names(4),
    "num_classes_source": "class_names",
    "backbone": BackboneIdentity(
      name="vit_ti16", layer="cls", weights_sha256="ab12"
    ),
    "preprocess": {"image_size": 224, "mean": (0.5, 0.5, 0.5)},
    "embedding_dtype": "float16",
    "shard_rows": 8,
    "libraries": {"numpy": "2.2.0"},
  }
  return CacheIdentity(**fields | changes)


def make_rows(identity: CacheIdentity) -> Rows:
  """All rows of the source, always the same ones."""
  n, d = identity.source_num_examples, identity.feature_dim
  rng = np.random.default_rng(n * 1000 + d)
  return Rows(
    embedding=rng.standard_normal((n, d)).astype(np.float32),
    label=rng.integers(0, identity.num_classes, n),
    example_id=np.arange(n),
    unit_id=rng.integers(-(2**62), 2**62, n) if identity.has_units else None,
  )


def part(rows: Rows, indices: range | slice) -> Rows:
  return cut(rows, slice(indices.start, indices.stop))


def batches(rows: Rows, indices: range, size: int) -> Iterator[Rows]:
  for start in range(indices.start, indices.stop, size):
    yield part(rows, range(start, min(start + size, indices.stop)))


def write_cache(
  out: str | pathlib.Path, identity: CacheIdentity, batch_size: int = 5
) -> CacheInfo | None:
  """The job: what is there is kept, what is missing is written."""
  rows = make_rows(identity)
  if not begin(out, identity):
    return None
  done = finished_shards(out, identity)
  for i in range(identity.num_shards):
    if i not in done:
      indices = identity.shard_range(i)
      write_shard(out, identity, i, batches(rows, indices, batch_size))
  return finish(out, identity)


def write_rows(
  out: pathlib.Path, identity: CacheIdentity, rows: Rows
) -> CacheInfo:
  """A cache of these rows, a batch for each shard."""
  assert begin(out, identity)
  write_shards(out, identity, rows)
  return finish(out, identity)


def write_shards(
  out: pathlib.Path, identity: CacheIdentity, rows: Rows
) -> None:
  for i in range(identity.num_shards):
    write_shard(out, identity, i, [part(rows, identity.shard_range(i))])


def digest(out: pathlib.Path) -> dict[str, str]:
  """SHA-256 of every file under a directory, by its name there."""
  return {
    str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest()
    for p in sorted(out.rglob("*"))
    if p.is_file()
  }
