"""Reads the flags of a command, and writes its help, as its `Flags` declare.

argparse splits the words and lays out the help. Values are converted and
missing flags are found here, so that every complaint is one line in one voice.
No word is dropped: what is not a flag, its value or a positional argument of
the command is refused, or goes to Beam if Beam knows it.
"""

import argparse
import dataclasses
import difflib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline import PROGRAM
from oneshot_dp.pipeline.commands import FLAG, CommandFlags, Flag

F = TypeVar("F", bound=CommandFlags)
_JSON = Flag(help="Print the answer as one JSON object.")
_NO_DEFAULT_SHOWN = (None, False, "", ())


@dataclasses.dataclass(frozen=True)
class _Argument:
  """A flag or positional argument of a command.

  Attributes:
    field: the name of the field of `Flags`.
    flag: how it was declared.
    default: the value if it is left out.
    is_required: whether it must be given.
  """

  field: str
  flag: Flag
  default: Any
  is_required: bool

  @property
  def option(self) -> str:
    """What is typed, such as "--num-classes"."""
    name = self.flag.name or self.field.replace("_", "-")
    return f"--{name}"

  @property
  def usage(self) -> str:
    """What is typed, and the form of its value."""
    if self.flag.positional:
      return self.flag.form
    return f"{self.option} {self.flag.form}".strip()

  @property
  def help(self) -> str:
    """The help, with the default where that says something."""
    text = self.flag.help
    if self.default not in _NO_DEFAULT_SHOWN and "default" not in text:
      shown = self.default
      if self.flag.several:
        shown = " ".join(map(str, shown))
      text = f"{text.removesuffix('.')} (default: {shown})."
    return text.replace("%", "%%")  # argparse formats it

  def convert(self, word: str) -> Any:
    """Returns the value of a word; InputError: it has none."""
    if self.flag.choices and word not in self.flag.choices:
      reason = f"is not one of {', '.join(self.flag.choices)}"
      similar = difflib.get_close_matches(word.lower(), self.flag.choices, n=1)
      question = f"did you mean {similar[0]}?" if similar else ""
      self._refuse(word, reason, question)
    try:
      return self.flag.parse(word)
    except InputError:  # it says what is wrong with the word
      raise
    except ValueError:
      kind = "an integer" if self.flag.parse is int else "a number"
      self._refuse(word, f"is not {kind}")

  def _refuse(self, word: str, reason: str, question: str = "") -> NoReturn:
    line = f"{self.option} {word[:80]!a} {reason}"
    if question:
      raise InputError(f"{line}: {question}")
    if self.flag.hint:
      line = f"{line}: {self.flag.hint}"
    raise InputError(f"{line}.")


class _Parser(argparse.ArgumentParser):
  """Raises InputError where argparse would print its usage and exit."""

  def error(self, message: str) -> NoReturn:
    raise InputError(
      f"{message.removeprefix('argument ')}; see {self.prog} --help."
    )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
  """Lays out the help as argparse does, but breaks no word at a hyphen."""

  def _split_lines(self, text: str, width: int) -> list[str]:
    # argparse would write `--private-` on one line and `eval` on the next:
    # then the flag is neither found nor copied.
    words = " ".join(text.split())
    return textwrap.wrap(words, width, break_on_hyphens=False)


class _StoreOnce(argparse.Action):
  """Stores the values of a flag, and refuses the flag a second time."""

  def __call__(
    self,
    parser: argparse.ArgumentParser,
    namespace: argparse.Namespace,
    values: Any,
    option_string: str | None = None,
  ) -> None:
    # argparse keeps the last of two values without a word: of two budgets one
    # would be lost.
    given = vars(namespace)
    if self.dest in given:
      raise InputError(f"{option_string} is given twice: give it once.")
    given[self.dest] = values


