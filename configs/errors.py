"""Errors that a person can fix, and names as a person reads them.

The command line prints each error as one line.

Everything else that escapes is a bug in oneshot-dp and keeps its traceback.
"""

import re
import unicodedata
from collections.abc import Iterable


class InputError(ValueError):
  """The request cannot be carried out: the value, the place, the fix.

  The exit status is 2.
  """


class BrokenImageError(InputError):
  """An image cannot be decoded; others may be broken, too."""


class RunError(RuntimeError):
  """The request was sound, but the run failed (disk, worker, data loss).

  The exit status is 1.
  """


_MAX_CLASSES = 1_000_000
"""A larger number is taken for a typing error: each class costs memory."""
_MAX_NAME_CHARACTERS = 1000
_MAX_LINE_CHARACTERS = 200
_WHOLE_NUMBER = re.compile(r"0*([0-9]+)(?:\.0*)?")
_SHAPELESS = ("Cc", "Cf")  # categories of Unicode: a NUL, a zero-width space
_BETWEEN_WORDS = re.compile(r"(?<=[^\W_])[\s_-]+(?=[^\W_])|\s+")
# Characters with which a name could forge a line of output, by their Unicode
# category: controls, surrogates (invalid UTF-8), line and paragraph separators.
_FORGING_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
# Those that turn the direction of the text around them.
_BIDI_CONTROLS = {
  *map(chr, range(0x202A, 0x202F)),
  *map(chr, range(0x2066, 0x206A)),
}


def check_name(place: str, name: object) -> None:
  """Checks that a value can be printed as a name.

  Args:
    place: what is named, for the message.
    name: the value, which may come from a file.

  Raises:
    InputError: the value is not a string, is blank or very long, or has
      characters that could forge a line of output.
  """
  if not isinstance(name, str) or not name.strip():
    raise InputError(f"{place}={name!a} must be a non-empty string.")
  if len(name) > _MAX_NAME_CHARACTERS:
    raise InputError(f"{place} has {len(name)} characters; shorten it.")
  if any(_can_forge_lines(character) for character in name):
    raise InputError(
      f"{place}={name!a} contains control characters or invalid UTF-8; remove"
      " them."
    )


def escaped(text: str, but: str = "\t\n") -> str:
  """Text as a terminal may show it, whatever file it came from.

  Args:
    text: text from outside.
    but: characters to keep as they are; must be "" where the text is a name,
      which has no lines.

  Returns:
    The text, with the others written as Python writes them in a string.
  """
  if text.isprintable():  # without a look at each character
    return text
  shown = []
  # Escaped and not dropped: two names that differ by such a character alone
  # must not look alike.
  for character in text:
    if character not in but and _can_forge_lines(character):
      shown.append(ascii(character)[1:-1])
    else:
      shown.append(character)
  return "".join(shown)


def canonical_spelling(name: str) -> str:
  """What is left of a name without what a person overlooks in it.

  That is capitals, spaces beside others, characters without a shape, the form
  of Unicode (an é is one character or two, by the machine that wrote it), how
  a whole number is written, and which sign stands between two words.

  >>> canonical_spelling("Big  Cat"), canonical_spelling("007.0")
  ('big cat', '7')
  >>> canonical_spelling("P_1"), canonical_spelling("P - 1")
  ('p 1', 'p 1')
  """
  # Names of owners may be millions, and nearly all are ASCII, of which all
  # forms of Unicode are one.
  text = name
  if not (name.isascii() and name.isprintable()):
    visible = [
      c
      for c in name
      if c.isspace() or unicodedata.category(c) not in _SHAPELESS
    ]
    text = unicodedata.normalize("NFKC", "".join(visible))
  text = text.casefold().strip()
  number = _WHOLE_NUMBER.fullmatch(text)
  return number[1] if number else _BETWEEN_WORDS.sub(" ", text)


def names_alike(names: Iterable[str]) -> list[list[str]]:
  """Groups names that are most likely one name, spelled in several ways.

  Args:
    names: of classes, or of owners; each once.

  Returns:
    The groups of two names or more; in each, names are in the order in which
    they came.
  """
  first_of: dict[str, str] = {}
  groups: dict[str, list[str]] = {}
  for name in names:
    first = first_of.setdefault(canonical_spelling(name), name)
    if first != name:
      groups.setdefault(first, [first]).append(name)
  return list(groups.values())


def format_count(number: int, noun: str, plural: str = "") -> str:
  """A number with its noun, for messages: "1 file", "2,000 files".

  Args:
    number: how many there are.
    noun: what one of them is called.
    plural: what several are called; "" is the noun with an s.
  """
  if number == 1:
    return f"1 {noun}"
  return f"{number:,} {plural or noun + 's'}"


def one_line(error: BaseException) -> str:
  """A library's error message on one line, to be quoted in one of ours."""
  message = " ".join(str(error).split())[:_MAX_LINE_CHARACTERS]
  return escaped(message).rstrip(".") or type(error).__name__


def _can_forge_lines(character: str) -> bool:
  if character in _BIDI_CONTROLS:
    return True
  return unicodedata.category(character) in _FORGING_CATEGORIES


def check_num_classes(num_classes: int, place: str) -> None:
  """Refuses an implausible number of classes, before memory is allocated.

  Args:
    num_classes: K, as it was stated or counted.
    place: what states or counts them, for the message.

  Raises:
    InputError: there are more than a million classes.
  """
  if num_classes > _MAX_CLASSES:
    raise InputError(
      f"{place} makes {num_classes} classes: at most {_MAX_CLASSES} are"
      " possible."
    )


def check_positive(name: str, value: int | None) -> None:
  """Checks that a number is at least 1, if it was given.

  Args:
    name: the flag or field, for the message.
    value: the number; None was not given, and passes.

  Raises:
    InputError: it is no whole number, or is below 1.
  """
  if value is None:
    return
  if not isinstance(value, int):
    raise InputError(f"{name}={value!a} must be a whole number.")
  if value < 1:
    raise InputError(f"{name}={value} must be at least 1.")


def check_words(name: str, value: object) -> None:
  """Checks that a value is several strings: one would be read by letters.

  Args:
    name: the field, for the message.
    value: what was given.

  Raises:
    InputError: it is a string, or no sequence of strings.
  """
  are_words = isinstance(value, (tuple, list)) and all(
    isinstance(word, str) for word in value
  )
  if not are_words:
    raise InputError(
      f"{name}={value!a} must be a tuple of strings, such as ('a',)."
    )
