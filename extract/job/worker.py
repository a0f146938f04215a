"""Work on Beam: a worker finds its job, and makes shards until told to stop.

An engine's log and dashboard show what its elements are, so those are numbers
of shards alone. All else passes through files in the directory of the cache,
named after the launch (a random name: the same job may be launched again while
workers of an earlier launch still run):

    job.listing.RUN.00000 …   the listing of the source, in pieces (listing.py)
    job.launch.RUN   the config, and where the listing of each shard is
    job.stop.RUN     written by the launcher: workers end within a batch
    job.shards.RUN   descriptions of all shards, for the launcher

A job is stopped by a file, not by the engine's own call, because the file also
works when the job server is lost or cancels nothing: shards that were not made
are left out, the engine comes to the end of its graph, and frees its workers.
"""

import contextlib
import dataclasses
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import ExtractConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import Shard
from oneshot_dp.extract.cache.shard_file import CacheJob
from oneshot_dp.extract.files import disable_core_dumps
from oneshot_dp.extract.job.listing import (
  Section,
  decode_header,
  decode_section,
  encode_header,
  put_pieces,
  sections_of,
)
from oneshot_dp.extract.job.shard import (
  Job,
  compute_environment,
  extract_shard,
  load_embedder,
)
from oneshot_dp.extract.sources.source import Source

_MAX_FILE_BYTES = 1 << 40
_LOOK_SECONDS = 2.0
"""How often a worker looks for the stop file."""


_FORMAT = 2
"""The version of launch files and listings: a change of either raises it."""


class StoppedError(RunError):
  """The launcher told the workers of its job to stop."""


class _StopFile:
  """Whether a launch was told to stop; asks the store now and then only."""

  def __init__(self, out: str, run: str):
    self._out = out
    self._run = run
    self._looked_at = -_LOOK_SECONDS
    self._is_there = False

  def check(self) -> None:
    """Raises StoppedError if the launch was told to stop."""
    # A look is a request, which stores charge: once in two seconds, not once a
    # batch.
    now = time.monotonic()
    if not self._is_there and now - self._looked_at > _LOOK_SECONDS:
      self._is_there = _read(self._out, f"stop.{self._run}") is not None
      self._looked_at = now
    if self._is_there:
      raise StoppedError("the job was told to stop")


class _Launch(msgspec.Struct, array_like=True):
  """What a launch file holds.

  Attributes:
    format: `_FORMAT` of the version that wrote it.
    config: the job's settings.
    cache: what it makes.
    header: of the listing; see `encode_header`.
    pieces: see `put_pieces`.
  """

  format: int
  config: ExtractConfig
  cache: CacheJob
  header: msgspec.Raw
  pieces: list[list[int]]


class _Launches:
  """The launches that this process has a part in; its threads share them."""

  def __init__(self):
    self._lock = threading.Lock()
    self._jobs: dict[str, Job] = {}
    self._stop_files: dict[str, _StopFile] = {}
    self._launched: set[str] = set()

  def put(self, run: str, job: Job) -> None:
    """Notes a launch, and forgets all others: in a launcher, they have ended.

    Args:
      run: the name of the launch, from `launch`.
      job: what it makes.
    """
    with self._lock:
      self._jobs = {run: job}
      self._stop_files = {}
      self._launched.add(run)

  def is_launcher(self, run: str) -> bool:
    """Whether this process launched it."""
    return run in self._launched

  def job(self, run: str, load: Callable[[], Job]) -> Job:
    """The job of a launch, loaded once however many threads ask for it.

    Args:
      run: the name of the launch.
      load: loads it; called by one thread, while the others wait.
    """
    with self._lock:
      if run not in self._jobs:
        self._jobs[run] = load()
      return self._jobs[run]

  def stop_file(self, out: str, run: str) -> _StopFile:
    with self._lock:
      if run not in self._stop_files:
        self._stop_files[run] = _StopFile(out, run)
      return self._stop_files[run]


_launches = _Launches()


def launch(job: Job) -> str:
  """Writes what the workers of a launch need.

  Args:
    job: the job, with absolute paths.

  Returns:
    The name of the launch.
  """
  run = secrets.token_hex(8)
  # Workers on other devices must not choose another dtype than the launcher.
  compute_dtype = job.embedder.backbone.compute_dtype
  config = dataclasses.replace(job.config, compute_dtype=compute_dtype)

  def put_piece(number: int, piece: bytes) -> None:
    put(job.out, _piece_name(run, number), piece)

  pieces = put_pieces(job.source, job.cache.info, put_piece)
  header = msgspec.Raw(encode_header(job.source))
  # The last file: whoever finds it finds all pieces.
  launched = _Launch(_FORMAT, config, job.cache, header, pieces)
  put(job.out, f"launch.{run}", msgspec.json.encode(launched))
  _launches.put(run, job)  # for workers that are threads of this process
  return run


def _piece_name(run: str, number: int) -> str:
  return f"listing.{run}.{number:05}"


