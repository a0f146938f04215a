"""Finds the owner of each image, where a privacy unit may own several."""

import csv
import hashlib
import io
import posixpath
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt32

from oneshot_dp.configs.errors import InputError, escaped
from oneshot_dp.configs.extract_config import (
  FIXED_GRAPH,
  MAX_OWNERS,
  NO_OWNER,
  check_unit_name,
)
from oneshot_dp.extract import places
from oneshot_dp.extract.sources.labels import MissingFlagError
from oneshot_dp.extract.sources.limits import (
  MAX_OWNER_CHARACTERS,
  MAX_WORD_BYTES,
  check_bytes,
  check_rows,
)
from oneshot_dp.extract.sources.listed_files import format_names, is_ignored

# What pandas and databases write for an owner that is missing.
_MISSING = frozenset(
  ("nan", "NaN", "<NA>", "NaT", "None", "null", "NULL", "N/A", "#N/A")
)
_OWNER = re.compile(
  r"(patient|subject|person|user|participant|volunteer|donor|owner|client"
  r"|customer|speaker|author|writer|identity)([_ -]?(id|uid|name|number))?"
)
_SEPARATORS = re.compile("[;|&,]")
_PADDED = re.compile(r"0*([0-9]+)(?:\.0*)?")
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
      f"images without {unit}: {format_names(missing)}. Each needs one: an"
      " image of nobody, or of somebody unknown, gets a name of its own."
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


def check_unused_owners(place: str, columns: Set[str]) -> None:
  """Looks for columns that name owners, where no flag says that one does.

  It warns of those that are called patient, user_id and the like.

  Args:
    place: where the data are, for messages.
    columns: names of those that are not used.

  Raises:
    MissingFlagError: there is a unit_id, and no flag says what a unit is.
  """
  owners = sorted(name for name in columns if _OWNER.fullmatch(name.lower()))
  if "unit_id" in columns:
    raise MissingFlagError(f"{place!r} has a unit_id: name it with --units.")
  if owners:
    print(
      f"WARNING: {escaped(place)}: {format_names(owners)} not used, so each"
      " image is protected by itself; if one says whose each image is, name it"
      " with --units.",
      file=sys.stderr,
    )


def check_owner_names(names: Iterable[str], unit: str) -> None:
  """Warns of owners who are most likely one, spelled in several ways.

  It warns of a single owner, too: together all rows weigh as much as one.

  Args:
    names: of all owners of a data set, each once.
    unit: what they name ("patient"), for messages.

  Raises:
    InputError: a name is a list of several owners, of which one is an owner by
      itself: the list would be a person of its own.
  """
  known = set(names)
  first_of: dict[str, str] = {}
  alike: list[str] = []
  for name in sorted(known):
    parts = {part.strip() for part in _SEPARATORS.split(name)} - {name}
    if not known.isdisjoint(parts):
      raise InputError(
        f"the {unit} {name!r} is several of the others: an image of several"
        " people needs a line for each in a table of owners (and the name of"
        " one person, no sign that separates names)."
      )
    first = first_of.setdefault(_spelling(name), name)
    if first != name:
      alike += [first, name]
  if len(known) == 1:
    print(
      f"WARNING: all images are of one {unit}, {format_names(sorted(known))}:"
      " no head can learn from them; see whether that is whose they are.",
      file=sys.stderr,
    )
  if alike:
    print(
      f"WARNING: {format_names(alike)} count as different: if they are one"
      f" {unit}, who would be protected by less, spell the name in one way.",
      file=sys.stderr,
    )


def _spelling(name: str) -> str:
  """What is left of a name without capitals, forms of Unicode and 01 or 1.0."""
  letters = [c for c in name if unicodedata.category(c) != "Cf"]
  text = unicodedata.normalize("NFKC", "".join(letters)).casefold()
  number = _PADDED.fullmatch(text)
  return number[1] if number else " ".join(text.split())


def _unit_number(name: str) -> int:
  """The first 63 bits of a name's BLAKE2b."""
  encoded = name.encode(errors="surrogatepass")
  digest = hashlib.blake2b(encoded, digest_size=8).digest()
  return int.from_bytes(digest) >> 1


class UnitsOfFiles(NamedTuple):
  """The owners of the images of a folder.

  Attributes:
    unit: the public name of the unit.
    unit_ids: the number of each image's owner, [n]. Where a table names several
      owners of an image: all of them, [n, m], in order, padded with `NO_OWNER`.
    weight_divisors: for each image, the number of images of the largest of its
      owners; None where each image has one owner.
  """

  unit: str
  unit_ids: Int64[np.ndarray, "n *m"]
  weight_divisors: UInt32[np.ndarray, " n"] | None = None


