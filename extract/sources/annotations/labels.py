"""Reads the labels of rows, and the names of their classes.

The names of classes are public; labels are not, and so names are never read off
the labels.
"""

import collections
import functools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from oneshot_dp.configs.errors import (
  InputError,
  check_name,
  check_num_classes,
  escaped,
  names_alike,
)
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.sources.listed_files import format_names

# A part of the names that columns of labels have: fine_label, ClassId, targets.
_LABEL_WORDS = ("label", "class", "cls", "categor", "target")
_NUMBER = re.compile(r"[+-]?[0-9]{1,300}(\.[0-9]{0,300})?")


class MissingFlagError(InputError):
  """Nothing is broken, but the data leave open what a flag has to say."""


def resolve_choice(
  place: str, flag: str, asked: str | None, candidates: Sequence[str]
) -> str:
  """Chooses the candidate that a flag asks for.

  Without the flag it is the only candidate, or the one with the flag's own name
  ("image" for --image).

  Args:
    place: where the data are, for messages.
    flag: the flag, such as "--image", with its dashes.
    asked: what a person gave for it; None or "" if nothing.
    candidates: what the data have.

  Returns:
    One of the candidates.

  Raises:
    InputError: there is no candidate, or not the one that is asked for; or
      there are several, and none of them was asked for.
  """
  if not candidates:
    raise InputError(f"{place!r} has nothing that can be its {flag}.")
  choice = asked
  if not choice:
    choice = flag.removeprefix("--")
    if len(candidates) == 1:
      choice = candidates[0]
  if choice not in candidates:
    fault = f"give {flag}, one of"
    if asked:
      fault = f"{flag} {asked!r} is none of"
    raise InputError(f"{place!r}: {fault} {format_names(candidates)}.")
  return choice


def class_names(
  in_data: Iterable[Any], config: SourceConfig, place: str
) -> tuple[str, ...]:
  """The public names of all classes.

  Args:
    in_data: names that the data state beside their labels, if they do.
    config: has the flags that name or count the classes.
    place: where the data are, for messages.

  Raises:
    InputError: nobody states the classes, two state them differently, or a
      name is not a valid one.
  """
  # Names come from the data's metadata, or from a flag, and never from the
  # labels: a class with one image would show by its name that the image is
  # there.
  names = tuple(str(name) for name in in_data)
  if config.class_names:
    if names and names != config.class_names:
      raise _differing_names(place, names)
    names = config.class_names
  if not names:
    if config.num_classes is None:
      raise MissingFlagError(
        f"{place!r} names no classes: give --class-names or --num-classes"
        " (labels are private, so neither is read off them)."
      )
    check_num_classes(config.num_classes, repr(place))
    return tuple(str(label) for label in range(config.num_classes))
  if config.num_classes not in (None, len(names)):
    raise _differing_names(place, names)
  check_num_classes(len(names), repr(place))
  for name in names:
    check_name(f"{place!a}: class name", name)
  ((most_common, count),) = collections.Counter(names).most_common(1)
  if count > 1:
    raise InputError(f"{place!r} has the class {most_common!r} more than once.")
  _warn_of_alike(names)
  return names


def warn_of_one_class(place: str, names: Sequence[str]) -> None:
  """Warns of a single class: there is nothing that a head could tell apart.

  Args:
    place: where the data are, for the message.
    names: of all classes.
  """
  if len(names) == 1:
    print(
      f"WARNING: {escaped(place)} has one class, {names[0]!r}, and no head can"
      " be trained on one class.",
      file=sys.stderr,
    )


def warn_of_unusual_label(place: str, column: str) -> None:
  """Warns of labels that nobody chose, and that are not called so.

  The only column whose classes have names may be a license or a camera.

  Args:
    place: where the data are, for the message.
    column: which was taken for the label.
  """
  name = column.casefold()
  if name != "y" and not any(word in name for word in _LABEL_WORDS):
    print(
      f"WARNING: {escaped(place)}: the labels are {column!r}, as nothing else"
      " has classes with names; if that is meant, say it with --label"
      f" {escaped(column)}.",
      file=sys.stderr,
    )


