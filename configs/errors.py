"""Errors that a person can mend; the command line prints them as one line.

Everything else that escapes is a bug in oneshot-dp and keeps its traceback.
"""

import unicodedata


class InputError(ValueError):
  """What was asked cannot be done: the value, the place, the fix; exit 2."""


class BrokenImageError(InputError):
  """An image cannot be decoded; others may be broken, too."""


class RunError(RuntimeError):
  """The request was sound, the run failed (disk, worker, data loss); exit 1."""


_MOST_CLASSES = 1_000_000
"""More are taken for a slip of the pen: each takes a row of every head."""
_LONGEST_NAME = 1000
_FORGES_LINES = ("Cc", "Cs", "Zl", "Zp")  # control, no UTF-8, line breaks
_TURNS_ROUND = {*map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A)))}


def check_name(place: str, name: object) -> None:
  """Refuses what is no name: blank, very long, no text, control characters."""
  if not (isinstance(name, str) and name.strip()):
    raise InputError(f"{place}={name!a} must be a name, and not blank.")
  if len(name) > _LONGEST_NAME:
    raise InputError(f"{place} has {len(name)} characters; shorten it.")
  if any(map(_forges, name)):
    raise InputError(
      f"{place}={name!a} has control characters, or is no UTF-8; mend it."
    )


def escaped(text: str, but: str = "\t\n") -> str:
  """What a terminal shows of a text, whatever file it came from.

  Where it is a name, and not lines, `but` must be "".
  """
  if text.isprintable():  # without a look at each character
    return text
  return "".join(
    ascii(c)[1:-1] if c not in but and _forges(c) else c for c in text
  )


def one_line(error: BaseException) -> str:
  """What an error of somebody else's says, on part of a line."""
  said = escaped(" ".join(str(error).split())[:200]).rstrip(".")
  return said or type(error).__name__


def _forges(c: str) -> bool:
  return c in _TURNS_ROUND or unicodedata.category(c) in _FORGES_LINES


def check_num_classes(num_classes: int, place: str) -> None:
  """Refuses more classes than anybody has, before memory is asked for."""
  if num_classes > _MOST_CLASSES:
    raise InputError(
      f"{place} makes {num_classes} classes: there are {_MOST_CLASSES} at most."
    )


def check_positive(name: str, value: int | None) -> None:
  """Refuses a number below 1; None is a setting that is not given."""
  if value is not None and value < 1:
    raise InputError(f"{name}={value} must be at least 1.")
