"""Beam: its own flags, and a graph run to its end, whose errors become ours."""

import contextlib
import io
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import (
  PipelineOptions,
  PortableOptions,
  StandardOptions,
)
from apache_beam.runners.runner import PipelineResult

from oneshot_dp.configs.errors import BrokenImageError, InputError, RunError

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""The one that runs in this process, or on this machine."""
_OURS = {e.__name__: e for e in (BrokenImageError, InputError, RunError)}
"""What workers raise."""


class UnknownFlagError(InputError):
  """A `flag`, with its dashes, that is neither ours nor Beam's."""

  def __init__(self, name: str):
    self.flag = f"--{name}"
    super().__init__(
      f"{self.flag} is neither a flag of this command nor a Beam option; see"
      " its --help."
    )


def pipeline_options(flags: Sequence[str]) -> PipelineOptions:
  """Beam's options; flags that Beam here does not know are refused."""
  options = PipelineOptions(list(flags))
  complaint = io.StringIO()
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
      raise UnknownFlagError(unknown[0])
    # The in-process half of Beam's DirectRunner, which would first try to
    # download another runner, Prism, from the internet.
    standard.runner = LOCAL_RUNNER
  return options


def run_graph(pipeline: beam.Pipeline) -> Counter[str]:
  """Runs it and returns its counters; stops it if it is interrupted.

  Raises:
    InputError, RunError: a worker raised it, or the runner failed.
    Exception: a bug of ours, with the worker's traceback.
  """
  result = None
  try:
    with _quiet_workers(pipeline.options):
      result = pipeline.run()
      state = result.wait_until_finish()
  except Exception as error:
    raise _as_our_error(error) from error
  except BaseException:
    # A cluster would go on without us.
    if result is not None:
      with contextlib.suppress(Exception):
        result.cancel()
    raise
  if state not in (None, "DONE"):
    raise RunError(
      f"The Beam job ended as {state}; see the runner's own logs, then run the"
      " same command again (finished shards are kept)."
    )
  return _counters(result)


@contextlib.contextmanager
def _quiet_workers(options: PipelineOptions) -> Iterator[None]:
  """Keeps back the tracebacks that workers in this process log and print.

  `_as_our_error` says the same in one line. The bar has the real stream.
  """
  runner = options.view_as(StandardOptions).runner
  loopback = options.view_as(PortableOptions).environment_type == "LOOPBACK"
  if runner != LOCAL_RUNNER and not loopback:
    yield
    return
  logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
  printed = io.StringIO()
  with contextlib.redirect_stderr(printed):
    yield
  sys.stderr.write(printed.getvalue())


def _counters(result: PipelineResult) -> Counter[str]:
  found = Counter()
  for metric in result.metrics().query()["counters"]:
    # A portable runner's zero is None.
    found[metric.key.metric.name] += metric.result or 0
  return found


def _as_our_error(error: Exception) -> BaseException:
  """The worker's own error, which runners deliver as text in a traceback."""
  # Ctrl-C, where a worker had this process's main thread.
  if str(error).startswith("KeyboardInterrupt"):
    return KeyboardInterrupt()
  if isinstance(error, InputError | RunError):
    return type(error)(str(error).partition(" [while running")[0])
  raised = re.findall(
    rf"configs\.errors\.({'|'.join(_OURS)}): (.*?)(?: \[while running|\n|$)",
    str(error),
  )
  if not raised and "[while running" in str(error):
    return error  # A bug of ours: it keeps its traceback.
  if not raised:
    return RunError(
      f"Beam could not run the job: {type(error).__name__}: {error}; see the"
      " runner's own logs."
    )
  kind, message = raised[-1]
  return _OURS[kind](message)
