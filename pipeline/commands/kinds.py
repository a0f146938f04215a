"""What a directory is, where a command wants another, or finds none."""

from pathlib import Path

from oneshot_dp.configs.errors import InputError

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
