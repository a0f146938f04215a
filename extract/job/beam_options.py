"""Beam's own flags, as they are given to `oneshot-dp extract`."""

import contextlib
import io
from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
  PipelineOptions,
  StandardOptions,
)

from oneshot_dp.configs.errors import InputError

LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
"""The one that runs in this process, or on this machine."""


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
