"""What several commands refuse: other kinds of directories, and odd flags."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.shell.complaints import did_you_mean
from oneshot_dp.pipeline.shell.help import listed_flags

_KINDS = {
  "receipt.json": ("a head", ("verify", "evaluate", "predict", "export")),
  "cache_info.json": ("a feature cache", ("inspect", "verify")),
  "results.json": ("what a run of many heads wrote", ("report",)),
}
"""A file in each → what it is, and the commands for it."""


def check_kind(path: Path, command: str) -> None:
  """Refuses what other commands are for, and what a run did not finish."""
  for file, (kind, commands) in _KINDS.items():
    if (path / file).is_file() and command not in commands:
      lines = ", ".join(f"`oneshot-dp {each} {path}`" for each in commands[:2])
      more = "; one of its heads is in heads/" * (commands == ("report",))
      raise InputError(
        f"{path} is {kind}, not what `{command}` is for: try {lines}{more}."
      )
  if not path.is_dir() or not any(path.iterdir()):
    from oneshot_dp.pipeline.runs.output_dir import left_of

    if left := left_of(path):
      raise InputError(f"{path} is not finished: {left}.")


def check_beam_options(options: Sequence[str], kinds: Iterable[type]) -> None:
  """Refuses flags not ours that Beam does not know; names the nearest."""
  if not options:
    return
  from oneshot_dp.extract.job.run_graph import (
    UnknownFlagError,
    pipeline_options,
  )

  try:
    pipeline_options(options)
  except UnknownFlagError as error:
    hint = did_you_mean(error.flag.replace("_", "-"), listed_flags(kinds))
    asked = hint.replace("did", "Did", 1)
    raise InputError(f"{error} {asked}".rstrip()) from error