def read_flags(
  name: str, flags_type: type[F], words: Sequence[str]
) -> tuple[F, bool]:
  """Reads the words that follow a command's name.

  Args:
    name: the command's name.
    flags_type: its `Flags`.
    words: what was typed after the name.

  Returns:
    The flags, and whether the answer is to be printed as JSON.

  Raises:
    InputError: a word is not known, given twice, or has no value; or something
      that is required is missing.
  """
  arguments = _arguments_of(flags_type)
  # Positional words are not argparse's: it would split a list of them where a
  # flag stands between, and it knows nothing of Beam's flags.
  parser = _new_parser(name)
  for argument in arguments:
    if not argument.flag.positional:
      _add_option(parser, argument, action=_StoreOnce)
  parser.add_argument("--json", nargs=0, action=_StoreOnce)
  words, literal_words = _split_at_dashes(words)
  namespace, others = parser.parse_known_args(
    _with_dashes(words, arguments), argparse.Namespace()
  )
  given = vars(namespace)

  # What is left over is positional, Beam's, or a mistake.
  beam_options, others = flags_type.split_beam_options(others)
  for word in others:
    if word.startswith("-") and len(word) > 1:
      raise InputError(_unknown_flag(name, word, arguments))
  others = [*others, *literal_words]
  as_json = "json" in given
  # Values are converted in the order of the declaration, so that the first
  # mistake that is told does not depend on the order of typing.
  values: dict[str, Any] = {}
  for argument in arguments:
    if argument.flag.positional:
      others = _take_positional(argument, others, values)
    elif argument.field in given:
      values[argument.field] = _value_of(argument, given[argument.field])
  if others:
    raise InputError(
      f"{others[0][:80]!a} is one argument too many for {name}; see {PROGRAM}"
      f" {name} --help."
    )
  _check_required(name, arguments, values)
  if beam_options:
    values["beam_options"] = beam_options
  return flags_type(**values), as_json


def _check_required(
  name: str, arguments: Sequence[_Argument], values: Mapping[str, Any]
) -> None:
  missing = [
    argument.usage
    for argument in arguments
    if argument.is_required and argument.field not in values
  ]
  if missing:
    raise InputError(
      f"{name} needs {' '.join(missing)}; see {PROGRAM} {name} --help."
    )


def command_help(name: str, flags_type: type[CommandFlags]) -> str:
  """Returns the help of a command: what it does, its flags, and examples.

  Args:
    name: the command's name.
    flags_type: its `Flags`.
  """
  return command_parser(name, flags_type).format_help().rstrip()


def command_parser(
  name: str,
  flags_type: type[CommandFlags],
  parser: argparse.ArgumentParser | None = None,
) -> argparse.ArgumentParser:
  """Describes a command for argparse, for its help and for completion.

  Args:
    name: the command's name.
    flags_type: its `Flags`.
    parser: what to add the flags to; None makes a new one.
  """
  # The same declarations a second time, as argparse wants them for a help page:
  # `read_flags` reads words, this one is only printed or completed.
  if parser is None:
    parser = _new_parser(name)
  arguments = _arguments_of(flags_type)
  parser.usage = _usage_line(name, arguments)
  parser.description = _dedented(flags_type.__doc__ or "")
  lines = [f"  {example}" for example in flags_type.EXAMPLES]
  parser.epilog = "\n".join(["examples:", *lines]) if lines else None
  # Groups stand in the order in which their first flag is declared.
  groups: dict[str, Any] = {}
  for argument in arguments:
    title = argument.flag.group or "flags"
    if title not in groups:
      groups[title] = parser.add_argument_group(title)
    group = groups[title]
    if argument.flag.positional:
      nargs = "*" if argument.flag.several else None
      group.add_argument(
        argument.field,
        metavar=argument.flag.form,
        nargs=nargs,
        help=argument.help,
      )
    else:
      _add_option(group, argument, action="store")
  general = parser.add_argument_group("general")
  general.add_argument("--json", action="store_true", help=_JSON.help)
  general.add_argument(
    "-h", "--help", action="store_true", help="Show this help."
  )
  return parser


def _usage_line(name: str, arguments: Sequence[_Argument]) -> str:
  """The usage line: the arguments that are required."""
  words = [f"{PROGRAM} {name}"]
  for argument in arguments:
    if argument.is_required:
      several = " …" if argument.flag.several else ""
      words.append(f"{argument.usage}{several}")
  return " ".join([*words, "[flags]"])