def units_of_files(
  units: str, images: Sequence[str], passed_over: Sequence[str], prefix: str
) -> UnitsOfFiles:
  """Finds the owners of image files, by a table or a regular expression.

  Args:
    units: FILE.csv with the columns `file` and, say, `patient`, with a line for
      each owner of each file; or a regular expression with one group that has a
      name: `/(?P<patient>[^/_]+)_`.
    images: paths, relative to the folder that the table is about.
    passed_over: paths of other files there, which the table may name.
    prefix: of the paths of this split ("train/", or nothing); a table may have
      rows of other splits.

  Returns:
    The owners, in the order of the images.

  Raises:
    InputError: `units` is neither; an image has no owner; or a row is there
      twice, or names a file that does not exist.

  Source of units that share images: Ganesh et al., "It's My Data Too: Private
  ML for Datasets with Multi-User Training Examples" (ICML 2025), fixed-graph
  differential privacy.
  """
  # A table must name every image, and nothing else: a row for a file that is
  # not there is a slip, by which another image may have lost its owner.
  if units.lower().endswith(".csv"):
    unit, owners_of = _read_owners(units)
    strays: list[str] = []
    for path in sorted(owners_of.keys() - {*images, *passed_over}):
      if path.startswith(prefix) and not is_ignored(path):
        strays.append(path)
    if strays:
      raise InputError(
        f"{units!r} names files that are not in the data set:"
        f" {format_names(strays)}; {_advice_about(strays[0], images)}."
      )
    # All of the table decides which relation it is, so that it is the same in
    # every split.
    most = max(map(len, owners_of.values()), default=1)
    if most > 1:
      _warn_of_shared_images(units, owners_of)
      owner_names = {name for owners in owners_of.values() for name in owners}
      check_owner_names(sorted(owner_names), unit)
      return _shared_units(unit, units, images, owners_of, most)
    owners = [owners_of.get(image, [None])[0] for image in images]
  else:
    # Without the split, so that an expression finds the same in each of them:
    # that of train/big_cat/P1_2.jpg is P1, and not "big".
    unit, owners = _search_owners(
      units, [image.removeprefix(prefix) for image in images]
    )
  known_names: dict[int, str] = {}
  numbers = units_of_column(
    owners, f"{unit} in {units!r}", lambda row: images[row], known_names
  )
  check_owner_names(known_names.values(), unit)
  return UnitsOfFiles(unit, np.array(numbers, np.int64))


def _warn_of_shared_images(units: str, owners_of: dict[str, list[str]]) -> None:
  """Warns that the guarantee changes, which one line too many can cause."""
  shared = [image for image in owners_of if len(owners_of[image]) > 1]
  print(
    f"WARNING: {escaped(units)} names several owners of {len(shared):,} images,"
    f" such as {format_names(sorted(shared)[:3])}: the promise is then to each"
    " owner, and WHO IS IN WHICH IMAGE IS NOT PROTECTED; if that is a slip,"
    " fix the table.",
    file=sys.stderr,
  )


def _shared_units(
  unit: str,
  units: str,
  images: Sequence[str],
  owners_of: dict[str, list[str]],
  most: int,
) -> UnitsOfFiles:
  """Numbers the owners of images that may have several.

  *Formal guarantee*: of the images of any one owner, the inverse divisors add
  up to at most 1, whichever of them are read later. They are functions of the
  table alone, and not of what is in an image, or whether it can be decoded.
  """
  # A line for each image and owner, in the order of the images.
  names: list[str | None] = []
  place_of_line: list[int] = []
  for place, image in enumerate(images):
    for name in owners_of.get(image, [None]):
      names.append(name)
      place_of_line.append(place)
  numbers = np.array(
    units_of_column(
      names, f"{unit} in {units!r}", lambda line: images[place_of_line[line]]
    ),
    np.int64,
  )
  places = np.array(place_of_line)
  # An owner of k images has k lines. An image is divided by the largest k of
  # its owners, so that it is none too heavy for any of them.
  _, owner, count = np.unique(numbers, return_inverse=True, return_counts=True)
  divisors = np.zeros(len(images), np.uint32)
  np.maximum.at(divisors, places, count[owner])
  # Owners of an image in the order of their numbers: images of the same owners
  # have equal rows.
  order = np.lexsort((numbers, places))
  first_line = np.searchsorted(places, places)
  slot = np.arange(len(places)) - first_line
  unit_ids = np.full((len(images), most), NO_OWNER, np.int64)
  unit_ids[places, slot] = numbers[order]
  return UnitsOfFiles(unit + FIXED_GRAPH, unit_ids, divisors)


