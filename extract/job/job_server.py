"""The job server of a Beam runner that starts one: Flink, Spark, Prism.

`--runner=FlinkRunner`, `SparkRunner` and `PrismRunner` start a process that the
graph is handed to. Beam starts it where the graph runs, and takes over Ctrl-C,
which only the main thread may do; and it leaves the process behind when the
command does not end by itself. So it is started here, before the graph, and
ended here, however the command ends: if the command itself is killed, too.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from apache_beam.options.pipeline_options import (
  FlinkRunnerOptions,
  PipelineOptions,
  PortableOptions,
  PrismRunnerOptions,
  SparkRunnerOptions,
  StandardOptions,
)
from apache_beam.runners.portability.portable_runner import PortableRunner

from oneshot_dp.configs.errors import InputError, RunError, escaped, one_line

# A shell that is told in each line which processes it would have to end, from
# then on. When this process dies, the pipe is closed: it ends the last ones.
_GUARD = """
while read -r line; do servers=$line; done
[ -z "$servers" ] || kill -9 $servers 2>/dev/null
"""
_LOOK_SECONDS = 0.05
LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""The runner that works in this process, or in others of this machine."""
_FLINK_IN_JOB_SERVER = ("[local]", "[auto]")
_EMBEDDED = "embed"
"""The endpoint of a job server within the command itself."""
_ADDRESS = re.compile(r"(?:[a-z]+://)?([^/:,\[\]]+):(\d{1,5})/?")
_CONNECT_SECONDS = 10


def check_engine(options: PipelineOptions) -> None:
  """Refuses an engine that is not there, before anything is listed.

  Beam waits for a job server for as long as it takes, and downloads programs
  that it does not find.

  Args:
    options: Beam's options.

  Raises:
    InputError: an option is missing, or names a program that does not exist.
    RunError: nobody answers at an address.
  """
  runner = options.view_as(StandardOptions).runner
  endpoint = options.view_as(PortableOptions).job_endpoint
  if endpoint and endpoint != _EMBEDDED:
    _check_answers("--job_endpoint", endpoint, "job server")
  # A server that runs already: Beam starts none, and looks for no program.
  if endpoint:
    return
  if runner == "PortableRunner":
    raise InputError(
      "--runner=PortableRunner needs --job_endpoint=HOST:PORT, where a job"
      " server listens."
    )
  if runner == "PrismRunner":
    path = options.view_as(PrismRunnerOptions).prism_location
    _check_program("--prism_location", path)
  if runner == "FlinkRunner":
    flink = options.view_as(FlinkRunnerOptions)
    _check_program("--flink_job_server_jar", flink.flink_job_server_jar)
    _check_answers("--flink_master", flink.flink_master, "Flink")
  if runner == "SparkRunner":
    spark = options.view_as(SparkRunnerOptions)
    _check_program("--spark_job_server_jar", spark.spark_job_server_jar)
    _check_answers("--spark_master_url", spark.spark_master_url, "Spark")


def ends_with_command(options: PipelineOptions) -> bool:
  """Whether no part of a job outlives the command and the server it starts.

  Args:
    options: Beam's options, before a runner has begun with them.

  Returns:
    True where the engine is in them. Of Spark it is the driver, without which
    Spark ends a job. False where that is not known.
  """
  endpoint = options.view_as(PortableOptions).job_endpoint
  if endpoint:
    return endpoint == _EMBEDDED
  runner = options.view_as(StandardOptions).runner
  if runner == "FlinkRunner":
    flink = options.view_as(FlinkRunnerOptions)
    return flink.flink_master in _FLINK_IN_JOB_SERVER
  if runner == "SparkRunner":
    return not options.view_as(SparkRunnerOptions).spark_submit_uber_jar
  return runner in (LOCAL_RUNNER, "PrismRunner", "BundleBasedDirectRunner")


def _check_program(flag: str, path: str | None) -> None:
  if path and "://" not in path and not os.path.exists(path):
    raise InputError(
      f"{flag}={escaped(path, '')} does not exist: extract/README.md says where"
      " it is had from."
    )


