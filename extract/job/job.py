"""The extraction job: a Beam graph with one unit of work per shard.

    Create(shards) → Reshuffle → ExtractShard              (any runner)
    then, in the launching process: count every example, write the metadata

The graph holds shard numbers only; images and embeddings never pass between
workers. The output directory is where shards meet, so on a cluster it must be
in an object store, or on a file system that every worker mounts under the same
path.
"""

import dataclasses
import importlib.metadata
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import apache_beam as beam

from oneshot_dp.configs.errors import BrokenImageError, InputError
from oneshot_dp.configs.extract_config import (
  EXAMPLE_UNIT,
  ExtractConfig,
  ImageFolderSource,
)
from oneshot_dp.configs.split_part import SplitPart
from oneshot_dp.extract.backbones.registry import resolved
from oneshot_dp.extract.cache import shard_writer
from oneshot_dp.extract.cache import writer as cache_writer
from oneshot_dp.extract.cache.identity import CacheIdentity
from oneshot_dp.extract.cache.info import ShardRecord
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.extract.job.embed_range import check_decodes
from oneshot_dp.extract.job.embedder import identity_of
from oneshot_dp.extract.job.listing import (
  check_listing,
  keep_listing,
  listing_sha256,
  name_skipped,
  open_split,
)
from oneshot_dp.extract.job.run_graph import pipeline_options, run_graph
from oneshot_dp.extract.job.shard import (
  COUNTERS,
  KEPT_SHARDS,
  ExtractShard,
  shared_embedder,
)
from oneshot_dp.extract.job.stage_times import StageTimes
from oneshot_dp.extract.job.watch import Watch
from oneshot_dp.extract.progress import examples_done, progress_bar
from oneshot_dp.extract.sources.example import Source, shortened
from oneshot_dp.extract.storage.store import store_at

_COMPARED_A_SECOND = 50_000_000
"""Bytes that one slow worker reads and hashes of what is kept."""
_LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "pillow", "array-record")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExtractionReport:
  """What a job did.

  Attributes:
    counters: Beam's counters of this run: examples, decode_errors,
      image_bytes. Empty if the cache was there already.
    times: where the workers' time went.
    kept_shards: shards that an earlier run had finished.
    seconds: how long the Beam graph ran.
  """

  cache: FeatureCache
  counters: dict[str, int]
  times: StageTimes
  kept_shards: int
  seconds: float


def run_extraction(
  config: ExtractConfig, out: Path, beam_options: Sequence[str] = ()
) -> ExtractionReport:
  """Embeds every example of a split, once, into a feature cache.

  Formal guarantees: the cache has one row for each example of the split, or of
  the part of it that is asked for (`SplitPart`), less those that were skipped
  and are listed, or there is no cache. The same job gives the same bytes,
  however often it was killed and started again.

  `out` may be of an earlier try, which is resumed; `beam_options` are Beam's
  own flags, `--runner` among them.

  Raises:
    InputError: the request, the source, the weights or an image is at fault,
      or `out` holds something else.
    RunError: a worker, the runner or the disk failed.
    KeyboardInterrupt: Ctrl-C; says how many shards are kept.
  """
  options = pipeline_options(beam_options)
  try:
    pipeline = beam.Pipeline(options=options)
  # An unknown runner, or one that misses its options or its packages.
  except (ValueError, ImportError) as error:
    raise InputError(f"Beam: {error}") from error
  config = dataclasses.replace(config, backbone=resolved(config.backbone))
  source = open_split(config)
  if isinstance(config.source, ImageFolderSource):  # whatever lies there
    names = shortened(source.class_names)
    print(f"classes of {source.name}: {names}", file=sys.stderr)
  identity = make_identity(config, source)
  with cache_writer.claim(out, identity) as unfinished:
    if unfinished:
      report = _extract(pipeline, config, identity, out, source)
      name_skipped(report.cache, source)
      return report
  check_listing(out, source)
  cache = open_cache(out)
  name_skipped(cache, source)  # A kill may have come between.
  return ExtractionReport(
    cache=cache,
    counters={},
    times=StageTimes(),
    kept_shards=identity.num_shards,
    seconds=0.0,
  )


