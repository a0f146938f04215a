"""What is wrong with a command line, in one short line."""

import difflib
import re
from collections.abc import Callable, Container, Iterable

from oneshot_dp.configs.head_config import ADD_OR_REMOVE_ONE_IS_NO_MORE

_CLOSE = 0.7
_NO_MORE = {"add-or-remove-one": f"{ADD_OR_REMOVE_ONE_IS_NO_MORE};"}
"""Choices that there were, and what to choose now."""
_RULE = re.compile(r"[─-]{3}")
_UNRECOGNIZED = "Unrecognized options:"
_FLAG = re.compile(r"--[A-Za-z][\w.-]*")
_FIELD = re.compile(
  r"(?<!in Python )(?<![\w./'\"-])([a-z]\w*(?:\.\w+)*)(=True\b|=)?"
)
_OF_SECTION = re.compile(r"^Error parsing flags\.(?:\w+\.)?(\w+): (?=\w+=)")


def did_you_mean(word: str, known: Iterable[str]) -> str:
  """A question with the nearest known word, or nothing."""
  near = difflib.get_close_matches(word, list(known), n=1, cutoff=_CLOSE)
  return f"did you mean {near[0]}?" if near else ""


def as_typed(message: str, known_flags: Callable[[], Container[str]]) -> str:
  """With the flag in place of a field of its name: --num-draws=0.

  `known_flags` are the command's, asked for only if there may be one.
  """

  def flag(found: re.Match[str]) -> str:
    field, value = found.groups(default="")
    typed = f"--{field.replace('_', '-')}"
    if not (value or {*"._"} & {*field}) or typed not in known_flags():
      return found[0]
    return typed + ("" if value == "=True" else value)

  return _FIELD.sub(flag, message)


def in_one_line(
  box: str, prog: str, known_flags: Callable[[], Iterable[str]]
) -> str:
  """A framed message of tyro's, without its frame and the help of each flag.

  `known_flags` are the command's, asked for only if there is an unknown one.
  """
  said: list[str] = []
  of_a_flag = False
  for line in box.splitlines()[1:]:  # the first is its title
    if _RULE.search(line):
      continue
    # Where a terminal has no lines to draw, the frame is of spaces.
    text = re.sub(r"^[│| ] ?|[│|]$", "", line).rstrip()
    if text.startswith(("For full helptext", "Argument helptext")):
      break
    # Deeper lines are the help of what was named above them. A flag needs none;
    # the name of a word without a flag (CONFIG) says little by itself.
    is_help = text.startswith(" " * 5)
    if text and not (is_help and of_a_flag):
      said.append(text.lstrip(" •"))
    if not is_help:
      of_a_flag = text.lstrip(" •").startswith("-")
  message = " ".join(" ".join(said).split()).replace("{None}|", "")
  # tyro complains of what is missing first, in a paragraph of its own.
  message = message.replace(f" {_UNRECOGNIZED}", f". {_UNRECOGNIZED}")
  message = _OF_SECTION.sub(r"\1.", message)
  # Its guesses come with the help of each flag, and not always; ours are below.
  message = message.partition(" Perhaps you meant:")[0]
  unknown = _FLAG.findall(message.partition(_UNRECOGNIZED)[2])
  guesses = [did_you_mean(flag, known_flags()) for flag in unknown]
  hints = [*filter(None, guesses)]
  hints += [hint for choice, hint in _NO_MORE.items() if choice in message]
  return " ".join([f"{message.rstrip('.')};", *hints, f"see {prog} --help"])
