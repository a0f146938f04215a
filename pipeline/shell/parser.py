"""From the words of a command line to the flags of a command."""

import contextlib
import dataclasses
import inspect
import io
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.shell.complaints import did_you_mean, in_one_line
from oneshot_dp.pipeline.shell.terminal import Output

PROG = "oneshot-dp"
_DESCRIPTION = (
  "Differentially private image classifiers: embed the images once with a\n"
  "frozen public backbone, then train private linear heads, one per epsilon."
)
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_LISTED = re.compile(
  r"[│| ] (?P<flags>(?:-\w, )?--[A-Za-z][\w.-]*(?:, --[\w.-]+)*)"
  r"(?: \[?\{(?P<allowed>[\w,-]+)\}(?= |$))?"
)
"""A line in one of tyro's frames, which may be of spaces: the names of a flag,
and the words that may follow it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """The module of a command, its `Flags`, and how to say what comes of it."""

  command: Any
  flags: Any
  output: Output


def parse(argv: Sequence[str], commands: Mapping[str, Any]) -> Request:
  """Reads a command line.

  Raises:
    InputError: the command line makes no sense; one line.
    SystemExit: 0, after --help.
  """
  if argv and argv[0] in ("-h", "--help"):
    print(overview(commands))
    raise SystemExit(0)
  name = _command_name(argv, commands)
  command, words = commands[name], argv[len(name.split()) :]
  kind = command.Flags
  if named_flags := getattr(command, "named_flags", None):
    kind = named_flags(words)
  line, unknown = _read(name, command, kind, words)
  flags = line.flags
  if unknown:
    flags = dataclasses.replace(flags, beam_options=tuple(unknown))
  return Request(command=command, flags=flags, output=line.output)


def overview(commands: Mapping[str, Any]) -> str:
  """The help of all commands, a line for each."""
  width = max(map(len, commands))
  columns = shutil.get_terminal_size().columns
  lines = (
    textwrap.fill(
      _doc(command.Flags).splitlines()[0],
      columns,
      initial_indent=f"  {name:<{width}}  ",
      subsequent_indent=" " * (width + 4),
    )
    for name, command in commands.items()
  )
  return "\n".join(
    [
      f"usage: {PROG} COMMAND …",
      "",
      _DESCRIPTION,
      "",
      "commands:",
      *lines,
      "",
      f"{PROG} COMMAND --help says all about one of them, with an example.",
      "Every command takes --json (one JSON object on standard output) and",
      "--quiet (no progress bars, no notes).",
    ]
  )


def flags_of(command: Any) -> dict[str, list[str] | None]:
  """All flags of a command; see `listed_flags`."""
  kinds = getattr(command, "all_flags", lambda: [command.Flags])()
  return listed_flags(kinds)


def listed_flags(kinds: Iterable[type]) -> dict[str, list[str] | None]:
  """Flag → the words that may follow it; None where that is not a choice."""
  found: dict[str, list[str] | None] = {}
  for line in "\n".join(map(_help, kinds)).splitlines():
    if listed := _LISTED.match(line):
      allowed = listed["allowed"]
      for flag in _FLAG.findall(listed["flags"]):
        found[flag] = allowed.split(",") if allowed else None
  return found


def _command_name(argv: Sequence[str], commands: Mapping[str, Any]) -> str:
  """The longest name of a command that the words begin with."""
  for length in (2, 1):
    name = " ".join(argv[:length])
    if len(argv) >= length and name in commands:
      return name
  if not argv:
    raise InputError(f"Missing subcommand: one of {', '.join(commands)}.")
  word = argv[0]
  if word.startswith("-"):
    raise InputError(f"Missing subcommand: it comes first, before {word}.")
  hint = did_you_mean(word, commands) or f"there are {', '.join(commands)}."
  raise InputError(f"Unrecognized options: {word}; {hint}")


def _read(
  name: str, command: Any, kind: type, words: Sequence[str]
) -> tuple[Any, list[str]]:
  """Flags, and words that are none where the command takes such.

  tyro's framed complaints become one line.
  """
  prog, complaint = f"{PROG} {name}", io.StringIO()
  takes_others = hasattr(kind, "beam_options")
  try:
    with contextlib.redirect_stderr(complaint):
      found: Any = tyro.cli(
        _line(kind), prog=prog, args=words, return_unknown_args=takes_others
      )
    return found if takes_others else (found, [])
  except SystemExit as stop:
    if not stop.code:
      raise
  raise InputError(
    in_one_line(complaint.getvalue(), prog, lambda: flags_of(command))
  )


def _help(kind: type) -> str:
  shown = io.StringIO()
  with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
    tyro.cli(_line(kind), prog=PROG, args=["--help"])
  return shown.getvalue()


def _line(kind: type) -> type:
  """The flags of a command and those that all commands have, for tyro."""
  line = dataclasses.make_dataclass(
    "Line",
    [
      ("flags", Annotated[kind, tyro.conf.arg(name="")]),
      ("output", OmitArgPrefixes[Output], Output()),
    ],
    frozen=True,
    kw_only=True,
  )
  line.__doc__ = _doc(kind)
  return line


def _doc(kind: type) -> str:
  return inspect.cleandoc(kind.__doc__ or "")
