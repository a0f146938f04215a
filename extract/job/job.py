"""The extraction job: every shard of a cache, in a loop here or on Beam.

    start_or_resume           the directory is this job's
    extract_shard(job, i)     for every i, here or on workers
    finalize                  once all are there

Shards meet in the output directory, which every worker must see under the same
name. A shard that exists is kept: so a job that was stopped resumes when it is
run again, workers may try a shard twice, and two jobs at once share the work.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tqdm import tqdm

from oneshot_dp.configs.errors import (
  BrokenImageError,
  InputError,
  format_count,
)
from oneshot_dp.configs.extract_config import MAX_PIXELS, ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.backbones.backbone import Backbone
from oneshot_dp.extract.cache.format import CacheInfo, Shard
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.cache.write import finalize, start_or_resume
from oneshot_dp.extract.images import DecodeError, decode_image
from oneshot_dp.extract.job.listing import listing_digest
from oneshot_dp.extract.job.shard import (
  BROKEN_IMAGE_ADVICE,
  VIEW_MIN_AREA,
  Job,
  compute_environment,
  extract_shard,
  load_embedder,
  shard_order,
)
from oneshot_dp.extract.sources.open_source import open_source
from oneshot_dp.extract.sources.source import Source
from oneshot_dp.extract.threads import prefetch_map

if TYPE_CHECKING:
  from apache_beam.options.pipeline_options import PipelineOptions

_MAX_SCANNED = 100_000
"""Images in which other broken ones are looked for: minutes, not days."""
_SHOWN_BROKEN = 10
_SHOWN_CLASSES = 8
_SCAN_AHEAD = 64
_LOG_SECONDS = 30


def run_extraction(
  config: ExtractConfig, out: str, beam_flags: Sequence[str] = ()
) -> FeatureCache:
  """Embeds every example of a split, once, into a feature cache.

  *Formal guarantees*: the cache has one row for each example of the split,
  less those that were skipped, or there is no cache. The same job gives the
  same bytes on machines that are alike, on any runner, however often it was
  killed and started again.

  Args:
    config: what to extract.
    out: the directory of the cache; of an earlier try of the same job, which
      is then resumed, or new.
    beam_flags: Beam's own flags, `--runner` among them; without any, the
      shards are made one after the other in this process.

  Returns:
    The finished cache.

  Raises:
    InputError: the request, the source, the weights or an image is at fault,
      or `out` holds something else.
    RunError: a worker, the runner or a disk failed.
    KeyboardInterrupt: Ctrl-C; says what is kept, and what may still run.
  """
  # What costs nothing comes first, then the listing, then the weights. The
  # output is touched only when all of these are there.
  options = _beam_options(beam_flags)
  source = open_source(config.source)
  _check_source(source, out)
  print(_describe_source(source), file=sys.stderr)
  embedder = load_embedder(config)
  print(embedder.backbone.summary, file=sys.stderr)
  if embedder.backbone.doubt:
    print(f"WARNING: {embedder.backbone.doubt}", file=sys.stderr)
  info = cache_info(config, source, embedder.backbone)
  # The listing is part of a job's identity: with a photograph added or
  # exchanged it is another job, which does not resume the shards of this one.
  extra_identity = listing_digest(source)
  # So is the pixel limit. Under a lower limit, a resumed job would skip large
  # images in new shards, and have those of the shards that exist.
  if config.max_pixels != MAX_PIXELS:
    extra_identity += f", max_pixels {config.max_pixels}"
  cache_job = CacheJob(info=info, extra_identity=extra_identity)
  if not start_or_resume(out, cache_job):
    cache = open_cache(out)
    _check_all_rows(config, out, cache.info.shards, info)
    return cache
  job = Job(out, config, cache_job, source, embedder)
  try:
    shards = _make_shards(job, options)
    _check_all_rows(config, out, shards, info)
    return finalize(out, cache_job, shards)
  except BrokenImageError as error:
    raise _all_broken(source, config) or error from None
  except KeyboardInterrupt as stop:
    raise KeyboardInterrupt(
      f"{str(stop) or 'interrupted'}; shards that are finished are kept, and"
      " the same command resumes"
    ) from stop


def _beam_options(flags: Sequence[str]) -> "PipelineOptions | None":
  if not flags:
    return None
  # Beam takes a second or two to import.
  from oneshot_dp.extract.job.beam_options import pipeline_options
  from oneshot_dp.extract.job.job_server import check_engine

  options = pipeline_options(flags)
  check_engine(options)
  return options


def _check_all_rows(
  config: ExtractConfig, out: str, shards: Sequence[Shard], info: CacheInfo
) -> None:
  """Refuses a cache without rows that an earlier try skipped.

  Whether images may be skipped is not part of a job's identity, so that a job
  that stopped at a broken image can resume with --on-decode-error skip. But a
  job that resumes without it would silently lack what was skipped before.
  """
  if config.on_decode_error == "skip":
    return
  if sum(shard.rows for shard in shards) < info.source_num_examples:
    raise InputError(
      f"{out} lacks images that were skipped when it was begun: pass"
      " --on-decode-error skip again, or remove it to start again."
    )


def _check_source(source: Source, out: str) -> None:
  """Raises InputError if there is no image, or if `out` lies among them."""
  if not len(source):
    raise InputError(f"{source.name}, split {source.split}: no images.")
  if not source.root:
    return
  # The cache would be listed with the images when the job is run again, and the
  # same command would be another job.
  images = storage.store_at(source.root).place
  if images and storage.store_at(out).place.startswith(f"{images}/"):
    raise InputError(f"--out {out} is among the images: name another place.")


def _describe_source(source: Source) -> str:
  names = ", ".join(source.class_names[:_SHOWN_CLASSES])
  if len(source.class_names) > _SHOWN_CLASSES:
    names += ", …"
  return (
    f"{source.name}, split {source.split}:"
    f" {format_count(len(source.class_names), 'class', 'classes')}"
    f" ({names})"
  )


def _make_shards(job: Job, options: "PipelineOptions | None") -> list[Shard]:
  """Makes all shards, in this process or on Beam, and shows how far it is."""
  info = job.cache.info
  with progress_bar(info.split, info.source_num_examples) as bar:
    if options is not None:
      from oneshot_dp.extract.job.on_beam import run_on_beam

      return run_on_beam(absolute_job(job), options, bar)
    shards = []
    for index in shard_order(info):
      shards.append(extract_shard(job, index))
      bar.update(len(info.shard_range(index)))
    return shards


def absolute_job(job: Job) -> Job:
  """The job with absolute paths, for workers that were started elsewhere.

  Its identity stays that of the paths that were given: the same job may be
  resumed without Beam.
  """
  # Workers of this machine may have another working folder. On others a path
  # means what it means there, which `load_job` finds out.
  weights = job.config.weights
  if weights is not None:
    weights = _absolute_path(weights)
  config = dataclasses.replace(
    job.config,
    backbone=_absolute_backbone(job.config.backbone),
    weights=weights,
  )
  source = job.source
  if source.root:
    source = dataclasses.replace(source, root=_absolute_path(source.root))
  else:
    files = []
    for file in source.files:
      files.append(file._replace(path=_absolute_path(file.path)))
    source = dataclasses.replace(source, files=tuple(files))
  out = storage.store_at(job.out).place
  return job._replace(out=out, config=config, source=source)


def _absolute_path(place: str) -> str:
  """A path as every process of this machine may name it; URLs stay."""
  if "://" in place or storage.is_url(place):
    return place
  return os.path.abspath(os.path.expanduser(place))


def _absolute_backbone(name: str) -> str:
  """FILE.py:FUNCTION with an absolute path; names of backbones stay."""
  file, colon, function = name.rpartition(":")
  if not colon:
    return name
  return f"{_absolute_path(file)}:{function}"


def cache_info(
  config: ExtractConfig, source: Source, backbone: Backbone
) -> CacheInfo:
  """The metadata of the cache that a job will make; public.

  Args:
    config: the request, which decides the precision and the size of shards.
    source: the images, of which only the number and the classes count.
    backbone: the network that reads them.

  Returns:
    All that is known before an image is read; shards are added at the end.
  """
  # All of it is public, and known before an image is read: no count of private
  # rows is among these fields.
  views = None
  if config.views:
    views = {
      "count": config.views,
      "kind": "inception crop and flip",
      "min_area": VIEW_MIN_AREA,
    }
  counted = config.source.num_classes is not None
  return CacheInfo(
    dataset=source.name,
    split=source.split,
    source_num_examples=len(source),
    feature_dim=backbone.feature_dim,
    class_names=tuple(source.class_names),
    num_classes_source=("flag" if counted else source.num_classes_source),
    backbone=backbone.identity,
    computed_by=compute_environment(backbone, config),
    views=views,
    embedding_dtype=config.embedding_dtype,
    shard_rows=config.shard_rows,
    unit=source.unit,
    owners_per_row=source.owners_per_row,
  )


def progress_bar(caption: str, total: int) -> tqdm:
  """A bar with the rate and the time left; in a log, a line now and then.

  Args:
    caption: what is under way.
    total: how many images there are.

  Returns:
    A bar that `update(count)` moves.
  """
  if sys.stderr.isatty():
    return tqdm(total=total, desc=caption, unit=" images", smoothing=0.1)
  # In a log nothing is said before there is a rate.
  return tqdm(
    total=total,
    desc=caption,
    unit=" images",
    smoothing=0.1,
    delay=1,
    bar_format="{desc}: {percentage:.0f} %, {rate_fmt}, {remaining} left\n",
    mininterval=_LOG_SECONDS,
  )


def _all_broken(
  source: Source, config: ExtractConfig
) -> BrokenImageError | None:
  """An error that names all broken images, if there are several."""

  def fault_of(index: int) -> tuple[str, str] | None:
    example = source[index]
    try:
      decode_image(
        example.image, config.preprocess.bit_depth, config.max_pixels
      )
    except DecodeError as error:
      return source.display_path(index), str(error)
    return None

  # The job has failed at one broken image. A person who removes it would meet
  # the next one an hour later, so the others are looked for now.
  indices = range(len(source))[:_MAX_SCANNED]
  broken: list[tuple[str, str]] = []
  with (
    # Ctrl-C ends the search: then what was found so far is named.
    contextlib.suppress(KeyboardInterrupt),
    progress_bar("look for other broken images", len(indices)) as bar,
  ):
    for fault in prefetch_map(
      fault_of, indices, _SCAN_AHEAD, os.cpu_count() or 1
    ):
      if fault is not None:
        broken.append(fault)
      bar.update()
  if len(broken) < 2:
    return None
  names = _named_by_reason(broken[:_SHOWN_BROKEN])
  if len(broken) > _SHOWN_BROKEN:
    names += f" and {len(broken) - _SHOWN_BROKEN} more"
  return BrokenImageError(
    f"{len(broken):,} of {len(indices):,} images cannot be decoded: {names};"
    f" {BROKEN_IMAGE_ADVICE}"
  )


def _named_by_reason(broken: Sequence[tuple[str, str]]) -> str:
  """Names images with the reason of each, which is said once if it is one."""
  by_reason: dict[str, list[str]] = {}
  for path, reason in broken:
    by_reason.setdefault(reason, []).append(path)
  groups: list[str] = []
  for reason, paths in by_reason.items():
    groups.append(f"{', '.join(paths)} ({reason})")
  return ", ".join(groups)