def _check_answers(flag: str, address: str, engine: str) -> None:
  """RunError: nobody listens at HOST:PORT; other forms are Beam's matter."""
  place = _ADDRESS.fullmatch(address)
  if place is None:
    return
  host, port = place.groups()
  try:
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
  except (OSError, OverflowError) as e:
    raise RunError(
      f"{flag}={escaped(address, '')}: no {engine} answers there"
      f" ({one_line(e)}): start it, or name its host and port."
    ) from e


@contextlib.contextmanager
def job_server(runner: Any, options: PipelineOptions) -> Iterator[None]:
  """Runs the job server of a runner, if it has one of its own.

  Args:
    runner: the runner of a pipeline that has not begun.
    options: Beam's options.

  Yields:
    Nothing; the runner uses the server in the block, which ends it.

  Raises:
    InputError: the runner misses an option or a program.
    RunError: the server does not start.
  """
  if not _starts_a_server(runner, options):
    yield
    return
  with _guard() as guard:
    # Only while the server starts does Beam take over Ctrl-C, and are processes
    # that appear taken for the server's.
    with _signal_handlers_kept(), _children_told(guard):
      try:
        server = runner.default_job_server(options)
        server.start()
      except FileNotFoundError as e:
        raise InputError(
          f"Beam: {one_line(e)}: job servers of Flink and Spark need Java 11 or"
          " 17."
        ) from e
      except (ValueError, NotImplementedError) as e:
        raise InputError(f"Beam: {one_line(e)}.") from e
      except Exception as e:
        raise RunError(
          f"Beam's job server did not start: {one_line(e)}; see its log above,"
          " or name a program that is here: --prism_location,"
          " --flink_job_server_jar or --spark_job_server_jar."
        ) from e
    # Beam asks its runner for a server once more, and starts what it gets.
    runner.default_job_server = lambda _: server
    try:
      yield
    finally:
      # An error of the command itself counts for more than one of the end. The
      # guard forgets the numbers of processes that are gone: the system gives
      # them to others.
      with contextlib.suppress(Exception):
        server.stop()
        _tell(guard, set())


def _starts_a_server(runner: Any, options: PipelineOptions) -> bool:
  if not isinstance(runner, PortableRunner) or type(runner) is PortableRunner:
    return False
  return not options.view_as(PortableOptions).job_endpoint


@contextlib.contextmanager
def _signal_handlers_kept() -> Iterator[None]:
  """Undoes what the block does to the handler of Ctrl-C.

  Beam's would end the server before the workers were told to stop.
  """
  if threading.current_thread() is not threading.main_thread():
    raise InputError(
      "Beam: a runner that starts its job server needs the main thread; start"
      " the server yourself, and give --runner=PortableRunner --job_endpoint."
    )
  handler = signal.getsignal(signal.SIGINT)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, handler)


def _children() -> set[int]:
  """Processes that this process has started; none where there is no /proc."""
  children = set()
  # Each thread has a list of its own, of those that it started.
  for file in pathlib.Path("/proc/self/task").glob("*/children"):
    with contextlib.suppress(OSError):
      children |= {int(pid) for pid in file.read_text().split()}
  return children


@contextlib.contextmanager
def _guard() -> Iterator[subprocess.Popen]:
  """A process that ends the servers that it knows, unless they were stopped."""
  guard = subprocess.Popen(
    ["/bin/sh", "-c", _GUARD],
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    # Signals to the group of the command are not for it.
    start_new_session=True,
  )
  try:
    yield guard
  finally:
    guard.communicate()


def _tell(guard: subprocess.Popen, servers: set[int]) -> None:
  assert guard.stdin is not None
  line = " ".join(str(pid) for pid in sorted(servers))
  guard.stdin.write(f"{line}\n".encode())
  guard.stdin.flush()


@contextlib.contextmanager
def _children_told(guard: subprocess.Popen) -> Iterator[None]:
  """Tells the guard which processes this one starts within the block.

  Beam does not say which process it started: it is the one that was not there
  before. A Java server takes seconds to start, and this process may be killed
  within them, so a thread looks all the time.
  """
  before = _children()
  ended = threading.Event()

  def look() -> None:
    known: set[int] = set()
    while not ended.wait(_LOOK_SECONDS):
      servers = _children() - before
      if servers != known:
        _tell(guard, servers)
      known = servers

  thread = threading.Thread(target=look, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
    _tell(guard, _children() - before)
