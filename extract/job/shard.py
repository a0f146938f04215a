"""One unit of work: a range of the source becomes one shard of the cache."""

import functools
import json
import time
from collections.abc import Iterator

import apache_beam as beam

# While it is imported, imports of other threads are lazy too, and may deadlock:
# here, before there are any.
import tensorflow_datasets  # noqa: F401
from apache_beam.metrics import Metrics
from apache_beam.utils import shared

from oneshot_dp.configs.errors import RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract.cache import shard_writer
from oneshot_dp.extract.cache.checked_rows import Outside, Rows, Skipped
from oneshot_dp.extract.cache.identity import CacheIdentity
from oneshot_dp.extract.cache.writer import check_computed_on
from oneshot_dp.extract.job.embed_range import (
  EmbeddedBatch,
  decode_pool,
  embed_range,
)
from oneshot_dp.extract.job.embedder import Embedder, load_embedder
from oneshot_dp.extract.job.listing import shared_source
from oneshot_dp.extract.job.stage_times import StageTimes
from oneshot_dp.extract.progress import examples_done

_EMBEDDERS = shared.Shared()
"""The backbone, loaded once per process whatever number of threads it has."""

COUNTERS = ("examples", "decode_errors", "image_bytes")
"""Beam's counters of a job, beside the times of its stages."""
KEPT_SHARDS = "kept_shards"
"""The counter of shards that were there and held."""


def shared_embedder(config: ExtractConfig) -> Embedder:
  """This process's backbone on its devices, loaded at the first call."""
  decides = (config.backbone, config.preprocess, config.batch_size)
  tag = json.dumps([repr(part) for part in decides])
  return _EMBEDDERS.acquire(functools.partial(load_embedder, config), tag)


class ExtractShard(beam.DoFn):
  """Index of a shard in, index of the shard out once it is on disk.

  A shard that is there already and whose checksum holds is kept; one that is
  written is read again, and compared. Every worker must see `out_dir` under
  this path.
  """

  def __init__(
    self,
    config: ExtractConfig,
    identity: CacheIdentity,
    out_dir: str,
    listing_sha256: str,
  ):
    self._config = config
    self._listing_sha256 = listing_sha256
    self._identity = identity
    self._out_dir = out_dir
    self._counters = {
      name: Metrics.counter("oneshot_dp.extract", name)
      for name in (*COUNTERS, KEPT_SHARDS, *StageTimes().counters())
    }

  def setup(self) -> None:
    self._source = shared_source(
      self._config, self._out_dir, self._listing_sha256
    )
    self._pool = decode_pool(self._config)

  def process(self, shard_index: int) -> Iterator[int]:
    # A worker that died after its shard was whole is retried by the runner.
    job = self._out_dir, self._identity, shard_index
    if shard_writer.finished_shard(*job):
      self._count(**{KEPT_SHARDS: 1})
    else:
      embedded = embed_range(
        self._source,
        self._identity.shard_range(shard_index),
        self._embedder(),
        self._config,
        self._pool,
      )
      shard_writer.write_shard(*job, self._counted(embedded))
      if not shard_writer.finished_shard(*job):  # The launcher reads none.
        raise RunError(
          f"{self._out_dir}: shard {shard_index} is not read as it was written;"
          " mend the disk, and run the same command again."
        )
    yield shard_index

  def _counted(
    self, batches: Iterator[EmbeddedBatch]
  ) -> Iterator[Rows | Skipped | Outside]:
    for batch in batches:
      start = time.perf_counter()
      yield batch.outside
      yield from batch.skipped
      yield batch.rows
      written = StageTimes(write=time.perf_counter() - start)
      self._count(
        examples=len(batch.rows),
        decode_errors=len(batch.skipped),
        image_bytes=batch.image_bytes,
      )
      self._count(**batch.times.counters())
      self._count(**written.counters())
      done = len(batch.rows) + len(batch.skipped) + batch.outside.count
      examples_done.add(done)

  def _count(self, **values: int) -> None:
    for name, value in values.items():
      self._counters[name].inc(value)

  def _embedder(self) -> Embedder:
    """The backbone, if this worker has the weights that the cache is of."""
    embedder = shared_embedder(self._config)
    config, there = self._config.backbone, self._identity.backbone
    here = embedder.backbone
    for what, found, expected in (
      (config.weights, here.weights_sha256, there.weights_sha256),
      (config.name, here.code_sha256, there.code_sha256),
    ):
      if found != expected:
        raise RunError(
          f"{what} is another file on this worker (SHA-256 {found}) than where"
          f" the job was started ({expected}); give every worker the same."
        )
    check_computed_on(self._out_dir, embedder.computed_on)
    return embedder

  def teardown(self) -> None:
    self._pool.shutdown(cancel_futures=True)