def _extract(
  pipeline: beam.Pipeline,
  config: ExtractConfig,
  identity: CacheIdentity,
  out: Path,
  source: Source,
) -> ExtractionReport:
  """Makes the shards that are missing, and the cache of all of them."""
  listing = keep_listing(out, config, source)
  # Workers compare them, and do again what does not hold.
  kept = shard_writer.finished_shards(out, identity, compare=False)
  start = time.monotonic()
  try:
    counters = _run(pipeline, config, identity, out, kept, listing)
    sha256 = listing_sha256(source)
    cache_writer.finish(out, identity, sha256, compare=False)
  except BrokenImageError:
    check_decodes(source, config)
    raise
  except KeyboardInterrupt as stop:
    raise KeyboardInterrupt(
      f"interrupted: {len(_there(out, identity))} of {identity.num_shards}"
      " shards are finished and kept; an extraction resumes when the same"
      " command is run again"
    ) from stop
  return ExtractionReport(
    cache=open_cache(out),
    counters={name: counters[name] for name in COUNTERS},
    times=StageTimes.from_counters(counters),
    # A runner may retry a shard that was just finished: it is no kept one.
    kept_shards=min(counters[KEPT_SHARDS], len(kept)),
    seconds=time.monotonic() - start,
  )


def make_identity(config: ExtractConfig, source: Source) -> CacheIdentity:
  """Who the cache of a job is: known before the job has run, and public."""
  if not len(source):
    raise InputError(f"{source.name}, split {config.split}: no images.")
  backbone = shared_embedder(config).backbone
  part, whose = SplitPart.of(config.split), source.privacy_unit
  return CacheIdentity(
    dataset=source.name,
    dataset_version=source.version or None,
    split=config.split,
    source_num_examples=len(source),
    feature_dim=backbone.feature_dim,
    class_names=source.class_names,
    num_classes_source=(
      "flag" if getattr(config.source, "num_classes", None) else "class_names"
    ),
    backbone=identity_of(backbone),
    preprocess=dataclasses.asdict(backbone.preprocessing),
    views=None
    if config.views is None
    else {
      "count": config.views,
      "kind": "inception crop and flip",
      "min_area": config.min_area,
    },
    embedding_dtype=config.embedding_dtype,
    shard_rows=config.shard_rows,
    decoder="pillow",
    libraries={p: importlib.metadata.version(p) for p in _LIBRARIES},
    privacy_unit=whose,
    id_source=source.id_source,
    parts_by=None if part.is_whole or whose == EXAMPLE_UNIT else "unit",
  )


def _there(out: Path, identity: CacheIdentity) -> set[int]:
  """Numbers of the shards that can be seen, by one listing."""
  # As many digits as the number of shards has, and at least five.
  start = identity.shard_name(0).rpartition("-of-")[0].rstrip("0")
  names = [name for name in store_at(out).sizes() if name.startswith(start)]
  return {int(name[len(start) :].partition("-")[0]) for name in names}


def _examples(identity: CacheIdentity, shards: Iterable[int]) -> int:
  return sum(len(identity.shard_range(i)) for i in shards)


def _run(
  pipeline: beam.Pipeline,
  config: ExtractConfig,
  identity: CacheIdentity,
  out: Path,
  kept: dict[int, ShardRecord],
  listing: str,
) -> Counter[str]:
  """Runs the graph over all shards; returns the counters."""
  initial = _examples(identity, kept)
  # While workers compare what is kept, nothing can be seen to happen.
  compared = sum(shard.bytes for shard in kept.values()) // _COMPARED_A_SECOND
  before = examples_done.value

  def done() -> int:
    # Workers in this process count examples; of others, shards can be seen.
    shards = _there(out, identity).difference(kept)
    new = max(examples_done.value - before, _examples(identity, shards))
    return initial + new

  def missing() -> str:
    left = sorted(set(range(identity.num_shards)) - _there(out, identity))
    few = ", ".join(map(str, left[:5])) + ", …" * (len(left) > 5)
    return f"{len(left)} of {identity.num_shards} shards ({few})"

  job = config, identity, str(out), listing
  _ = (
    pipeline
    | "Shards" >> beam.Create(range(identity.num_shards), reshuffle=False)
    | "Spread" >> beam.Reshuffle()
    | "ExtractShard" >> beam.ParDo(ExtractShard(*job))
  )
  with (
    Watch(config.stall_seconds + compared, missing) as watch,
    progress_bar(
      identity.source_num_examples, initial, done, config.split, watch
    ),
  ):
    return run_graph(pipeline)