def warn_of_second_label(place: str, label: str, second: str) -> None:
  """Warns of samples that state two different labels.

  Args:
    place: where the data are, for the message.
    label: what has the labels that are used.
    second: what has the others.
  """
  print(
    f"WARNING: {escaped(place)}: {label!r} and {second!r} of the samples'"
    f" json state different labels, and {label!r} is used: choose one with"
    " --label.",
    file=sys.stderr,
  )


def _warn_of_alike(names: Sequence[str]) -> None:
  """Warns of classes that differ in capitals or the like: a slip, mostly."""
  for group in names_alike(names):
    print(
      f"WARNING: {_format_alike(group)} are different classes; rename them if"
      " one is meant.",
      file=sys.stderr,
    )


def _format_alike(names: Sequence[str]) -> str:
  """Names for a message; by code points where they look the same."""
  composed = {unicodedata.normalize("NFC", name) for name in names}
  if len(composed) == len(names):
    return format_names(names)
  codes = ", ".join(map(ascii, names))
  return f"{format_names(names)} ({codes}, by the machines that wrote them)"


def explain_differing_forms(names: Iterable[str], others: Iterable[str]) -> str:
  """Says which names are those of others in another form of Unicode.

  The é of a folder that comes from a Mac may be an e and an accent, and looks
  like any other.

  Args:
    names: that are not among the others.
    others: what they were looked for in.

  Returns:
    A clause to put at the end of a message; "" if there are none.
  """
  form_of = {unicodedata.normalize("NFC", other): other for other in others}
  for name in names:
    other = form_of.get(unicodedata.normalize("NFC", name), name)
    if other != name:
      return (
        f"; {name!a} and {other!a} look the same, and are two forms of Unicode:"
        " write both in one"
      )
  return ""


def _differing_names(place: str, names: Sequence[str]) -> InputError:
  return InputError(
    f"{place!r} names {len(names)} classes ({format_names(names)}), and a flag"
    " others: leave --class-names and --num-classes out."
  )


def _known_labels(names: Sequence[str], are_indices: bool) -> dict[Any, int]:
  """The class index of each label that rows may have.

  Where every class has a number as its name, as of {1, 2, 3}, {-1, +1} or
  {1.0, 2.0}, the label 2 is the class that is called "2" and not the third one.
  Where only some have, an integer could be read either way, and is refused.
  """
  known: dict[Any, int] = {}
  for label, name in enumerate(names):
    known[name] = label
  # Labels may be names or numbers. Where they could be both, one of the two
  # rules would silently put some rows into the wrong class.
  numbers = [_number_of(name) for name in names]
  are_numbers = [number is not None for number in numbers]
  if are_indices:
    for label in range(len(names)):
      known[label] = label
  elif all(are_numbers):
    for label, number in enumerate(numbers):
      known[number] = label
    if len(set(numbers)) < len(names):
      raise InputError(
        f"two classes have one number as their name: {format_names(names)};"
        " rename one."
      )
  elif not any(are_numbers):
    for label in range(len(names)):
      known[label] = label
      known[str(label)] = label
  return known


def _number_of(name: str) -> int | float | None:
  """The number that a name is, or None; an integer is equal to its float."""
  # Digits of other scripts, and wide ones, are digits, too.
  text = unicodedata.normalize("NFKC", name).strip()
  if not _NUMBER.fullmatch(text):
    return None
  return float(text) if "." in text else int(text)


