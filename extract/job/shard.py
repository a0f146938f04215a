"""One unit of work: a range of the source becomes one shard of the cache.

What a worker is asked for is a number and a place: there the launcher has left
the config and the listing of the source.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import threading
from typing import Any

import msgspec
import numpy as np

from oneshot_dp.configs.errors import BrokenImageError, RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.backbones.backbone import Backbone, load_backbone
from oneshot_dp.extract.cache.format import CacheInfo, Shard
from oneshot_dp.extract.cache.shard_file import checked, encode_shard
from oneshot_dp.extract.cache.write import (
  JOB_FILE,
  LISTING_FILE,
  CacheJob,
  kept_shard,
  put_shard,
)
from oneshot_dp.extract.job.embed import Embedder, embed
from oneshot_dp.extract.job.progress import check_stopped, images_done
from oneshot_dp.extract.sources.open_source import reopened
from oneshot_dp.extract.sources.source import Source

_LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "pillow")
_LISTING_BYTES = 1 << 40
HOW_MENDED = (
  "mend or remove what is broken (`oneshot-dp inspect` names it all), or pass"
  " --on-decode-error skip."
)
_lock = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A job as a process knows it; `run` is the launch on Beam, or ""."""

  out: str
  run: str
  config: ExtractConfig
  cache: CacheJob
  source: Source = dataclasses.field(repr=False)


def extract_shard(job: Job, index: int) -> Shard:
  """Makes a shard unless it is there, and says what it is.

  Raises:
    Stopped: the launcher has told the job to stop.
    BrokenImageError: an image cannot be decoded, and is not to be skipped.
    InputError, RunError: as `run_extraction`.
  """
  check_stopped(job.out, job.run)
  if (kept := kept_shard(job.out, job.cache, index)) is not None:
    return kept
  config, info, parts = job.config, job.cache.info, []
  indices, embedder = info.shard_range(index), embedder_of(job)
  for batch in embed(job.source, indices, embedder, views=config.views):
    if batch.broken and config.on_decode_error == "fail":
      _, where, fault = batch.broken[0]
      raise BrokenImageError(
        f"{where} cannot be decoded: {fault}; {HOW_MENDED}"
      )
    parts.append(batch.rows)
    images_done(len(batch.rows["label"]) + len(batch.broken))
    check_stopped(job.out, job.run)
  rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
  rows = checked(rows, info, f"{info.dataset}, {info.split}")
  made, data = encode_shard(rows, info, job.cache.digest, index)
  return put_shard(job.out, job.cache, index, made, data)


def computed_by(backbone: Backbone, config: ExtractConfig) -> dict[str, Any]:
  """What decides the rounding of embeddings, beside the kind of device."""
  found: dict[str, Any] = {"compute_dtype": backbone.compute_dtype}
  found["batch_size"] = config.batch_size
  versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
  return found | {"libraries": versions}


def embedder_of(job: Job) -> Embedder:
  """This process's backbone on its devices.

  Raises:
    RunError: it is not what the job began with.
  """
  embedder, info = loaded_embedder(job.config), job.cache.info
  found = embedder.backbone.identity | computed_by(
    embedder.backbone, job.config
  )
  there = {**info.backbone, **info.computed_by}
  # As JSON has it: tuples are lists.
  for name, here in json.loads(json.dumps(found)).items():
    if here != there.get(name):
      raise RunError(
        f"{name} of the backbone is {here} on this worker and {there.get(name)}"
        " where the job began: give all the same files and libraries."
      )
  return embedder


def loaded_embedder(config: ExtractConfig) -> Embedder:
  """This process's backbone on its devices, whatever the job began with."""
  asked = config.backbone, config.weights, config.weights_sha256
  with _lock:  # threads share one
    return _embedder(
      (*asked, config.embedding, config.compute_dtype, config.preprocess),
      config.batch_size,
    )


@functools.lru_cache(maxsize=1)
def _embedder(backbone: tuple[Any, ...], batch_size: int | None) -> Embedder:
  return Embedder(load_backbone(*backbone), batch_size)


def job_at(out: str, run: str) -> Job:
  """The job that was begun in a directory, in a worker of a launch.

  Raises:
    RunError: there is none, or what it left is of another.
  """
  with _lock:  # threads share one
    return _job_at(out, run)


@functools.lru_cache(maxsize=2)
def _job_at(out: str, run: str) -> Job:
  store = storage.store_at(out)
  begun, config, listing = (
    storage.read(store, name, _LISTING_BYTES)
    for name in (JOB_FILE, config_file(run), LISTING_FILE)
  )
  if begun is None or config is None or listing is None:
    raise RunError(
      f"{store.where()}: the job's files are not there; every worker must see"
      " it under this name."
    )
  fields = json.loads(begun)
  digest = fields.pop("job")
  info = msgspec.convert(fields, CacheInfo)
  cache = CacheJob(info=info, more=hashlib.sha256(listing).hexdigest())
  if cache.digest != digest:
    raise RunError(f"{store.where()} was taken over by another job.")
  settings = msgspec.json.decode(config, type=ExtractConfig)
  source = reopened(listing)
  return Job(out=out, run=run, config=settings, cache=cache, source=source)


def config_file(run: str) -> str:
  """Where a launch leaves its config for its workers."""
  return f"config.{run}"