def _new_parser(name: str) -> _Parser:
  return _Parser(
    prog=f"{PROGRAM} {name}",
    add_help=False,
    allow_abbrev=False,
    argument_default=argparse.SUPPRESS,
    formatter_class=_HelpFormatter,
  )


def _arguments_of(flags_type: type[CommandFlags]) -> list[_Argument]:
  """The arguments of a command, in the order of their declaration."""
  arguments = []
  for field in dataclasses.fields(flags_type):  # pyrefly: ignore[bad-argument-type]
    if FLAG not in field.metadata:
      continue
    is_required = field.default is dataclasses.MISSING
    arguments.append(
      _Argument(
        field=field.name,
        flag=field.metadata[FLAG],
        default=None if is_required else field.default,
        is_required=is_required,
      )
    )
  return arguments


def _add_option(parser: Any, argument: _Argument, *, action: Any) -> None:
  """Adds a flag to a parser or a group of one; its values stay words."""
  flag = argument.flag
  # A switch has no value. For help it is argparse's own; for reading it is
  # stored with no words, so that a second one is found.
  if not flag.form and action == "store":
    parser.add_argument(
      argument.option,
      dest=argument.field,
      action="store_true",
      help=argument.help,
    )
    return
  # Values stay words here, and for reading none is required: what is missing or
  # wrong is found by `read_flags`, in one voice.
  nargs: Any = None
  if not flag.form:
    nargs = 0
  elif flag.several:
    nargs = "*"
  parser.add_argument(
    argument.option,
    dest=argument.field,
    action=action,
    nargs=nargs,
    metavar=flag.form or None,
    help=argument.help,
    required=argument.is_required and action == "store",
  )


def _split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
  """Splits at "--", after which all words are positional."""
  if "--" not in words:
    return list(words), []
  at = words.index("--")
  return list(words[:at]), list(words[at + 1 :])


def _with_dashes(
  words: Sequence[str], arguments: Sequence[_Argument]
) -> list[str]:
  """Writes our flags with dashes where they were typed with underscores."""
  options = {argument.option for argument in arguments}
  changed = []
  for word in words:
    name, equals, value = word.partition("=")
    dashed = name.replace("_", "-")
    if dashed in options:
      changed.append(f"{dashed}{equals}{value}")
    else:
      changed.append(word)
  return changed


def _value_of(argument: _Argument, words: Any) -> Any:
  """Converts what argparse found of a flag."""
  if not argument.flag.form:
    return True
  if argument.flag.several:
    return tuple(argument.convert(word) for word in words)
  return argument.convert(words)


def _take_positional(
  argument: _Argument, words: list[str], values: dict[str, Any]
) -> list[str]:
  """Takes the words of a positional argument; returns those that are left."""
  if not words:
    return []
  if argument.flag.several:
    values[argument.field] = tuple(argument.convert(word) for word in words)
    return []
  values[argument.field] = argument.convert(words[0])
  return words[1:]


def _unknown_flag(name: str, word: str, arguments: Sequence[_Argument]) -> str:
  """Says that a flag does not exist, and which one may be meant."""
  flag, _, _ = word.partition("=")
  options = [
    argument.option for argument in arguments if not argument.flag.positional
  ]
  options.append("--json")
  typed = f"--{flag.lstrip('-').replace('_', '-')}"
  line = f"{flag[:80]!a} is not a flag of {name}"
  if typed in options:
    return f"{line}: flags begin with two dashes: {typed}."
  # A flag that was cut short is meant before one that was mistyped.
  longer = [option for option in options if option.startswith(typed)]
  similar = difflib.get_close_matches(typed, options, n=1, cutoff=0.7)
  candidates = [*longer, *similar]
  if candidates:
    line = f"{line}: did you mean {candidates[0]}?"
    return f"{line} See {PROGRAM} {name} --help."
  return f"{line}; see {PROGRAM} {name} --help."


def _dedented(docstring: str) -> str:
  """A docstring without the indentation of its lines."""
  first, *rest = docstring.strip().splitlines()
  return "\n".join([first, *(line.removeprefix("  ") for line in rest)])
