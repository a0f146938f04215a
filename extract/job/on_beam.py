"""The job on Beam: a graph of shard numbers, run to its end or stopped.

    Create(shards) → Reshuffle → extract_shard → their descriptions, in a file

No image or row passes between workers. The graph runs on a thread of its own;
the main thread starts the runner's job server, if it has one (job_server.py),
watches the graph, shows how far it is, and takes Ctrl-C. A job is stopped by a
file that its workers look for (worker.py).
"""

import contextlib
import io
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
  GoogleCloudOptions,
  PipelineOptions,
  PortableOptions,
  StandardOptions,
)
from tqdm import tqdm

from oneshot_dp.configs.errors import (
  BrokenImageError,
  InputError,
  RunError,
)
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import Shard
from oneshot_dp.extract.job import worker
from oneshot_dp.extract.job.beam_options import own_temporary_folder
from oneshot_dp.extract.job.job_server import (
  LOCAL_RUNNER,
  ends_with_command,
  job_server,
)
from oneshot_dp.extract.job.shard import Job, shard_order

DRAIN_SECONDS = 30
"""How long the engine may take to end after the stop file was written."""
CANCEL_SECONDS = 20
"""How long the engine's own canceling may take after that."""
_POLL_SECONDS = 1.0
_LOOK_SHARE = 0.05
"""The directory is listed to move the bar. Stores charge for that, so it takes
at most this share of the time."""
_LOOK_GROWTH = 0.1
"""The pause between listings, as a share of the time that the job has run."""
_MAX_LOOK_SECONDS = 60.0
"""The longest such pause."""
_WORKER_EXIT = re.compile(r"Worker subprocess exited with return code (-?\d+)")
_CTRL_C_STATUSES = ("-2", "130")
_OUR_ERRORS = {
  "BrokenImageError": BrokenImageError,
  "InputError": InputError,
  "RunError": RunError,
}
_RUN_AGAIN = "run the same command again (finished shards are kept)"
_MAX_REASON_CHARACTERS = 300


def run_on_beam(job: Job, options: PipelineOptions, bar: tqdm) -> list[Shard]:
  """Makes all shards on Beam.

  Args:
    job: the job, with absolute paths: workers may run elsewhere.
    options: Beam's options.
    bar: moved as shards appear.

  Returns:
    Descriptions of all shards.

  Raises:
    InputError: a worker raised it, or the options do not fit each other.
    RunError: a worker raised it, or the runner failed, hangs or is lost.
    KeyboardInterrupt: Ctrl-C; says what may still run.
  """
  run = worker.launch(job)
  with own_temporary_folder(run):
    return _run_launched(job, run, options, bar)


def _run_launched(
  job: Job, run: str, options: PipelineOptions, bar: tqdm
) -> list[Shard]:
  """Makes all shards of a launch; see `run_on_beam`."""
  graph = _Graph(job, run, options)
  with job_server(graph.runner, options):
    try:
      with _no_worker_tracebacks(options):
        _wait(job, graph, bar)
      if graph.error is not None:
        error = _as_our_error(graph.error, graph.ends_with_command)
        raise error from graph.error
    except BaseException as error:
      warning = _stop(job.out, run, graph)
      if warning and isinstance(error, KeyboardInterrupt | RunError):
        raise type(error)(f"{error or 'interrupted'}; {warning}") from error
      raise
  return worker.read_descriptions(job.out, run)


