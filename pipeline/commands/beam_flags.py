"""Flags that a command does not know, which go to Beam."""

from collections.abc import Iterable, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.shell.complaints import did_you_mean
from oneshot_dp.pipeline.shell.help import listed_flags


def check_beam_options(options: Sequence[str], kinds: Iterable[type]) -> None:
  """Refuses flags that Beam does not know either; names the nearest."""
  if not options:
    return
  from oneshot_dp.extract.job.run_graph import (
    UnknownFlagError,
    pipeline_options,
  )

  try:
    pipeline_options(options)
  except UnknownFlagError as error:
    known = listed_flags(kinds)
    hint = did_you_mean(error.flag.replace("_", "-"), known)
    raise InputError(f"{error} {hint}") from error
