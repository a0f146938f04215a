"""What workers on Beam do: find their job, and make shards until told to stop.

The launcher leaves the config and the listing of the source where the shards
go; workers are asked for a number, there, for the launch that has a name.
"""

import contextlib
import dataclasses
import resource
import secrets
import threading
import time
from collections.abc import Iterable, Iterator

import msgspec

from oneshot_dp.configs.errors import RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import Shard
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.job.shard import (
  Job,
  computed_by,
  embedder_of,
  extract_shard,
)
from oneshot_dp.extract.sources.open_source import deserialize_source

_MOST_BYTES = 1 << 40
_LOOK_SECONDS = 2.0
_looked: dict[str, tuple[float, bool]] = {}
_jobs: dict[str, Job] = {}
"""Those that this process has a part in, by their launch."""
_lock = threading.Lock()


class Stopped(RunError):
  """The launcher of the job has told its workers to stop."""


def launch(job: Job, listing: bytes) -> str:
  """Leaves what the workers of a launch of a job need; returns its name."""
  run, dtype = secrets.token_hex(8), job.embedder.backbone.compute_dtype
  # Workers on other devices must not choose another one.
  config = dataclasses.replace(job.config, compute_dtype=dtype)
  left = config, job.cache, msgspec.Raw(listing)
  put(job.out, f"launch.{run}", msgspec.json.encode(left))
  _jobs.clear()
  _jobs[run] = job  # for workers that are threads
  return run


def described(out: str, run: str) -> list[Shard]:
  """What the shards of a launch are, once all are there."""
  said = _read(out, f"shards.{run}") or b"[]"
  return msgspec.json.decode(said, type=list[Shard])


def extract(index: int, out: str, run: str) -> Iterator[tuple[int, bytes]]:
  """Makes a shard, and describes it, unless the launch is to stop."""

  def check_stopped() -> None:
    at, told = _looked.get(run, (0.0, False))
    if not told and time.monotonic() - at > _LOOK_SECONDS:
      told = _read(out, f"stop.{run}") is not None
      _looked[run] = time.monotonic(), told
    if told:
      raise Stopped("the job was told to stop")

  with contextlib.suppress(Stopped):
    check_stopped()
    with _lock:  # threads share one
      if run not in _jobs:
        _jobs[run] = job_at(out, run)
    shard = extract_shard(_jobs[run], index, check_stopped)
    yield 0, msgspec.json.encode(shard)


def put_descriptions(
  group: tuple[int, Iterable[bytes]], out: str, run: str
) -> None:
  """Leaves what all shards are for the launcher."""
  put(out, f"shards.{run}", b"[" + b",".join(sorted(group[1])) + b"]")


def job_at(out: str, run: str) -> Job:
  """The job of a launch, in a worker of it.

  RunError: it is not there, or this worker's backbone is not what the job began
  with.
  """
  # A crash would leave private images on the disk.
  most = resource.getrlimit(resource.RLIMIT_CORE)[1]
  resource.setrlimit(resource.RLIMIT_CORE, (0, most))
  if (data := _read(out, f"launch.{run}")) is None:
    raise RunError(
      f"{storage.store_at(out).display_path()}: the job's files are not"
      " there; every"
      " worker must see it under this name."
    )
  left = tuple[ExtractConfig, CacheJob, msgspec.Raw]
  config, cache, listing = msgspec.json.decode(data, type=left)
  embedder = embedder_of(config)
  backbone, began = embedder.backbone, cache.info
  there = {**began.backbone, **began.computed_by}
  mine = backbone.identity | computed_by(backbone, config)
  for name, here in mine.items():
    if here != there.get(name):
      raise RunError(
        f"{name} of the backbone is {here} on this worker and {there.get(name)}"
        " where the job began: give all the same files and libraries."
      )
  source = deserialize_source(bytes(listing))
  return Job(out, config, cache, source, embedder)


def put(out: str, name: str, data: bytes) -> None:
  """Leaves a word: "stop.RUN" ends a launch's workers within a batch."""
  storage.write_if_absent(storage.store_at(out), f"job.{name}", data)


def _read(out: str, name: str) -> bytes | None:
  return storage.read(storage.store_at(out), f"job.{name}", _MOST_BYTES)
