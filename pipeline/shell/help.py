"""The help of a command: wrapped once, its advanced flags folded."""

import contextlib
import dataclasses
import fnmatch
import inspect
import io
import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Annotated, Any
from unittest import mock

import tyro
from tyro.conf import OmitArgPrefixes

from oneshot_dp.pipeline.shell.terminal import Output

PROG = "oneshot-dp"
HELP, HELP_ALL = ("-h", "--help"), "--help-all"
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
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_CHOICE = re.compile(r"[\w-] [\[{]*\{([\w,-]+)\}(?= |$)")
_REQUIRED = "(required)"
_COLUMN = 24
_WIDEST = 100


@dataclasses.dataclass(kw_only=True)
class _Flag:
  """A flag as it is typed, with what may follow it, and its help."""

  typed: str
  text: str

  @property
  def names(self) -> list[str]:
    return _FLAG.findall(self.typed.partition(" {")[0])

  @property
  def is_required(self) -> bool:
    return self.text.endswith(_REQUIRED)

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
      "--quiet (no progress bars, no notes).",
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
  found: dict[str, list[str] | None] = {}
  for kind in kinds:
    for flag in (flag for group in _groups(kind) for flag in group.flags):
      choice = _CHOICE.search(flag.typed)
      for name in flag.names:
        found[name] = choice[1].split(",") if choice else None
  return found


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


def _groups(kind: type) -> list[_Group]:
  """Reads tyro's frames, which are below each other where columns are few."""
  shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
  with (
    mock.patch.dict(os.environ, COLUMNS="128"),
    contextlib.redirect_stdout(shown),
    contextlib.suppress(SystemExit),
  ):
    tyro.cli(line_of(kind), prog=PROG, args=["--help"])
  shown.seek(0)
  groups = [_Group(title="options")]
  for frame in re.findall(r"^╭(.*?)^╰", shown.read(), re.M | re.S):
    title, *lines = frame.splitlines()
    said = "\n".join(line.strip("│").rstrip()[1:] for line in lines)
    about, _, rest = said.rpartition(f"\n{'─' * 9}")
    group = _Group(title=title.strip("╭─╮ "), about=about)
    for line in rest.splitlines():
      typed, _, text = line.partition("  ")
      if typed and typed[0] != "─":
        typed = typed.replace("{None}|", "").replace("{None,", "{")
        group.flags.append(_Flag(typed=typed, text=text.strip()))
      elif text:
        group.flags[-1].text += f" {text.strip()}"
    if any("." in flag.typed for flag in group.flags):
      groups.append(group)
    else:
      groups[0].flags += group.flags
  return groups


def _entry(flag: _Flag) -> str:
  """The lines of a flag: its help beside its name, or below a long one."""
  text = " ".join(flag.text.removesuffix(_REQUIRED).split())
  text = re.sub(r" ?\(default: (?:None|False)\)", "", text)
  start = f"  {flag.typed}  ".ljust(_COLUMN)
  if not text:
    return start.rstrip()
  if len(start) > _COLUMN:
    return f"{start.rstrip()}\n{_fill(text, ' ' * _COLUMN, _COLUMN)}"
  return _fill(text, start, _COLUMN)


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
