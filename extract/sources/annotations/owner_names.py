"""Owners by name: each name becomes a number; two of one person are found."""

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from oneshot_dp.configs.errors import InputError, escaped, names_alike
from oneshot_dp.extract.sources.annotations.labels import MissingFlagError
from oneshot_dp.extract.sources.limits import MAX_OWNER_CHARACTERS
from oneshot_dp.extract.sources.listed_files import format_names

# What pandas and databases write for an owner that is missing.
_MISSING = frozenset(
  ("nan", "NaN", "<NA>", "NaT", "None", "null", "NULL", "N/A", "#N/A")
)
# Names of columns that most likely say whose a row is.
_OWNER_COLUMN = re.compile(
  r"(patient|subject|person|user|participant|volunteer|donor|owner|client"
  r"|customer|speaker|author|writer|identity)([_ -]?(id|uid|name|number))?"
)
# Of these an owner would have all rows whose owner nobody knows.
_UNKNOWN = frozenset(
  ("unknown", "na", "none", "-1", "-", "?", "missing", "anonymous", "undefined")
)
_ROUNDED_NUMBER = re.compile(r"[0-9](\.[0-9]+)?[eE]\+[0-9]+")
_SEPARATORS = re.compile("[;|&,]")
_INT64 = range(-(2**63), 2**63)


def units_of_column(
  values: Sequence[Any],
  unit: str,
  where: Callable[[int], str],
  known_names: dict[int, str] | None = None,
) -> list[int]:
  """Numbers units: integers stay, strings become 63 bits of their BLAKE2b.

  *Formal guarantee*: a unit's number is a function of its name alone, so that
  no unit moves another, and the same in every data set. Two names with one
  number are refused, not merged: whoever leaves a shared unit changes it, and a
  change may cost twice what an absence does. Spaces around a name are ignored.

  Args:
    values: of each row an integer of 64 bits, or a string; all of one kind.
    unit: what the values name ("patient"), for messages.
    where: the place of a row, for messages.
    known_names: names by number, where rows come in batches; it grows.

  Returns:
    The number of each row's unit, in 64 bits.

  Raises:
    InputError: values are neither integers nor strings; a row has none (None or
      blank); a name has more than 4,096 characters; or two names have one
      number.
  """
  # Integers stay what they are, strings are hashed. Of a mixture of both, 7 and
  # "7" may be one person or two.
  kinds = {type(value) for value in values} - {type(None)}
  if kinds == {int} and None not in values:
    if min(values) in _INT64 and max(values) in _INT64:
      return list(values)
    kinds.add(str)
  if len(kinds) > 1 or not kinds <= {int, str}:
    raise InputError(
      f"--units {unit!r} must be all integers of 64 bits, or all strings."
    )
  # Millions of rows may share one long name: each distinct value is cut and
  # hashed once.
  name_of: dict[Any, str] = {None: ""}
  for value in set(values) - {None}:
    name_of[value] = _name_of_owner(value, unit)
  names = [name_of[value] for value in values]
  missing = [where(row) for row, name in enumerate(names) if not name]
  if missing:
    raise InputError(
      f"images without {unit}: {format_names(missing)}; each needs one: where"
      " it is nobody, or somebody unknown, give a name that no other image has"
      " (a blank, nan, None, NULL and the like are no names)."
    )
  if known_names is None:
    known_names = {}
  numbers = {name: _unit_number(name) for name in set(names)}
  for name, number in numbers.items():
    other = known_names.setdefault(number, name)
    if other != name:
      raise InputError(
        f"{unit} {other!r} and {name!r} have one number, by chance: rename one."
      )
  return [numbers[name] for name in names]


def _name_of_owner(value: int | str, unit: str) -> str:
  """A value as the name of an owner; InputError: it is too long."""
  name = str(value).strip()
  if name in _MISSING:
    return ""
  if len(name) > MAX_OWNER_CHARACTERS:
    raise InputError(
      f"--units {unit!r}: a name of {len(name):,} characters, and an owner's"
      f" may have {MAX_OWNER_CHARACTERS:,}: give each owner a shorter one."
    )
  return name


def _unit_number(name: str) -> int:
  """The first 63 bits of a name's BLAKE2b."""
  encoded = name.encode(errors="surrogatepass")
  digest = hashlib.blake2b(encoded, digest_size=8).digest()
  return int.from_bytes(digest) >> 1


