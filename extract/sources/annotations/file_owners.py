"""Finds the owners of image files, by a table or a regular expression."""

import csv
import io
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt32

from oneshot_dp.configs.errors import InputError, canonical_spelling, escaped
from oneshot_dp.configs.extract_config import (
  FIXED_GRAPH,
  MAX_OWNERS,
  NO_OWNER,
  check_unit_name,
)
from oneshot_dp.extract import places
from oneshot_dp.extract.sources.annotations.owner_names import (
  check_owner_names,
  units_of_column,
)
from oneshot_dp.extract.sources.limits import (
  MAX_WORD_BYTES,
  check_bytes,
  check_rows,
)
from oneshot_dp.extract.sources.listed_files import format_names, is_ignored


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
  if not units.lower().endswith(".csv"):
    # Without the split, so that an expression finds the same in each of them:
    # that of train/big_cat/P1_2.jpg is P1, and not "big".
    paths = [image.removeprefix(prefix) for image in images]
    unit, owners = _search_owners(units, paths)
    return _owned_by_one(unit, units, images, owners)
  unit, owners_of = _read_owners(units)
  named = {path for path in owners_of if path.startswith(prefix)}
  _refuse_strays(units, named.difference(images, passed_over), images)
  # All of the table decides which relation it is, so that it is the same in
  # every split.
  most = max(map(len, owners_of.values()), default=1)
  if most == 1:
    owners = [owners_of.get(image, [None])[0] for image in images]
    return _owned_by_one(unit, units, images, owners)
  owner_names = {name for owners in owners_of.values() for name in owners}
  check_owner_names(owner_names, unit)  # may refuse, so it warns first
  _warn_of_shared_images(units, owners_of)
  return _owned_by_several(unit, units, images, owners_of, most)


def _refuse_strays(units: str, strays: Set[str], images: Sequence[str]) -> None:
  """Refuses a table's rows for files that are not in the data set.

  Such a row is a slip, by which another image may have lost its owner.
  """
  paths = sorted(path for path in strays if not is_ignored(path))
  if paths:
    raise InputError(
      f"{units!r} names files that are not in the data set:"
      f" {format_names(paths)}; {_advice_about(paths[0], images)}."
    )


def _advice_about(stray: str, images: Sequence[str]) -> str:
  """Advises what to do about a path in a table that no image has."""
  if stray.replace("\\", "/") in images:
    return "write / between folders, and not a backslash"
  # Most often the folder of the class was left out, or the suffix. In a folder
  # that is right, only its own files are looked at: where dog/1.jpg was
  # removed, its row is to go, although there is a cat/1.jpg.
  folder = posixpath.dirname(stray)
  neighbors = [im for im in images if posixpath.dirname(im) == folder]
  for image in neighbors or images:
    if _stem(image) == _stem(stray):
      return (
        "write paths as from the folder of the data set, with their suffix,"
        f" such as {image!r}"
      )
  return "remove their rows"


def _stem(path: str) -> str:
  """The name of a file without its folders and suffix, in small letters."""
  return posixpath.splitext(posixpath.basename(path))[0].casefold()


def _warn_of_shared_images(units: str, owners_of: dict[str, list[str]]) -> None:
  """Warns that the guarantee changes, which one line too many can cause."""
  shared = [image for image in owners_of if len(owners_of[image]) > 1]
  images = "1 image" if len(shared) == 1 else f"{len(shared):,} images"
  print(
    f"WARNING: {escaped(units)} names several owners of {images}, such"
    f" as {format_names(sorted(shared)[:3])}: the promise is then to each"
    " owner, and WHO IS IN WHICH IMAGE IS NOT PROTECTED; if that is a slip,"
    " fix the table.",
    file=sys.stderr,
  )


def _owned_by_one(
  unit: str,
  units: str,
  images: Sequence[str],
  owners: Sequence[str | None],
) -> UnitsOfFiles:
  """Numbers the owners of images that have one each."""
  known_names: dict[int, str] = {}
  numbers = units_of_column(
    owners, f"{unit} in {units!r}", lambda row: images[row], known_names
  )
  check_owner_names(known_names.values(), unit)
  return UnitsOfFiles(unit, np.array(numbers, np.int64))


def _owned_by_several(
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


def _read_owners(path: str) -> tuple[str, dict[str, list[str]]]:
  """The name of the unit, and the owners of each file, of a CSV table."""
  rows = _csv_rows(path)
  # The header names the unit, which is public and goes into receipts.
  header = rows[0] if rows else []
  if len(header) != 2 or header[0] != "file":
    raise InputError(
      f"{path!r} begins with {','.join(header)[:80]!r}: its first line must be"
      ' "file", a comma, and what owns an image, such as file,patient.'
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
      raise InputError(
        f"{path!r} has {file!r} more than once with one {unit}: leave one line;"
        " or, if these are files of one name in several folders, write their"
        " folders, as in cat/1.jpg."
      )
    owners.append(row[1])
  _refuse_alike(path, owners_of)
  return unit, owners_of


def _refuse_alike(path: str, owners_of: dict[str, list[str]]) -> None:
  """Refuses owners of one file who are most likely one, spelled twice.

  Each would be a unit of its own, and all images those of several people.
  """
  for file, owners in owners_of.items():
    spelled: dict[str, str] = {}
    for owner in owners if len(owners) > 1 else ():
      other = spelled.setdefault(canonical_spelling(owner), owner)
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
  content = places.read(path)
  text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
  rows: list[list[str]] = []
  try:
    for row in csv.reader(
      _lines(text, path), skipinitialspace=True, strict=True
    ):
      if row:
        rows.append([field.strip() for field in row])
        check_rows(path, len(rows))
  except UnicodeDecodeError as error:
    raise InputError(
      f"{path!r} is not a valid CSV file in UTF-8: {_not_utf8(content)}; save"
      " it as UTF-8."
    ) from error
  except csv.Error as error:
    raise InputError(
      f"{path!r} is not a valid CSV file in UTF-8: {error}."
    ) from error
  return rows


def _not_utf8(content: bytes) -> str:
  """Says which line is not UTF-8."""
  # (The error counts from the block that was being decoded.)
  for number, line in enumerate(io.BytesIO(content), start=1):
    try:
      line.decode()
    except UnicodeDecodeError as error:
      return f"byte {line[error.start]:#04x} in line {number:,}"
  return "its end is cut off"


def _lines(text: io.TextIOWrapper, path: str) -> Iterator[str]:
  """The lines of a file; InputError: one is too long."""
  while True:
    line = text.readline(MAX_WORD_BYTES)
    if not line:
      return
    check_bytes(path, "a line", len(line), MAX_WORD_BYTES - 1)
    yield line


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
  missing: list[str] = []
  for image, owner in zip(images, owners, strict=True):
    if not owner:
      missing.append(image)
  if missing:
    raise InputError(
      f"--units {units!r} finds no {unit} in {format_names(missing)}, and every"
      " image needs one: change the expression, which is searched in"
      " CLASS/FILE, or name the owners in a table, FILE.csv."
    )
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
    " '/(?P<patient>[^/_]+)_', which finds anna in photos/cat/anna_1.jpg, nor"
    " same-image."
  )
