"""The job on Beam: a graph of shard numbers, run to its end or stopped.

    Create(shards) → Reshuffle → extract_shard → what they are, in a file

No image or row passes between workers. A job is stopped by a file that they
look for: then the engine comes to the end of the graph by itself, and says so,
whatever its own cancelling is worth and if its job server is lost.
"""

import contextlib
import io
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import (
  GoogleCloudOptions,
  PipelineOptions,
  PortableOptions,
  StandardOptions,
)

from oneshot_dp.configs.errors import BrokenImageError, InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.extract.cache.format import Shard
from oneshot_dp.extract.job import worker
from oneshot_dp.extract.job.shard import Job

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""The one that runs in this process, or on this machine."""
DRAIN_SECONDS, CANCEL_SECONDS = 30, 20
_POLL_SECONDS = 1.0
_OURS = {e.__name__: e for e in (BrokenImageError, InputError, RunError)}
_EXIT = re.compile(r"Worker subprocess exited with return code (-?\d+)")
_BY_CTRL_C = ("-2", "130")
_AGAIN = "run the same command again (finished shards are kept)"


def pipeline_options(flags: Sequence[str]) -> PipelineOptions:
  """Beam's options.

  InputError: flags that Beam here does not know, or values it does not take.
  """
  options, complaint = PipelineOptions(list(flags)), io.StringIO()
  try:
    with contextlib.redirect_stderr(complaint):
      known = options.get_all_options()
      given = options.get_all_options(retain_unknown_options=True)
  except SystemExit as error:
    reason = complaint.getvalue().strip().rpartition("error: ")[2]
    raise InputError(f"Beam options: {reason}.") from error
  standard = options.view_as(StandardOptions)
  if standard.runner in (None, "DirectRunner"):
    # Only a cluster's runner may know flags that Beam itself does not.
    if unknown := sorted(given.keys() - known.keys()):
      raise InputError(
        f"--{unknown[0]} is neither a flag of this command nor a Beam option."
      )
    # The in-process half of Beam's DirectRunner, which would first try to
    # download another runner, Prism, from the internet.
    standard.runner = LOCAL_RUNNER
  return options


def run_on_beam(
  job: Job, listing: bytes, options: PipelineOptions, bar: Any
) -> list[Shard]:
  """Makes all shards on Beam, and says what they are; `bar` shows how far.

  InputError, RunError: a worker raised it, or the runner failed, hangs or is
  lost. KeyboardInterrupt: Ctrl-C; says what may still run.
  """
  run = worker.launch(job, listing)
  running = _Running(job, run, options)
  try:
    with _quiet(options):
      _wait(job, running, bar)
    if running.error is not None:
      raise _as_our_error(running.error) from running.error
  except BaseException as error:
    said = _stopped(job.out, run, running)
    if said and isinstance(error, KeyboardInterrupt | RunError):
      raise type(error)(f"{error or 'interrupted'}; {said}") from error
    raise
  return worker.described(job.out, run)


class _Running(threading.Thread):
  """The graph, on a thread of its own, so that Ctrl-C finds the main one."""

  def __init__(self, job: Job, run: str, options: PipelineOptions):
    super().__init__(name="beam", daemon=True)
    named = options.view_as(GoogleCloudOptions)
    named.job_name = named.job_name or f"oneshot-dp-{run}"
    endpoint = options.view_as(PortableOptions).job_endpoint
    on = endpoint or options.view_as(StandardOptions).runner
    self.where = f"as {named.job_name} on the engine behind {on}"
    # Ctrl-C during Thread.join makes Python 3.12 and older take it for ended.
    self.finished = threading.Event()
    self.result: Any = None
    self.error: BaseException | None = None
    try:
      self._pipeline = beam.Pipeline(options=options)
    # An unknown runner, or one that misses its options or its packages.
    except (ValueError, ImportError) as e:
      raise InputError(f"Beam: {e}") from e
    _ = (
      self._pipeline
      | beam.Create(range(job.cache.info.num_shards), reshuffle=False)
      | beam.Reshuffle()
      | beam.FlatMap(worker.extract, job.out, run)
      | beam.GroupByKey()
      | beam.Map(worker.put_descriptions, job.out, run)
    )

  def run(self) -> None:
    try:
      self.result = self._pipeline.run()
      state = self.result.wait_until_finish()
      if state not in (None, "DONE"):
        raise RunError(f"the Beam job ended as {state}: {_AGAIN}.")
    except BaseException as e:
      self.error = e
    self.finished.set()

  def ended(self) -> bool:
    """Whether the engine said so; a lost job server says nothing."""
    lost = type(self.error).__module__.startswith("grpc")
    return self.finished.is_set() and not lost


def _wait(job: Job, running: _Running, bar: Any) -> None:
  """Until the graph has ended; notices what a runner does not."""
  lost: list[str] = []
  hook, stall = threading.excepthook, job.config.stall_seconds
  store, rows = storage.store_at(job.out), job.cache.info.shard_rows

  def thread_ended(ended: threading.ExceptHookArgs) -> None:
    # Beam's worker processes are started by a thread each, which ends with an
    # error when the process does, and Beam goes on waiting for it for ever.
    if exit_ := _EXIT.search(str(ended.exc_value)):
      lost.extend({exit_[1]}.difference(_BY_CTRL_C))
    else:
      hook(ended)

  threading.excepthook = thread_ended
  since = time.monotonic()
  try:
    running.start()
    while not running.finished.wait(_POLL_SECONDS):
      # A store that does not answer now may do so the next time.
      with contextlib.suppress(InputError, RunError):
        shards = sum(".array_record-" in n for n in storage.list_files(store))
        if (seen := min(shards * rows, bar.total)) > bar.n:
          bar.update(seen - bar.n)
          since = time.monotonic()
      if lost:
        raise RunError(
          f"a worker process ended with status {lost[0]} (killed, or out of"
          f" memory?): {_AGAIN}."
        )
      if time.monotonic() - since > stall:
        raise RunError(
          f"the runner has finished nothing for {stall} s: see its logs, then"
          f" {_AGAIN}, with a larger --stall-seconds if it was only slow"
        )
  finally:
    threading.excepthook = hook


def _stopped(out: str, run: str, running: _Running) -> str:
  """Stops what still runs; returns what may, and how it is stopped."""
  if running.ended():
    return ""
  with contextlib.suppress(Exception):
    worker.put(out, f"stop.{run}", b"stop")
  running.finished.wait(DRAIN_SECONDS)
  if running.ended():
    return ""
  told = threading.Event()

  def cancel() -> None:
    with contextlib.suppress(Exception):
      running.result.cancel()
      if running.result.wait_until_finish() in ("CANCELLED", "DONE"):
        told.set()

  threading.Thread(target=cancel, daemon=True).start()
  if told.wait(CANCEL_SECONDS):
    return ""
  return (
    f"it may still run {running.where}: its workers were told to stop and will"
    " within a batch; cancel it there if it does not end"
  )


@contextlib.contextmanager
def _quiet(options: PipelineOptions) -> Iterator[None]:
  """Keeps back the tracebacks that workers in this process log and print.

  `_as_our_error` says the same in one line. The bar has the real stream.
  """
  loopback = options.view_as(PortableOptions).environment_type == "LOOPBACK"
  with contextlib.ExitStack() as kept:
    if loopback or options.view_as(StandardOptions).runner == LOCAL_RUNNER:
      logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
      kept.enter_context(contextlib.redirect_stderr(io.StringIO()))
    yield


def _as_our_error(error: BaseException) -> BaseException:
  """The worker's own error, which runners deliver as text in a traceback."""
  text = str(error)
  if isinstance(error, InputError | RunError):
    return type(error)(text.partition(" [while running")[0])
  raised = re.findall(
    rf"configs\.errors\.({'|'.join(_OURS)}): (.*?)(?: \[while running|\n|$)",
    text,
  )
  if raised:
    kind, message = raised[-1]
    return _OURS[kind](message)
  if "[while running" in text:
    return error  # A bug of ours: it keeps its traceback.
  if details := getattr(error, "details", None):  # of the job server's
    text = f"its job server was lost: {details()}"
  return RunError(
    f"Beam could not run the job: {' '.join(text.split())[:300]}; see the"
    f" runner's own logs, then {_AGAIN}"
  )
