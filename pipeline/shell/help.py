"""The help of a command: wrapped once, its advanced flags folded."""

import dataclasses
import fnmatch
import functools
import inspect
import re
import shutil
import textwrap
import warnings
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple, Self

import tyro
from tyro.conf import OmitArgPrefixes

from oneshot_dp.pipeline.shell.terminal import Output

PROG = "oneshot-dp"
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
FROM_DOCSTRINGS = (tyro.conf.HelptextFromCommentsOff,)
"""What keeps tyro from reading the source of our classes for help."""
_ADVANCED = (
  *("--max-rows-per-unit", "--l2-clip-norm", "--initial-bias", "--train-bias"),
  *("--learning-rate", "--eps", "--eps-in-noise-sds", "--steps.*", "--release"),
  *("--neighboring-relation", "--large-delta", "--noise-seed", "--public-*"),
  *("--views", "--view-min-area", "--batch-size", "--embedding-dtype"),
  *("--shard-rows", "--decode-threads", "--stall-seconds", "--preprocess.*"),
  *("--backbone.weights-sha256", "--backbone.embedding"),
  *("--backbone.compute-dtype", "--hosts"),
)
"""Flags that only --help-all shows; a flag that must be given always shows."""
_FEW = 18
"""Flags of a command of which none is folded."""
_DESCRIPTION = (
  "Differentially private image classifiers: embed the images once with a"
  " frozen public backbone, then train private linear heads, one per epsilon."
)
_EVERYBODY_NEEDS = 6
"""Commands; the first of them all."""
_CHOICE = re.compile(r"[\[{]*\{([\w,-]+)\}(?= |$)")
_SHOWS_ANYWAY = r"\s?\((required|default: (None|False))\)"
_COLUMN = 24
_WIDEST = 100


class _Flag(NamedTuple):
  """A flag, as it is typed with what may follow it, and its help."""

  names: list[str]
  typed: str
  text: str
  is_required: bool
  choices: list[str] | None

  @classmethod
  def of(cls, action: Any) -> Self:
    """The flag of a parser's action, of argparse or of what tyro made of it."""
    values = str(action.metavar or "")
    values = values.replace("{None}|", "").replace("{None,", "{")
    text = re.sub(_SHOWS_ANYWAY, "", (action.help or "").replace("%%", "%"))
    choice = _CHOICE.match(values) if action.choices else None
    return cls(
      names=[name for name in action.option_strings if name.startswith("--")],
      typed=", ".join(
        f"{name} {values}".strip() for name in action.option_strings or [""]
      ),
      text=" ".join(text.split()),
      is_required=action.required,
      choices=choice[1].split(",") if choice else None,
    )

  @property
  def is_folded(self) -> bool:
    name = self.names[0] if self.names else ""
    advanced = any(fnmatch.fnmatch(name, each) for each in _ADVANCED)
    return advanced and not self.is_required


@dataclasses.dataclass(kw_only=True)
class _Group:
  """Flags with one prefix (--source.…), or all without one."""

  title: str
  about: str = ""
  flags: list[_Flag] = dataclasses.field(default_factory=list)


def overview(commands: Mapping[str, Any]) -> str:
  """The help of all commands, a line for each."""
  width = max(map(len, commands)) + 4
  lines = [
    _fill(doc_of(each.Flags).splitlines()[0], f"  {name}".ljust(width), width)
    for name, each in commands.items()
  ]
  return "\n".join(
    [
      f"usage: {PROG} COMMAND …",
      *("", _fill(_DESCRIPTION), ""),
      *("what everybody needs:", *lines[:_EVERYBODY_NEEDS], ""),
      *("and:", *lines[_EVERYBODY_NEEDS:], ""),
      f"{PROG} COMMAND --help says more about one of them, with an example.",
      "Every command takes --json (one JSON object on standard output) and",
      "--quiet (no progress, no notes).",
    ]
  )


def help_text(name: str, kind: type, *, everything: bool) -> str:
  """The help of a command whose flags `kind` has."""
  prog, groups = f"{PROG} {name}", _groups(kind)
  flags = [flag for group in groups for flag in group.flags]
  folds = not everything and len(flags) > _FEW
  required = [flag for flag in flags if flag.is_required]
  usage = " ".join([*(flag.typed for flag in required), "[OPTIONS]"])
  lines = [_fill(usage, f"usage: {prog} ", 7), "", *_paragraphs(doc_of(kind))]
  for group in [_Group(title="required", flags=required), *groups]:
    shown = [
      flag
      for flag in group.flags
      if group.title == "required"
      or not (flag.is_required or (folds and flag.is_folded))
    ]
    if shown:
      lines += ["", f"{group.title}:", *_paragraphs(group.about, "  ")]
      lines += map(_entry, shown)
  if hidden := sum(folds and flag.is_folded for flag in flags):
    lines += ["", f"{hidden} flags more, for experts: {prog} {HELP_ALL}"]
  return "\n".join(lines)


def listed_flags(kinds: Iterable[type]) -> dict[str, list[str] | None]:
  """Flag → the words that may follow it; None where that is not a choice."""
  return {
    name: flag.choices
    for kind in kinds
    for group in _groups(kind)
    for flag in group.flags
    for name in flag.names
  }


@functools.lru_cache(maxsize=64)  # tyro reads the source of each new class
def line_of(kind: type) -> type:
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
  line.__doc__ = doc_of(kind)
  return line


def doc_of(kind: type) -> str:
  """The docstring of a command's flags, which is its help."""
  return inspect.cleandoc(kind.__doc__ or "")


@functools.lru_cache(maxsize=64)
def _groups(kind: type) -> list[_Group]:
  with warnings.catch_warnings():
    # tyro has no other way to say what the flags are, but for printed help.
    warnings.simplefilter("ignore", DeprecationWarning)
    parser = tyro.extras.get_parser(line_of(kind), config=FROM_DOCSTRINGS)
  groups = [_Group(title="options")]
  for found in parser._action_groups:
    flags = list(map(_Flag.of, found._group_actions))
    if flags and all("." in flag.typed for flag in flags):
      about = found.description or ""
      groups.append(_Group(title=found.title or "", about=about, flags=flags))
    else:
      groups[0].flags += flags
  return groups


def _entry(flag: _Flag) -> str:
  """The lines of a flag: its help beside its name, or below a long one."""
  start = f"  {flag.typed}  ".ljust(_COLUMN)
  if not flag.text:
    return start.rstrip()
  if len(start) > _COLUMN:
    return f"{start.rstrip()}\n{_fill(flag.text, ' ' * _COLUMN, _COLUMN)}"
  return _fill(flag.text, start, _COLUMN)


def _paragraphs(text: str, indent: str = "") -> list[str]:
  """Wrapped, but for examples, which are to be copied."""
  lines: list[str] = []
  for paragraph in filter(None, map(str.split, text.split("\n\n"))):
    said = " ".join(paragraph)
    is_example = said.startswith("Example: ")
    lines += ["", indent + said if is_example else _fill(said, indent, indent)]
  return lines[1:]


def _fill(text: str, start: str = "", indent: int | str = "") -> str:
  return textwrap.fill(
    text,
    min(shutil.get_terminal_size().columns, _WIDEST),
    initial_indent=start,
    subsequent_indent=indent if isinstance(indent, str) else " " * indent,
    break_on_hyphens=False,
    break_long_words=False,
  )