def check_owner_names(names: Iterable[str], unit: str) -> None:
  """Warns of owners who are most likely one, spelled in several ways.

  It warns of names that stand for somebody unknown, too, and of numbers that
  are not whole any more.

  Args:
    names: of all owners of a data set, each once.
    unit: what they name ("patient"), for messages.

  Raises:
    InputError: a name is a list of several owners, of which one is an owner by
      itself: the list would be a person of its own.
  """
  known = set(names)
  for name in sorted(known):
    parts = {part.strip() for part in _SEPARATORS.split(name)} - {name}
    if not known.isdisjoint(parts):
      raise InputError(
        f"the {unit} {name!r} is several of the others: an image of several"
        " people needs a line for each in a table of owners (and the name of"
        " one person, no sign that separates names)."
      )
  alike: list[str] = []
  for group in names_alike(sorted(known)):
    alike += group
  if alike:
    print(
      f"WARNING: {format_names(alike)} count as different: if they are one"
      f" {unit}, who would be protected by less, spell the name in one way.",
      file=sys.stderr,
    )
  unknown = sorted(name for name in known if name.casefold() in _UNKNOWN)
  if unknown:
    _warn_of_unknown(unknown, unit)
  rounded = sorted(name for name in known if _ROUNDED_NUMBER.fullmatch(name))
  if rounded:
    print(
      f"WARNING: {format_names(rounded)} are numbers that a spreadsheet has"
      f" rounded: several {unit}s may have become one.",
      file=sys.stderr,
    )


def _warn_of_unknown(names: Sequence[str | int], unit: str) -> None:
  shown = ", ".join(map(repr, names))
  print(
    f"WARNING: {shown} counts as one {unit}: an image of somebody unknown needs"
    " a name of its own.",
    file=sys.stderr,
  )


def check_owners(
  unit: str,
  unit_ids: Int64[np.ndarray, "n *m"],
  labels: Int32[np.ndarray, " n"],
) -> None:
  """Warns of owners who are most likely none, by which rows are whose.

  Args:
    unit: what owns rows ("patient"), for messages.
    unit_ids: the owner of each row, or several, padded with `NO_OWNER`.
    labels: the class of each row.
  """
  if unit_ids.ndim != 1:
    return
  # As pandas numbers what is missing: an owner of all such rows.
  if np.count_nonzero(unit_ids == -1) > 1:
    _warn_of_unknown([-1], unit)
  num_rows = len(unit_ids)
  num_owners = len(np.unique(unit_ids))
  if num_rows < 2:
    return
  if num_owners == 1:
    print(
      f"WARNING: all rows are of one {unit}: no head can learn from them; see"
      " whether that is whose they are.",
      file=sys.stderr,
    )
  elif num_owners == num_rows:
    print(
      f"note: each row has a {unit} of its own, so they protect no more than"
      " rows do; see whether that is whose the rows are.",
      file=sys.stderr,
    )
  elif num_owners == len(np.unique(labels)):
    # As many owners as classes: the same, if each owner has one class only.
    pairs = np.stack([unit_ids, labels.astype(np.int64)])
    if len(np.unique(pairs, axis=1).T) == num_owners:
      print(
        f"WARNING: each class has one {unit}, as if that were the label: no"
        " head can learn from them; see whether that is whose the rows are.",
        file=sys.stderr,
      )


def refuse_mixed_owners(
  unit: str, unit_ids: Int64[np.ndarray, " n"], known_names: Mapping[int, str]
) -> None:
  """Raises InputError if some files have integers as owners, others strings.

  The owner 7 of one file and "7" of another would be two, and each be protected
  in a part of the rows alone.

  Args:
    unit: what owns rows, for the message.
    unit_ids: the owner of each row of all files.
    known_names: the names of those that have one, by their numbers.
  """
  owners = set(np.unique(unit_ids).tolist())
  if known_names and not owners <= known_names.keys():
    raise InputError(
      f"--units {unit!r} must be all integers of 64 bits, or all strings, in"
      " all files."
    )


def is_owner_column(name: str) -> bool:
  """Whether a column is called patient, user_id and the like.

  A field within another, such as meta.patient, is by its own name.
  """
  own_name = name.rpartition(".")[2].lower()
  return _OWNER_COLUMN.fullmatch(own_name) is not None


def check_unused_owners(place: str, columns: Set[str]) -> None:
  """Looks for columns that name owners, where no flag says that one does.

  It warns of those that are called patient, user_id and the like.

  Args:
    place: where the data are, for messages.
    columns: names of those that are not used.

  Raises:
    MissingFlagError: there is a unit_id, and no flag says what a unit is.
  """
  owners = sorted(name for name in columns if is_owner_column(name))
  if "unit_id" in columns:
    raise MissingFlagError(f"{place!r} has a unit_id: name it with --units.")
  if owners:
    advice = "name it with --units"
    if all("." in name for name in owners):
      advice = "write it as a field or column of its own for --units"
    print(
      f"WARNING: {escaped(place)}: {format_names(owners)} not used, so each"
      f" image is protected by itself; if one says whose each image is,"
      f" {advice}.",
      file=sys.stderr,
    )
