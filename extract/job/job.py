"""The extraction job: every shard of a cache, in a loop here or on Beam.

    extract_shard(job, i)  for every i
    finish                 once all are there

Shards meet in the output directory, which every worker must see under the same
name. A shard that is there is kept: a job that was stopped goes on when it is
run again, workers may try a shard twice, and two jobs at once share the work.
"""

import contextlib
import dataclasses
import hashlib
import secrets
import sys
from collections.abc import Sequence

import msgspec

from oneshot_dp.configs.errors import BrokenImageError, InputError, RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.cache.format import CacheInfo, Shard
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.write import LISTING_FILE, CacheJob, begin, finish
from oneshot_dp.extract.images import DecodeError, decode_image
from oneshot_dp.extract.job.embed import VIEW_MIN_AREA, ahead
from oneshot_dp.extract.job.progress import progress_bar
from oneshot_dp.extract.job.shard import (
  HOW_MENDED,
  Job,
  computed_by,
  config_file,
  extract_shard,
  loaded_embedder,
)
from oneshot_dp.extract.sources.open_source import listing_of, open_source
from oneshot_dp.extract.sources.source import Source

_LOOKED_AT = 100_000
"""Images that are looked at for other broken ones: minutes, not days."""
_NAMED = 10


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
  if beam_flags:  # Beam takes a second or two to import.
    from oneshot_dp.extract.job.on_beam import pipeline_options

    options = pipeline_options(beam_flags)
  source = open_source(config.source)
  if not len(source):
    raise InputError(f"{source.name}, split {source.split}: no images.")
  names = source.class_names
  few = ", ".join(names[:8]) + ", …" * (len(names) > 8)
  print(f"{source.name}: {len(names)} classes ({few})", file=sys.stderr)
  backbone = loaded_embedder(config).backbone
  if backbone.network is not None:  # else its function decides
    # Workers on other devices must not choose another one.
    config = dataclasses.replace(config, compute_dtype=backbone.compute_dtype)
  listing, run = listing_of(source), secrets.token_hex(8) if options else ""
  cache = CacheJob(
    info=info_of(config, source, backbone),
    more=hashlib.sha256(listing).hexdigest(),
  )
  if not begin(out, cache):
    return open_cache(out)
  job = Job(out=out, run=run, config=config, cache=cache, source=source)
  store = storage.store_at(out)
  try:
    if not options:
      return finish(out, cache, _run_here(job))
    from oneshot_dp.extract.job.on_beam import run_on_beam

    storage.put_once(store, config_file(run), msgspec.json.encode(config))
    if storage.put_once(store, LISTING_FILE, listing) != listing:
      raise RunError(f"{store.where()} was taken over by another job.")
    return finish(out, cache, run_on_beam(job, options))
  except BrokenImageError as error:
    raise _all_broken(source) or error from None
  except KeyboardInterrupt as stop:
    raise KeyboardInterrupt(
      f"{str(stop) or 'interrupted'}; shards that are finished are kept, and"
      " the same command goes on"
    ) from stop


def info_of(
  config: ExtractConfig, source: Source, backbone: Backbone
) -> CacheInfo:
  """What the cache of a job will be; public."""
  kind = {"kind": "inception crop and flip", "min_area": VIEW_MIN_AREA}
  views = {"count": config.views} | kind
  counted = config.source.num_classes is not None
  return CacheInfo(
    dataset=source.name,
    split=source.split,
    source_num_examples=len(source),
    feature_dim=backbone.feature_dim,
    class_names=tuple(source.class_names),
    num_classes_source="flag" if counted else "class_names",
    backbone=backbone.identity,
    computed_by=computed_by(backbone, config),
    views=None if config.views is None else views,
    embedding_dtype=config.embedding_dtype,
    shard_rows=config.shard_rows,
    unit=source.unit,
  )


def _run_here(job: Job) -> list[Shard]:
  info, shards = job.cache.info, []
  with progress_bar(info.split, info.source_num_examples) as bar:
    for index in range(info.num_shards):
      shards.append(extract_shard(job, index))
      bar.update(len(info.shard_range(index)))
  return shards


def _all_broken(source: Source) -> BrokenImageError | None:
  """An error that names them, where several are broken."""

  def look(index: int) -> str | None:
    example = source[index]
    try:
      decode_image(example.image)
    except DecodeError:
      return source.where(index)
    return None

  indices, broken = range(len(source))[:_LOOKED_AT], []
  with (
    contextlib.suppress(KeyboardInterrupt),  # then those that were found
    progress_bar("look for other broken images", len(indices)) as bar,
  ):
    for where in ahead(look, indices, 64):
      broken += [where] if where else []
      bar.update()
  if len(broken) < 2:
    return None
  more = f" and {len(broken) - _NAMED} more" * (len(broken) > _NAMED)
  return BrokenImageError(
    f"{len(broken):,} of {len(indices):,} images cannot be decoded:"
    f" {', '.join(broken[:_NAMED])}{more}; {HOW_MENDED}"
  )
