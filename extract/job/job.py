"""The extraction job: a range of a source becomes one shard of the cache.

    extract_shard(job, i)  for every i, in a loop here or on Beam's workers
    finish                 once all are there

Shards meet in the output directory, which every worker must see under the same
name; there the launcher leaves the config and the listing of the source for
them, and what it asks of a worker holds neither. A shard that is there is kept,
so a job that was stopped goes on when it is run again, workers may try a shard
twice, and two jobs at once share the work.
"""

import dataclasses
import functools
import importlib.metadata
import json
import secrets
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from oneshot_dp.configs.errors import BrokenImageError, InputError, RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.backbones.load_backbone import load_backbone
from oneshot_dp.extract.cache import write
from oneshot_dp.extract.cache.format import CacheInfo, Shard
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.images.decode import DecodeError, decode_image
from oneshot_dp.extract.job.embed import Embedder, ahead, embed
from oneshot_dp.extract.job.progress import DONE, check_stopped, progress_bar
from oneshot_dp.extract.sources.open_source import (
  listing_of,
  open_source,
  reopened,
)
from oneshot_dp.extract.sources.source import Source

LISTING_FILE, CONFIG_FILE = "listing.json", "config.json"
_LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "pillow")
_LOOKED_AT = 100_000
"""Images that are looked at for other broken ones: minutes, not days."""
_NAMED = 10
_LISTING_BYTES = 1 << 40
_HOW_MENDED = (
  "mend or remove what is broken (`oneshot-dp inspect` names it all), or pass"
  " --on-decode-error skip."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A job as a process knows it; `run` tells one launch from another."""

  out: str
  run: str
  config: ExtractConfig
  cache: write.CacheJob
  source: Source = dataclasses.field(repr=False)

  @property
  def info(self) -> CacheInfo:
    return self.cache.info


def run_extraction(
  config: ExtractConfig, out: str, beam_flags: Sequence[str] = ()
) -> FeatureCache:
  """Embeds every example of a split, once, into a feature cache.

  Formal guarantees: the cache has one row for each example of the split, less
  those that were skipped, or there is no cache. The same job gives the same
  bytes on machines that are alike, on any runner, however often it was killed
  and started again.

  Args:
    config: what to extract.
    out: the cache; it may be of an earlier try, which is resumed.
    beam_flags: Beam's own, `--runner` among them; none is a loop here.

  Returns:
    The finished cache.

  Raises:
    InputError: the request, the source, the weights or an image is at fault,
      or `out` holds something else.
    RunError: a worker, the runner or a disk failed.
    KeyboardInterrupt: Ctrl-C; says what is kept, and what may still run.
  """
  options = None
  if beam_flags:
    from oneshot_dp.extract.job import on_beam

    options = on_beam.pipeline_options(beam_flags)
  source = open_source(config.source)
  if not len(source):
    raise InputError(f"{source.name}, split {source.split}: no images.")
  names = source.class_names
  few = ", ".join(names[:8]) + ", …" * (len(names) > 8)
  print(f"{source.name}: {len(names)} classes ({few})", file=sys.stderr)
  backbone = _loaded(config).backbone
  if backbone.network is not None:  # else its function decides
    # Workers on other devices must not choose another one.
    config = dataclasses.replace(config, compute_dtype=backbone.compute_dtype)
  listing, config_text = listing_of(source), msgspec.json.encode(config)
  digest = write.sha256_of([config_text.decode(), write.digest_of(listing)])
  job = Job(
    out=out,
    run=secrets.token_hex(8) if options else "",
    config=config,
    cache=write.CacheJob(info=info_of(config, source, backbone), more=digest),
    source=source,
  )
  if not write.begin(out, job.cache):
    return open_cache(out)
  store = storage.store_at(out)
  for name, data in ((CONFIG_FILE, config_text), (LISTING_FILE, listing)):
    if storage.put_once(store, name, data) != data:
      raise InputError(f"{store.where(name)} is of another job; remove {out}.")
  try:
    shards = on_beam.run(job, options) if options else _run_here(job)
    return write.finish(
      out, job.cache, shards, (CONFIG_FILE, LISTING_FILE, "stop.", "shards-")
    )
  except BrokenImageError as error:
    raise _all_broken(source, config) or error from None
  except KeyboardInterrupt as stop:
    said = str(stop) or "interrupted"
    raise KeyboardInterrupt(
      f"{said}; shards that are finished are kept, and the same command goes on"
    ) from stop


def info_of(
  config: ExtractConfig, source: Source, backbone: Backbone
) -> CacheInfo:
  """What the cache of a job will be; public."""
  views = None
  if config.views is not None:
    views = {
      "count": config.views,
      "kind": "inception crop and flip",
      "min_area": config.view_min_area,
    }
  counted = config.source.num_classes is not None
  return CacheInfo(
    dataset=source.name,
    split=source.split,
    source_num_examples=len(source),
    feature_dim=backbone.feature_dim,
    class_names=tuple(source.class_names),
    num_classes_source="flag" if counted else "class_names",
    backbone=backbone.identity,
    computed_by=computed_by(backbone),
    views=views,
    embedding_dtype=config.embedding_dtype,
    shard_rows=config.shard_rows,
    unit=source.unit,
  )


def computed_by(backbone: Backbone) -> dict[str, Any]:
  """What decides the rounding of embeddings, beside the kind of device."""
  versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
  return {"compute_dtype": backbone.compute_dtype, "libraries": versions}


def extract_shard(job: Job, index: int) -> Shard:
  """Makes a shard unless it is there, and says what it is.

  Raises:
    Stopped: the launcher has told the job to stop.
    BrokenImageError: an image cannot be decoded, and is not to be skipped.
    InputError, RunError: as `run_extraction`.
  """
  if job.run:
    check_stopped(job.out, job.run)
  if (kept := write.kept_shard(job.out, job.cache, index)) is not None:
    return kept
  config, parts = job.config, []
  for batch in embed(
    job.source,
    job.info.shard_range(index),
    embedder_of(job),
    threads=config.decode_threads,
    views=config.views,
    view_min_area=config.view_min_area,
  ):
    if batch.broken and config.on_decode_error == "fail":
      _, where, fault = batch.broken[0]
      raise BrokenImageError(
        f"{where} cannot be decoded: {fault}; {_HOW_MENDED}"
      )
    parts.append(batch.rows)
    DONE.add(len(batch.rows["label"]) + len(batch.broken))
    if job.run:
      check_stopped(job.out, job.run)
  rows = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
  place = f"{job.info.dataset}, split {job.info.split}"
  made, data = write.encode_shard(
    write.checked(rows, job.info, place), job.cache, index
  )
  return write.put_shard(job.out, job.cache, index, made, data)


def _run_here(job: Job) -> list[Shard]:
  shards = []
  with progress_bar(job.info.split, job.info.source_num_examples) as bar:
    for index in range(job.info.num_shards):
      shards.append(extract_shard(job, index))
      bar.update(len(job.info.shard_range(index)))
  return shards


_lock = threading.Lock()


def embedder_of(job: Job) -> Embedder:
  """This process's backbone on its devices.

  Raises:
    RunError: it is not what the job began with.
  """
  embedder = _loaded(job.config)
  for here, there in (
    (embedder.backbone.identity, job.info.backbone),
    (computed_by(embedder.backbone), job.info.computed_by),
  ):
    # As JSON has it: tuples are lists.
    here = json.loads(json.dumps(here))
    for name in here:
      if here[name] != there.get(name):
        raise RunError(
          f"{name} of the backbone is {here[name]} on this worker and"
          f" {there.get(name)} where the job began: give all the same files"
          " and libraries."
        )
  return embedder


def _loaded(config: ExtractConfig) -> Embedder:
  with _lock:  # threads share one
    return _embedder(
      config.backbone,
      config.weights,
      config.weights_sha256,
      config.embedding,
      config.compute_dtype,
      config.preprocess,
      config.batch_size,
    )


@functools.lru_cache(maxsize=1)
def _embedder(*asked: Any) -> Embedder:
  *of_backbone, batch_size = asked
  return Embedder(load_backbone(*of_backbone), batch_size)


def job_at(out: str, run: str) -> Job:
  """The job that was begun in a directory, in a worker of a launch."""
  with _lock:  # threads share one
    return _job_at(out, run)


@functools.lru_cache(maxsize=2)
def _job_at(out: str, run: str) -> Job:
  """See `job_at`.

  Raises:
    RunError: there is none, or what it left is of another.
  """
  store = storage.store_at(out)
  found = [
    storage.read(store, name, _LISTING_BYTES)
    for name in (write.JOB_FILE, CONFIG_FILE, LISTING_FILE)
  ]
  if None in found:
    raise RunError(
      f"{store.where('')}: the job's files are not there; every worker must see"
      " it under this name."
    )
  begun, config_text, listing = (data or b"" for data in found)
  fields = json.loads(begun)
  digest = write.sha256_of([config_text.decode(), write.digest_of(listing)])
  job = fields.pop("job")
  cache = write.CacheJob(info=msgspec.convert(fields, CacheInfo), more=digest)
  if cache.digest != job:
    raise RunError(f"{store.where('')} was taken over by another job.")
  return Job(
    out=out,
    run=run,
    config=msgspec.json.decode(config_text, type=ExtractConfig),
    cache=cache,
    source=reopened(listing),
  )


def _all_broken(
  source: Source, config: ExtractConfig
) -> BrokenImageError | None:
  """An error that names them, where several are broken."""

  def look(index: int) -> str | None:
    example = source[index]
    try:
      decode_image(example.image)
    except DecodeError:
      return example.where
    return None

  indices, broken = range(len(source))[:_LOOKED_AT], []
  threads = config.decode_threads
  try:
    with progress_bar("look for other broken images", len(indices)) as bar:
      for where in ahead(look, indices, 64, threads):
        broken += [where] if where else []
        bar.update()
  except KeyboardInterrupt:
    pass  # with what was found
  if len(broken) < 2:
    return None
  more = f" and {len(broken) - _NAMED} more" * (len(broken) > _NAMED)
  return BrokenImageError(
    f"{len(broken):,} of {len(indices):,} images cannot be decoded:"
    f" {', '.join(broken[:_NAMED])}{more}; {_HOW_MENDED}"
  )
