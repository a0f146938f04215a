"""Parses the options of Beam, and sees that its runner can be made.

It is done before a job lists its images, which may be millions: what is wrong
with a flag of Beam is said at once, in one line.
"""

import contextlib
import io
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import (
  PipelineOptions,
  StandardOptions,
)

from oneshot_dp.configs.errors import InputError, escaped, one_line
from oneshot_dp.extract.files import disk_errors
from oneshot_dp.extract.job.beam_flags import split_beam_flags
from oneshot_dp.extract.job.job_server import LOCAL_RUNNER

_DIRECT_RUNNERS = ("DirectRunner", "SwitchingDirectRunner", "FnApiRunner")


def pipeline_options(flags: Sequence[str]) -> PipelineOptions:
  """Parses Beam's flags.

  Args:
    flags: words of the command line that `extract` itself does not know.

  Returns:
    Beam's options, with a runner that needs no download.

  Raises:
    InputError: flags that Beam here does not know, or values it does not take;
      an unknown runner, or one that misses options or packages.
  """
  _check_flags(flags)
  options = PipelineOptions(list(flags))
  standard = options.view_as(StandardOptions)
  if standard.runner is None:
    standard.runner = "DirectRunner"
  standard.runner = _runner_name(standard.runner)
  if standard.runner in _DIRECT_RUNNERS:
    # Beam's DirectRunner would first try to download another runner, Prism,
    # from the internet; this is the in-process half of it.
    standard.runner = LOCAL_RUNNER
  # Tried now: a job may list millions of images before it has a graph.
  with own_temporary_folder(secrets.token_hex(8)):
    try:
      beam.Pipeline(options=options)
    except (ValueError, TypeError, ImportError, AttributeError) as e:
      raise InputError(f"Beam: {one_line(e)}") from e
  return options


def _runner_name(word: str) -> str:
  """The class name of the runner that Beam takes for a word.

  It takes `flink`, `FLINKRUNNER` and the name with its module for FlinkRunner.
  """
  wanted = word.lower()
  for path in StandardOptions.ALL_KNOWN_RUNNERS:
    name = path.rpartition(".")[2]
    short_name = name.removesuffix("Runner").lower()
    if wanted in (short_name, name.lower(), path.lower()):
      return name
  return word


def _check_flags(flags: Sequence[str]) -> None:
  """Raises InputError for words that Beam would drop, and bad values.

  `PipelineOptions` drops every word that no Beam option takes. A mistyped flag,
  `-units owners.csv`, or a second file, `b.parquet`, would silently be ignored,
  and ε would not be about what was asked for.
  """
  _, others = split_beam_flags(flags)
  if others:
    word = escaped(others[0].partition("=")[0], "")
    raise InputError(
      f"{word} is neither a flag of this command nor a Beam option; see --help."
    )
  complaint = io.StringIO()
  try:
    with contextlib.redirect_stderr(complaint):
      PipelineOptions(list(flags)).get_all_options()
  except SystemExit as error:
    reason = complaint.getvalue().strip().rpartition("error: ")[2]
    raise InputError(f"Beam options: {escaped(reason)}.") from error


@contextlib.contextmanager
def own_temporary_folder(name: str) -> Iterator[None]:
  """Has Beam's temporary files in a folder of its own, removed at the end.

  Of what it stages for workers and job servers, Beam leaves most behind.

  Args:
    name: tells the folder from those of other jobs.
  """
  outer = tempfile.gettempdir()
  # Named beforehand, so that it goes even if Ctrl-C comes while it is made.
  folder = os.path.join(outer, f"oneshot-dp-{name}")
  try:
    with disk_errors(outer):
      os.mkdir(folder, 0o700)
    tempfile.tempdir = folder
    yield
  finally:
    tempfile.tempdir = outer
    shutil.rmtree(folder, ignore_errors=True)