def _advice_about(stray: str, images: Sequence[str]) -> str:
  """Advises what to do about a path in a table that no image has."""
  # Most often the folder of the class was left out.
  file_name = posixpath.basename(stray)
  for image in images:
    if posixpath.basename(image) == file_name:
      return (
        f"write paths as from the folder of the data set, such as {image!r}"
      )
  return "remove their rows"


def _search_owners(
  units: str, images: Sequence[str]
) -> tuple[str, list[str | None]]:
  """The unit that an expression names, and what it finds in each path."""
  try:
    pattern = re.compile(units)
  except (re.error, ValueError, OverflowError) as error:
    raise _not_units(units) from error
  if pattern.groups != 1 or len(pattern.groupindex) != 1:
    raise _not_units(units)
  (unit,) = pattern.groupindex
  check_unit_name(unit)
  owners: list[str | None] = []
  for image in images:
    match = pattern.search(image)
    owners.append(match[1] if match else None)
  # An expression that matches a part of the common path makes everything one
  # unit, without any error: the whole data set would be protected as one
  # person.
  is_one = len(owners) > 1 and len(set(owners)) == 1
  if is_one and owners[0]:
    raise InputError(
      f"--units {units!r} finds the {unit} {owners[0]!r} in every path, perhaps"
      " in the name of a folder that holds all images; begin the expression"
      " with '/', so that it starts with a name of its own."
    )
  return unit, owners


def _not_units(units: str) -> InputError:
  return InputError(
    f"--units {units!r} is neither a file that ends in .csv, nor a regular"
    " expression with exactly one group, named after the unit, such as"
    " '/(?P<patient>[^/_]+)_', which finds anna in photos/cat/anna_1.jpg."
  )


def _refuse_alike(path: str, owners_of: dict[str, list[str]]) -> None:
  """Refuses owners of one file who are most likely one, spelled twice.

  Each would be a unit of its own, and all images those of several people.
  """
  for file, owners in owners_of.items():
    spelled: dict[str, str] = {}
    for owner in owners if len(owners) > 1 else ():
      other = spelled.setdefault(_spelling(owner), owner)
      if other != owner:
        raise InputError(
          f"{path!r} names {other!a} and {owner!a} as owners of {file!r}: spell"
          " one person in one way."
        )


def _csv_rows(path: str) -> list[list[str]]:
  """The rows of a CSV table that are not blank, without spaces around fields.

  InputError: it is no CSV table in UTF-8, or has more rows, or a longer line,
  than any table of owners: each blank line, or comma, takes many times its
  byte.
  """
  # (StringIO would take four bytes for each character.)
  text = io.TextIOWrapper(
    io.BytesIO(places.read(path)), encoding="utf-8-sig", newline=""
  )
  rows: list[list[str]] = []
  try:
    for row in csv.reader(
      _lines(text, path), skipinitialspace=True, strict=True
    ):
      if row:
        rows.append([field.strip() for field in row])
        check_rows(path, len(rows))
  except (UnicodeDecodeError, csv.Error) as error:
    raise InputError(
      f"{path!r} is not a valid CSV file in UTF-8: {error}."
    ) from error
  return rows


def _lines(text: io.TextIOWrapper, path: str) -> Iterator[str]:
  """The lines of a file; InputError: one is too long."""
  while True:
    line = text.readline(MAX_WORD_BYTES)
    if not line:
      return
    check_bytes(path, "a line", len(line), MAX_WORD_BYTES - 1)
    yield line


def _read_owners(path: str) -> tuple[str, dict[str, list[str]]]:
  """The name of the unit, and the owners of each file, of a CSV table."""
  rows = _csv_rows(path)
  # The header names the unit, which is public and goes into receipts.
  header = rows[0] if rows else []
  if len(header) != 2 or header[0] != "file":
    raise InputError(
      f"{path!r} begins with {','.join(header)[:80]!r}: its first line must be"
      ' "file," and what owns an image, such as file,patient.'
    )
  unit = header[1]
  check_unit_name(unit)
  owners_of: dict[str, list[str]] = {}
  for row in rows[1:]:
    if len(row) != 2:
      raise InputError(f"{path!r}: {row[0]!r} has {len(row)} fields, not 2.")
    # "./a.jpg" and "a.jpg" are one file.
    file = posixpath.normpath(row[0])
    owners = owners_of.setdefault(file, [])
    if len(owners) == MAX_OWNERS:
      raise InputError(
        f"{path!r} names more than {MAX_OWNERS:,} owners of {file!r}."
      )
    if row[1] in owners:
      raise InputError(f"{path!r} has {file!r} more than once with one {unit}.")
    owners.append(row[1])
  _refuse_alike(path, owners_of)
  return unit, owners_of