@functools.cache
def _warn_of_counted(names: tuple[str, ...]) -> None:
  """Warns of classes that are counted from 1, say, where labels are from 0.

  It prints once for all files of a data set.
  """
  numbers: list[int] = []
  for name in names:
    digits = re.findall(r"[0-9]{1,9}", name)
    if len(digits) != 1 or _number_of(name) is not None:
      return
    numbers.append(int(digits[0]))
  first = min(numbers)
  counted = list(range(first, first + len(names)))
  if sorted(numbers) == counted and numbers != list(range(len(names))):
    print(
      "WARNING: labels are numbers, and count the classes from 0: 0 is"
      f" {names[0]!r}; give names as labels if the number in a name is meant.",
      file=sys.stderr,
    )


def warn_of_labels_from_one(
  place: str, labels: Int[np.ndarray, "n"], num_classes: int
) -> None:
  """Warns of rows of the labels 1 to K - 1, which may count from 1.

  They would all be in the class after theirs, without an error: the last class
  has no row that would be outside.

  Args:
    place: where the labels are, for the message.
    labels: all of them, as class indices that were given as numbers.
    num_classes: K.
  """
  from_one = np.arange(1, num_classes)
  if num_classes > 2 and np.array_equal(np.unique(labels), from_one):
    print(
      f"WARNING: {escaped(place)}: no row has the label 0, and all others to"
      f" {num_classes - 1} are there: labels count from 0; if these count from"
      " 1, subtract 1 from each.",
      file=sys.stderr,
    )


def label_numbers(
  values: Iterable[Any],
  names: Sequence[str],
  column: str,
  where: Callable[[int], str],
  are_indices: bool = False,
) -> list[int]:
  """Converts labels to class indices.

  Args:
    values: of each row the name of its class, or a class index from 0. Where
      the names are numbers, an integer is the name of a class.
    names: of the classes.
    column: where the labels are, for messages.
    where: the place of a row, for messages.
    are_indices: whether integers are class indices, whatever the names are.

  Raises:
    InputError: rows have none of the classes; it names a few.
  """
  # All rows are looked at before anything is said: a person who fixes one row
  # at a time would need as many runs.
  values = list(values)
  known = _known_labels(names, are_indices)
  if not are_indices and values and type(values[0]) is int:
    _warn_of_counted(tuple(names))
  labels: list[int] = []
  wrong: list[str] = []
  for row, value in enumerate(values):
    # (True and 1.0 are equal to 1, and are not labels.)
    label = known.get(value, -1) if type(value) in (int, str) else -1
    if label < 0:
      wrong.append(where(row))
    labels.append(label)
  if wrong:
    raise InputError(
      f"rows whose label in {column!r} is not one of the {len(names)} classes,"
      f" {_how_named(names)}: {format_names(wrong)}."
    )
  return labels


def _how_named(names: Sequence[str]) -> str:
  """Says how a label may refer to a class."""
  if list(names) == [str(index) for index in range(len(names))]:
    return f"which are numbered from 0 to {len(names) - 1}"
  if any(_number_of(name) is not None for name in names):
    return f"{format_names(names)} (numbers are names here, not indices)"
  return f"by name or by index from 0 to {len(names) - 1}"


def class_labels(
  metadata: Mapping[bytes, bytes] | None,
) -> dict[str, tuple[str, ...]]:
  """The names of the classes of each ClassLabel column.

  `datasets` notes them in the metadata of a file's schema; files that something
  else wrote have none.

  Args:
    metadata: of an Arrow schema; None if it has none.

  Returns:
    Column → names of label 0, 1, …; empty where the note is missing or damaged.
  """
  classes: dict[str, tuple[str, ...]] = {}
  try:
    noted = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    features = noted.get("info", {}).get("features", {})
    for column, feature in features.items():
      is_dict = isinstance(feature, dict)
      if is_dict and feature.get("_type") == "ClassLabel":
        names = feature.get("names") or ()
        classes[column] = tuple(str(name) for name in names)
  # The note is JSON of any shape, as the file may be anybody's. One that is not
  # as `datasets` writes it names no classes, and then a flag has to.
  except (ValueError, AttributeError, TypeError, RecursionError):
    return {}
  return classes
