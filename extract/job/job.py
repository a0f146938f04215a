"""The extraction job: every shard of a cache, in a loop here or on Beam.

    extract_shard(job, i)  for every i
    finish                 once all are there

Shards meet in the output directory, which every worker must see under the same
name. A shard that is there is kept: a job that was stopped goes on when it is
run again, workers may try a shard twice, and two jobs at once share the work.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from oneshot_dp.configs.errors import BrokenImageError, InputError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.cache.write import begin, finish
from oneshot_dp.extract.images import DecodeError, decode_image
from oneshot_dp.extract.job.shard import (
  HOW_MENDED,
  VIEW_MIN_AREA,
  Job,
  computed_by,
  embedder_of,
  extract_shard,
)
from oneshot_dp.extract.sources.open_source import open_source, serialize_source
from oneshot_dp.extract.sources.source import Source
from oneshot_dp.extract.threads import prefetch_map

_LOOKED_AT = 100_000
"""Images that are looked at for other broken ones: minutes, not days."""
_NAMED = 10
_LOG_SECONDS = 30


def run_extraction(
  config: ExtractConfig, out: str, beam_flags: Sequence[str] = ()
) -> FeatureCache:
  """Embeds every example of a split, once, into a feature cache.

  Formal guarantees: the cache has one row for each example of the split, less
  those that were skipped, or there is no cache. The same job gives the same
  bytes on machines that are alike, on any runner, however often it was killed
  and started again.

  `out`, the cache, may be of an earlier try, which is resumed; `beam_flags` are
  Beam's own, `--runner` among them, and none is a loop here. InputError: the
  request, the source, the weights or an image is at fault, or `out` holds
  something else. RunError: a worker, the runner or a disk failed.
  KeyboardInterrupt: Ctrl-C; says what is kept, and what may still run.
  """
  options = None
  if beam_flags:  # Beam takes a second or two to import.
    from oneshot_dp.extract.job.on_beam import pipeline_options

    options = pipeline_options(beam_flags)
  source = open_source(config.source)
  if not len(source):
    raise InputError(f"{source.name}, split {source.split}: no images.")
  home = source.root and storage.store_at(source.root).place
  if home and storage.store_at(out).place.startswith(f"{home}/"):
    raise InputError(f"--out {out} is among the images: name another place.")
  names = source.class_names
  few = ", ".join(names[:8]) + ", …" * (len(names) > 8)
  print(f"{source.name}: {len(names)} classes ({few})", file=sys.stderr)
  embedder = embedder_of(config)
  info = info_of(config, source, embedder.backbone)
  listing = serialize_source(source)
  cache = CacheJob(info=info, more=hashlib.sha256(listing).hexdigest())
  if not begin(out, cache):
    return open_cache(out)
  job = Job(out, config, cache, source, embedder)
  try:
    with progress_bar(info.split, info.source_num_examples) as bar:
      if options:
        from oneshot_dp.extract.job.on_beam import run_on_beam

        shards = run_on_beam(job, listing, options, bar)
      else:
        shards = []
        for index in range(info.num_shards):
          shards.append(extract_shard(job, index))
          bar.update(len(info.shard_range(index)))
    return finish(out, cache, shards)
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
  views = {"count": config.views, "kind": "inception crop and flip"}
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
    views=views | {"min_area": VIEW_MIN_AREA} if config.views else None,
    embedding_dtype=config.embedding_dtype,
    shard_rows=config.shard_rows,
    unit=source.unit,
  )


def progress_bar(what: str, total: int) -> tqdm:
  """Rate and time left of so many images; `update(count)` moves it.

  In a log it is a line now and then.
  """
  bar: Any = {"total": total, "desc": what, "unit": "image", "smoothing": 0.1}
  if not sys.stderr.isatty():
    line = "{desc}: {percentage:.0f} %, {rate_fmt}, {remaining} left\n"
    bar |= {"bar_format": line, "mininterval": _LOG_SECONDS}
  return tqdm(**bar)


def _all_broken(source: Source) -> BrokenImageError | None:
  """An error that names them, where several are broken."""

  def look(index: int) -> str | None:
    example = source[index]
    try:
      decode_image(example.image)
    except DecodeError:
      return source.display_path(index)
    return None

  indices, broken = range(len(source))[:_LOOKED_AT], []
  with (
    contextlib.suppress(KeyboardInterrupt),  # then those that were found
    progress_bar("look for other broken images", len(indices)) as bar,
  ):
    for where in prefetch_map(look, indices, 64, os.cpu_count() or 1):
      broken += [where] if where else []
      bar.update()
  if len(broken) < 2:
    return None
  more = f" and {len(broken) - _NAMED} more" * (len(broken) > _NAMED)
  return BrokenImageError(
    f"{len(broken):,} of {len(indices):,} images cannot be decoded:"
    f" {', '.join(broken[:_NAMED])}{more}; {HOW_MENDED}"
  )