class _Graph(threading.Thread):
  """The running graph, on its own thread, so that Ctrl-C finds the main one.

  Attributes:
    description: how the engine's operator finds the job.
    ends_with_command: see `job_server.ends_with_command`.
    finished: set when the graph has ended; `Thread.join` would not do, as
      Ctrl-C during it makes Python 3.12 and older take the thread for ended.
    result: Beam's handle, once the job was submitted.
    error: what ended it, if it failed.
  """

  def __init__(self, job: Job, run: str, options: PipelineOptions):
    super().__init__(name="beam", daemon=True)
    # A name of ours, so that the operator of an engine finds the job in its
    # list.
    cloud = options.view_as(GoogleCloudOptions)
    if not cloud.job_name:
      cloud.job_name = f"oneshot-dp-{run}"
    engine = options.view_as(PortableOptions).job_endpoint
    if not engine:
      engine = options.view_as(StandardOptions).runner
    self.description = f"as {cloud.job_name} on the engine behind {engine}"
    # Asked before the runner begins, which changes its options.
    self.ends_with_command = ends_with_command(options)
    self.finished = threading.Event()
    self.result: Any = None
    self.error: BaseException | None = None
    self._pipeline = beam.Pipeline(options=options)
    _ = (
      self._pipeline
      | beam.Create(shard_order(job.cache.info), reshuffle=False)
      | beam.Reshuffle()
      | beam.FlatMap(worker.extract, job.out, run)
      | beam.GroupByKey()
      | beam.Map(worker.put_descriptions, job.out, run)
    )

  @property
  def runner(self) -> Any:
    """Beam's runner, which has not begun."""
    return self._pipeline.runner

  def run(self) -> None:
    try:
      # Some runners return at once and others at the end, and errors come from
      # either call: both are on this thread, and the main thread only waits.
      self.result = self._pipeline.run()
      state = self.result.wait_until_finish()
      if state not in (None, "DONE"):
        raise RunError(f"the Beam job ended as {state}: {_RUN_AGAIN}.")
    except BaseException as e:
      self.error = e
    self.finished.set()

  def has_ended(self) -> bool:
    """Whether the engine said so; a lost job server says nothing."""
    return self.finished.is_set() and not _is_lost_server(self.error)


def _is_lost_server(error: BaseException | None) -> bool:
  """Whether a job server ended, or cannot be reached any more."""
  return type(error).__module__.startswith("grpc")


class _LostWorkers:
  """Notices worker processes that end, which Beam's local runner does not.

  It starts each by a thread that ends with an error when the process does, and
  goes on waiting for the process for ever. So this hook sees the error. It also
  keeps back the traceback of the thread that reads the messages of a job server
  that was lost: the graph ends with the same error, which is told in one line.
  """

  def __init__(self):
    self.statuses: list[str] = []
    self._hook = threading.excepthook

  def __enter__(self) -> "_LostWorkers":
    threading.excepthook = self._thread_ended
    return self

  def __exit__(self, *_: object) -> None:
    threading.excepthook = self._hook

  def _thread_ended(self, ended: threading.ExceptHookArgs) -> None:
    if _is_lost_server(ended.exc_value):
      return
    worker_exit = _WORKER_EXIT.search(str(ended.exc_value))
    if worker_exit is None:
      self._hook(ended)
    elif worker_exit[1] not in _CTRL_C_STATUSES:
      self.statuses.append(worker_exit[1])


def _wait(job: Job, graph: _Graph, bar: tqdm) -> None:
  """Runs the graph to its end; RunError: what a runner does not notice."""
  # Three ways to end: the graph says so, a worker process died, or no new shard
  # has appeared for too long, which is how a hung engine looks.
  stall_seconds = job.config.stall_seconds
  start = time.monotonic()
  last_progress = start
  next_look = start
  with _LostWorkers() as lost:
    graph.start()
    while not graph.finished.wait(_POLL_SECONDS):
      before = time.monotonic()
      if before >= next_look:
        # A store that does not answer now may do so the next time.
        with contextlib.suppress(InputError, RunError):
          if _update(bar, job):
            last_progress = time.monotonic()
        next_look = _next_look(start, before, stall_seconds)
      if lost.statuses:
        raise RunError(
          f"a worker process ended with status {lost.statuses[0]} (killed, or"
          f" out of memory?): {_RUN_AGAIN}."
        )
      if time.monotonic() - last_progress > stall_seconds:
        raise RunError(
          f"no shard finished in {stall_seconds} s: see the runner's logs, then"
          f" {_RUN_AGAIN}, with a larger --stall-seconds if it was only slow"
        )