def read_descriptions(out: str, run: str) -> list[Shard]:
  """The shards of a launch, as its workers described them.

  Args:
    out: the directory of the cache.
    run: the name of the launch.

  Returns:
    One description for each shard; none if the launch was stopped before all
    were there.
  """
  data = _read(out, f"shards.{run}") or b"[]"
  return msgspec.json.decode(data, type=list[Shard])


def extract(index: int, out: str, run: str) -> Iterator[tuple[int, bytes]]:
  """Makes a shard, unless the launch is to stop.

  Args:
    index: the number of the shard.
    out: the directory of the cache.
    run: the name of the launch.

  Yields:
    The shard's description, in JSON, under one key for all shards; nothing if
    the launch was told to stop.
  """
  stop_file = _launches.stop_file(out, run)
  # Looked at before the backbone is loaded, which takes seconds, and then
  # after each batch.
  with contextlib.suppress(StoppedError):
    stop_file.check()
    with _naming_the_host(run):
      job = _launches.job(run, lambda: load_job(out, run))
      shard = extract_shard(job, index, stop_file.check)
    yield 0, msgspec.json.encode(shard)


@contextlib.contextmanager
def _naming_the_host(run: str) -> Iterator[None]:
  """Adds the host to errors of a worker in another process than the launcher.

  A path means something else there, as does a full disk.
  """
  try:
    yield
  except StoppedError:
    raise
  except (InputError, RunError) as e:
    if _launches.is_launcher(run):
      raise
    raise type(e)(f"{e} (worker on {socket.gethostname()})") from e


def put_descriptions(
  group: tuple[int, Iterable[bytes]], out: str, run: str
) -> None:
  """Writes the descriptions of all shards for the launcher.

  Args:
    group: the key that all descriptions share, and what `extract` yielded.
    out: the directory of the cache.
    run: the name of the launch.
  """
  # Sorted, so that the file has the same bytes whichever worker came first.
  _, descriptions = group
  put(out, f"shards.{run}", b"[" + b",".join(sorted(descriptions)) + b"]")


def load_job(out: str, run: str) -> Job:
  """Loads the job of a launch in a worker process.

  Args:
    out: the directory of the cache.
    run: the name of the launch.

  Returns:
    The job, with its backbone on this process's devices.

  Raises:
    RunError: its file is not visible here or of another version, or this
      worker's backbone would not compute what the launcher's does.
  """
  # A crash must not leave private images on the disk.
  disable_core_dumps()
  data = _read(out, f"launch.{run}")
  if data is None:
    raise RunError(
      f"{storage.store_at(out).display_path()}: the job's files do not exist"
      " here; every worker must see the directory under this name."
    )
  launched = _decode_launch(data)
  config = launched.config
  cache = launched.cache
  embedder = load_embedder(config)
  backbone = embedder.backbone
  # A worker with other weights or libraries would make rows that look right,
  # and belong to another network.
  expected = {**cache.info.backbone, **cache.info.computed_by}
  actual = backbone.identity | compute_environment(backbone, config)
  for name, value in actual.items():
    if value != expected.get(name):
      raise RunError(
        f"{name} of the backbone is {value} on this worker and"
        f" {expected.get(name)} where the job began: give all the same files"
        " and libraries."
      )
  source = decode_header(bytes(launched.header))
  job = Job(out, config, cache, source, embedder)
  if not source.IS_LISTED:
    return job
  sections = sections_of(launched.pieces)

  def read_part(index: int) -> Source:
    first_index = cache.info.shard_range(index).start
    return decode_section(
      source, _read_section(out, run, sections[index]), first_index
    )

  return job._replace(read_part=read_part)


def _decode_launch(data: bytes) -> _Launch:
  """Parses a launch file; RunError: another version wrote it."""
  with contextlib.suppress(msgspec.ValidationError):
    launched = msgspec.json.decode(data, type=_Launch)
    if launched.format == _FORMAT:
      return launched
  raise RunError(
    "this worker and the program that began the job have different versions of"
    " oneshot-dp: give both the same."
  )


def _read_section(out: str, run: str, section: Section) -> bytes:
  """Reads the listing of a shard; RunError: it does not exist any more."""
  store = storage.store_at(out)
  name = f"job.{_piece_name(run, section.piece)}"
  with contextlib.suppress(FileNotFoundError):
    data, _ = storage.read_range(store, name, section.start, section.size)
    if len(data) == section.size:
      return data
  raise RunError(
    f"{store.display_path(name)} was removed, or is cut short; run the same"
    " command again."
  )


def put(out: str, name: str, data: bytes) -> None:
  """Writes a file of the job, unless it exists.

  Args:
    out: the directory of the cache.
    name: what follows "job." in its name.
    data: its content, the same whichever worker comes first.

  Raises:
    InputError, RunError: see `storage.write_if_absent`.
  """
  storage.write_if_absent(storage.store_at(out), f"job.{name}", data)


def _read(out: str, name: str) -> bytes | None:
  return storage.read(storage.store_at(out), f"job.{name}", _MAX_FILE_BYTES)
