"""From the words of a command line to the flags of a command."""

import contextlib
import dataclasses
import functools
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tyro

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.shell.complaints import (
  as_typed,
  did_you_mean,
  in_one_line,
)
from oneshot_dp.pipeline.shell.help import (
  FROM_DOCSTRINGS,
  HELP,
  HELP_ALL,
  PROG,
  help_text,
  line_of,
  listed_flags,
  overview,
)
from oneshot_dp.pipeline.shell.terminal import Output


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """The module of a command, its `Flags`, and how to say what comes of it."""

  command: Any
  flags: Any
  output: Output

  def answer(self) -> Any:
    """What the command found; what it refuses has the names that were typed."""
    with _names_as_typed(self.command):
      return self.command.run(self.flags)


def parse(argv: Sequence[str], commands: Mapping[str, Any]) -> Request:
  """Reads a command line; one line of InputError if it makes no sense.

  SystemExit: 0, after --help, or where nothing is asked.
  """
  if argv and argv[0] == "help":
    argv = [*argv[1:], "--help"]
  if not argv or argv[0] in HELP:
    print(overview(commands))
    raise SystemExit(0)
  name = _command_name(argv, commands)
  command, words = commands[name], argv[len(name.split()) :]
  kind = command.Flags
  if named_flags := getattr(command, "named_flags", None):
    kind = named_flags(words)
  if asked := {*HELP, HELP_ALL}.intersection(words):
    print(help_text(name, kind, everything=HELP_ALL in asked))
    raise SystemExit(0)
  with _names_as_typed(command):
    line, unknown = _read(name, command, kind, words)
  flags = line.flags
  if unknown:
    flags = dataclasses.replace(flags, beam_options=tuple(unknown))
  return Request(command=command, flags=flags, output=line.output)


def flags_of(command: Any) -> dict[str, list[str] | None]:
  """All flags of a command; see `listed_flags`."""
  kinds = getattr(command, "all_flags", lambda: [command.Flags])()
  return listed_flags(kinds)


def _command_name(argv: Sequence[str], commands: Mapping[str, Any]) -> str:
  """The longest name of a command that the words begin with."""
  for length in (2, 1):
    name = " ".join(argv[:length])
    if len(argv) >= length and name in commands:
      return name
  word = argv[0]
  if word.startswith("-"):
    raise InputError(f"Missing subcommand: it comes first, before {word}.")
  if word == "recover":
    raise InputError(
      "there is no command recover any more: run the command that failed again,"
      " with the same flags and --out; it goes on with what is paid for."
    )
  hint = did_you_mean(word, commands) or f"there are {', '.join(commands)}."
  raise InputError(f"there is no command {word}; {hint}")


def _read(
  name: str, command: Any, kind: type, words: Sequence[str]
) -> tuple[Any, list[str]]:
  """Flags, and words that are none where the command takes such."""
  prog, complaint = f"{PROG} {name}", io.StringIO()
  takes_others = hasattr(kind, "beam_options")
  try:
    with contextlib.redirect_stderr(complaint):
      found: Any = tyro.cli(
        line_of(kind),
        prog=prog,
        args=words,
        return_unknown_args=takes_others,
        config=FROM_DOCSTRINGS,
      )
    return found if takes_others else (found, [])
  except SystemExit as stop:
    if not stop.code:
      raise
  raise InputError(
    in_one_line(complaint.getvalue(), prog, lambda: flags_of(command))
  )


@contextlib.contextmanager
def _names_as_typed(command: Any) -> Iterator[None]:
  """Flags in place of fields in what the block refuses."""
  try:
    yield
  except InputError as error:
    flags = functools.cache(lambda: flags_of(command))
    raise type(error)(as_typed(str(error), flags)) from error
