"""From the words of a command line to a dataclass of `arguments`."""

import contextlib
import dataclasses
import inspect
import io
import shutil
import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import OmitArgPrefixes, Positional

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ExtractConfig, Source
from oneshot_dp.configs.registry import experiment_names, load_config
from oneshot_dp.pipeline.commands.arguments import COMMANDS
from oneshot_dp.pipeline.commands.cache_arguments import Extract
from oneshot_dp.pipeline.shell import output_arguments
from oneshot_dp.pipeline.shell.complaints import did_you_mean, in_one_line
from oneshot_dp.pipeline.shell.flags import flags_in
from oneshot_dp.pipeline.shell.output_arguments import Output

PROG = "oneshot-dp"
_DESCRIPTION = (
  "Differentially private image classifiers: embed the images once with a\n"
  "frozen public backbone, then train private linear heads, one per epsilon."
)
_SOURCES = tuple(
  kind(
    **{
      field.name: field.name.upper()
      for field in dataclasses.fields(kind)
      if field.default is dataclasses.MISSING
    }
  )
  for kind in typing.get_args(Source)
)
"""One of each kind."""
_MARKERS = (tyro.conf.AvoidSubcommands, tyro.conf.FlagCreatePairsOff)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What a command line asks for.

  Attributes:
    command: one of the dataclasses of `arguments.COMMANDS`.
    beam_options: flags that are not ours, of `extract` only.
    output: how to say what comes of it.
  """

  command: Any
  beam_options: tuple[str, ...] = ()
  output: Output = output_arguments.DEFAULT


def parse(argv: Sequence[str]) -> Request:
  """The request that a command line makes.

  Raises:
    InputError: the command line makes no sense; one line.
    SystemExit: 0, after --help.
  """
  if argv and argv[0] in ("-h", "--help"):
    print(overview())
    raise SystemExit(0)
  name = _command_name(argv)
  words = argv[len(name.split()) :]
  if name == "extract":
    return _parse_extract(words)
  line = _run_tyro(name, line_type(COMMANDS[name]), words)
  return Request(command=line.command, output=line.output)


def overview() -> str:
  """The help of all commands, a line for each."""
  width = max(map(len, COMMANDS))
  columns = shutil.get_terminal_size().columns
  lines = (
    textwrap.fill(
      _first_line(kind),
      columns,
      initial_indent=f"  {name:<{width}}  ",
      subsequent_indent=" " * (width + 4),
    )
    for name, kind in COMMANDS.items()
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


def line_type(command: type) -> type:
  """A command and the flags that all commands have, for tyro."""
  line = dataclasses.make_dataclass(
    "Line",
    [
      ("command", Annotated[command, tyro.conf.arg(name="")]),
      ("output", OmitArgPrefixes[Output], output_arguments.DEFAULT),
    ],
    frozen=True,
    kw_only=True,
  )
  line.__doc__ = inspect.cleandoc(command.__doc__ or "")
  return line


def _first_line(command: type) -> str:
  return inspect.cleandoc(command.__doc__ or "").splitlines()[0]


def _command_name(argv: Sequence[str]) -> str:
  """The longest name of a command that the words begin with."""
  for length in (2, 1):
    name = " ".join(argv[:length])
    if len(argv) >= length and name in COMMANDS:
      return name
  if not argv:
    raise InputError(f"Missing subcommand: one of {', '.join(COMMANDS)}.")
  word = argv[0]
  if word.startswith("-"):
    raise InputError(f"Missing subcommand: it comes first, before {word}.")
  hint = did_you_mean(word, COMMANDS) or f"there are {', '.join(COMMANDS)}."
  raise InputError(f"Unrecognized options: {word}; {hint}")


def _run_tyro(name: str, line: Any, words: Sequence[str], **more: Any) -> Any:
  """tyro.cli, whose framed complaints become one line.

  Raises:
    InputError: the complaint.
    SystemExit: 0, after --help.
  """
  prog, complaint = f"{PROG} {name}", io.StringIO()
  try:
    with contextlib.redirect_stderr(complaint):
      return tyro.cli(line, prog=prog, args=words, **more)
  except SystemExit as stop:
    if not stop.code:
      raise
    box = complaint.getvalue()
  raise InputError(in_one_line(box, prog, lambda: flags_of(name)))


def flags_of(name: str) -> dict[str, list[str] | None]:
  """All flags of a command; see `flags_in`."""
  return flags_in(help_of(name))


def help_of(name: str) -> str:
  """The help of a command, with all of its flags.

  Of `extract`, which shows those of one kind of source, the help of all kinds.
  """
  if name != "extract":
    return _help(line_type(COMMANDS[name]))
  configs = (ExtractConfig(source=source) for source in _SOURCES)
  return "\n".join(_help(extract_line(c), config=_MARKERS) for c in configs)


def _help(line: Any, **more: Any) -> str:
  shown = io.StringIO()
  with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
    tyro.cli(line, prog=PROG, args=["--help"], **more)
  return shown.getvalue()


def _parse_extract(words: Sequence[str]) -> Request:
  """`extract`: the experiment gives the defaults of the flags after it."""
  named = bool(words) and not words[0].startswith("-")
  defaults = (
    load_config(words[0]) if named else ExtractConfig(source=_SOURCES[0])
  )
  line, unknown = _run_tyro(
    "extract",
    extract_line(defaults),
    words,
    description=f"{inspect.cleandoc(Extract.__doc__ or '')}\n\n"
    f"Experiments: {', '.join(experiment_names())}.",
    return_unknown_args=True,
    config=_MARKERS,
  )
  command, output = line
  if not named:
    raise InputError(
      f"CONFIG comes first: oneshot-dp extract {command.config} --out ..."
    )
  _refuse_stray_words(unknown)
  return Request(command=command, beam_options=tuple(unknown), output=output)


def extract_line(defaults: ExtractConfig) -> Any:
  """The flags of `extract`, for tyro: those of a config, and our own."""

  def extract(
    config: Annotated[
      Positional[str],
      tyro.conf.arg(metavar="CONFIG", help="Experiment name or Python file."),
    ],
    out: Annotated[Path, tyro.conf.arg(help="Directory of the cache.")],
    # No prefix: `--split`, `--backbone.weights`.
    job: Annotated[ExtractConfig, tyro.conf.arg(name="")] = defaults,
    output: OmitArgPrefixes[Output] = output_arguments.DEFAULT,
  ) -> tuple[Extract, Output]:
    return Extract(config=config, out=out, job=job), output

  return extract


def _refuse_stray_words(beam_flags: Sequence[str]) -> None:
  """Beam takes flags and their values only."""
  takes_value = False
  for word in beam_flags:
    if not word.startswith("-") and not takes_value:
      raise InputError(
        f"{word!r} is one word too many: extract takes one CONFIG, then flags."
      )
    takes_value = word.startswith("-") and "=" not in word
