"""What a directory is, where a command was given one of another kind."""

from pathlib import Path

from oneshot_dp.configs.errors import InputError

_KINDS = {
  "receipt.json": ("a head", ("verify", "evaluate", "predict", "export")),
  "cache_info.json": ("a feature cache", ("inspect", "verify")),
  "results.json": ("what a run of many heads wrote", ("report",)),
}
"""A file in each → what it is, and the commands for it."""


def check_kind(path: Path, command: str) -> None:
  """Refuses what other commands are for, and names these; see `_KINDS`."""
  for file, (kind, commands) in _KINDS.items():
    if (path / file).is_file() and command not in commands:
      lines = ", ".join(f"`oneshot-dp {each} {path}`" for each in commands[:2])
      more = "; one of its heads is in heads/" * (commands == ("report",))
      raise InputError(
        f"{path} is {kind}, not what `{command}` is for: try {lines}{more}."
      )
