"""Small caches for the tests of the feature cache."""

import functools
import hashlib
import itertools
import os
import pathlib
import signal
from typing import Any

import numpy as np

from oneshot_dp.extract.cache.format import CacheInfo, Rows
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.row_values import validate_and_cast_rows
from oneshot_dp.extract.cache.shard_file import (
  CacheJob,
  encode_shard,
  load_existing_shard,
  put_shard,
)
from oneshot_dp.extract.cache.write import (
  finalize,
  start_or_resume,
  write_cache,
)
from oneshot_dp.extract.images import image_key


def make_info(n: Any = 20, d: Any = 3, **changes: Any) -> CacheInfo:
  fields: dict[str, Any] = {
    "dataset": "pets",
    "split": "train",
    "source_num_examples": n,
    "feature_dim": d,
    "class_names": ("0", "1", "2", "3"),
    "backbone": {"name": "vit_ti16", "layer": "cls", "weights_sha256": "ab"},
    "computed_by": {"libraries": {"numpy": "2.2.0"}},
    "shard_rows": 8,
  }
  return CacheInfo(**fields | changes)


def make_rows(info: CacheInfo, seed: int = 0) -> Rows:
  """All rows of the source, always the same ones, as a job makes them."""
  n = info.source_num_examples
  d = info.feature_dim
  rng = np.random.default_rng([n, d, seed])
  rows = {
    "embedding": rng.standard_normal((n, d)).astype(np.float32),
    "label": rng.integers(0, info.num_classes, n),
    "example_id": np.arange(n),
    "image_key": np.array(
      [image_key(f"{seed} {i}".encode()) for i in range(n)]
    ),
  }
  if info.has_units:
    units = rng.integers(-(2**62), 2**62, n // 3 + 1)
    rows["unit_id"] = np.repeat(units, 3)[:n]
  return rows


def part(rows: Rows, indices: range | slice) -> Rows:
  return {n: a[indices.start : indices.stop] for n, a in rows.items()}


def imported(rows: Rows) -> Rows:
  """What `write_cache` takes of them."""
  return {n: a for n, a in rows.items() if n != "image_key"}


def import_rows(out: pathlib.Path, info: CacheInfo, **changes) -> FeatureCache:
  """An import of all rows, some columns of which are changed."""
  return write_cache(out, info, [imported(make_rows(info)) | changes])


def run_job(
  out: str | pathlib.Path, info: CacheInfo, listing: str = "", seed: int = 0
) -> FeatureCache:
  """A job as an extraction is: what is there is kept, the rest is put."""
  job = CacheJob(info=info, extra_identity=listing)
  if not start_or_resume(str(out), job):
    return open_cache(out)
  shards = [put(str(out), job, i, seed) for i in range(info.num_shards)]
  return finalize(str(out), job, shards)


def put(out: str, job: CacheJob, index: int, seed: int = 0):
  kept = load_existing_shard(out, job, job.info.shard_name(index))
  if kept:
    return kept
  indices = job.info.shard_range(index)
  rows = validate_and_cast_rows(
    part(make_rows(job.info, seed), indices), job.info, "rows"
  )
  return put_shard(out, job, *encode_shard(rows, job, index))


def put_late(out: str, job: CacheJob, index: int) -> None:
  """A worker of a job, stopped before it puts a shard, until it is woken."""
  indices = job.info.shard_range(index)
  rows = validate_and_cast_rows(
    part(make_rows(job.info, 1), indices), job.info, "rows"
  )
  made = encode_shard(rows, job, index)
  os.kill(os.getpid(), signal.SIGSTOP)
  put_shard(out, job, *made)


def run_until(out: str, last: int) -> None:
  """A job that is killed at one of its steps that change the disk."""
  steps = itertools.count()

  def step(call, *args, **more):
    if next(steps) == last:
      os.kill(os.getpid(), signal.SIGKILL)
    return call(*args, **more)

  for name in ("link", "fsync", "unlink", "open"):
    setattr(os, name, functools.partial(step, getattr(os, name)))
  run_job(out, make_info(), "listing")


def columns(cache: FeatureCache) -> Rows:
  blocks = list(cache.blocks())
  return {n: np.concatenate([b[n] for b in blocks]) for n in blocks[0]}


def digest(out: str | pathlib.Path) -> dict[str, str]:
  """SHA-256 of every file in a directory, by its name."""
  return {
    path.name: hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted(pathlib.Path(out).iterdir())
  }