def _next_look(start: float, before: float, stall_seconds: int) -> float:
  """When to list the directory again, after a listing that began at `before`.

  Late enough to cost little, early enough to notice a stall.
  """
  now = time.monotonic()
  pause = min(_LOOK_GROWTH * (now - start), _MAX_LOOK_SECONDS)
  pause = min(pause, stall_seconds / 4)
  return now + max(pause, (now - before) / _LOOK_SHARE)


def _update(bar: tqdm, job: Job) -> bool:
  """Moves the bar to the shards that exist; whether there are new ones."""
  names = storage.list_files(storage.store_at(job.out))
  num_shards = sum(".array_record-" in name for name in names)
  num_images = min(num_shards * job.cache.info.shard_rows, bar.total)
  if num_images <= bar.n:
    return False
  bar.update(num_images - bar.n)
  return True


def _stop(out: str, run: str, graph: _Graph) -> str:
  """Stops what still runs; returns what may, and how it can be stopped."""
  if graph.has_ended():
    return ""
  with contextlib.suppress(Exception):
    worker.put(out, f"stop.{run}", b"stop")
  graph.finished.wait(DRAIN_SECONDS)
  if graph.has_ended():
    return ""
  answered = threading.Event()
  cancelled = threading.Event()

  def cancel() -> None:
    with contextlib.suppress(Exception):
      graph.result.cancel()
      if graph.result.wait_until_finish() in ("CANCELLED", "DONE"):
        cancelled.set()
    answered.set()

  # On a thread, because an engine may never answer. A job server that was lost
  # refuses at once.
  threading.Thread(target=cancel, daemon=True).start()
  answered.wait(CANCEL_SECONDS)
  if cancelled.is_set() or graph.ends_with_command:
    return ""
  return (
    f"it may still run {graph.description}: its workers were told to stop and"
    " will within a batch; cancel it there if it does not end"
  )


@contextlib.contextmanager
def _no_worker_tracebacks(options: PipelineOptions) -> Iterator[None]:
  """Keeps back what workers in this process log and print of an error.

  `_as_our_error` says the same in one line. The bar has the real stream.
  """
  is_loopback = options.view_as(PortableOptions).environment_type == "LOOPBACK"
  is_local = options.view_as(StandardOptions).runner == LOCAL_RUNNER
  if is_loopback or is_local:
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    with contextlib.redirect_stderr(io.StringIO()):
      yield
  else:
    yield


def _as_our_error(
  error: BaseException, ends_with_command: bool
) -> BaseException:
  """The worker's own error, which runners deliver as text in a traceback."""
  text = str(error)
  if isinstance(error, InputError | RunError):
    return type(error)(text.partition(" [while running")[0])
  # Runners bring the traceback of a worker as text. The last error of ours in
  # it is what the worker ended by, with the name of its host; those before are
  # causes.
  raised = re.findall(
    rf"configs\.errors\.({'|'.join(_OUR_ERRORS)}):"
    r" (.*?)(?: \[while running|\n|$)",
    text,
  )
  if raised:
    kind, message = raised[-1]
    return _OUR_ERRORS[kind](message)
  if "[while running" in text:
    return error  # A bug of ours: it keeps its traceback.
  # The errors of gRPC have the status of the job server.
  details = getattr(error, "details", None)
  if details is not None:
    lost = "its job server was lost"
    if ends_with_command:
      lost += ", and the job ended with it"
    text = f"{lost}: {details()}"
  reason = " ".join(text.split())[:_MAX_REASON_CHARACTERS]
  return RunError(
    f"Beam could not run the job: {reason}; see the runner's own logs, then"
    f" {_RUN_AGAIN}"
  )
