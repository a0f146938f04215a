"""What rows say beside their images: of which class each is, and whose.

Names of classes are public; labels and owners are not.
"""

import collections
import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError, check_name, check_num_classes
from oneshot_dp.configs.extract_config import SourceConfig, check_unit_name
from oneshot_dp.extract.files import read_regular
from oneshot_dp.extract.sources.listed_files import format_names, is_ignored


class FileRows(NamedTuple):
  """What is in a file of rows: where its images are, and its columns.

  `key` is the column of labels, and `named` what names the classes. See
  `Source` for `column` and `at`.
  """

  column: str
  at: Int64[np.ndarray, "r 2"]
  key: str = ""
  named: Sequence[Any] = ()
  labels: Iterable[Any] = ()
  units: Iterable[Any] = ()


class MissingFlagError(InputError):
  """Nothing is broken: a flag has to say what the data do not."""


def chosen(
  place: str, flag: str, asked: str | None, candidates: Sequence[str]
) -> str:
  """What was asked for, the only one there is, or that of the flag's name."""
  usual = flag.removeprefix("--")
  found = asked or (candidates[0] if len(candidates) == 1 else usual)
  if found not in candidates:
    if not candidates:
      raise InputError(f"{place!r} has nothing that can be its {flag}.")
    said = f"{flag} {asked!r} is none of" if asked else f"give {flag}, one of"
    raise InputError(f"{place!r}: {said} {format_names(candidates)}.")
  return found


def class_names(
  named: Iterable[Any], settings: SourceConfig, place: str
) -> tuple[str, ...]:
  """The public names of all classes, which are never read off the labels.

  They are what the data say beside their labels (`named`), or flags.
  InputError: nobody says it, two say it differently, or a name cannot be.
  """
  found, stated = tuple(map(str, named)), settings.class_names
  names, k = found or stated, settings.num_classes
  if not names and k is None:
    raise MissingFlagError(
      f"{place!r} names no classes: give --class-names or --num-classes"
      " (labels are private, so neither is read off them)."
    )
  if (stated and names != stated) or k not in (None, len(names) or k):
    raise InputError(
      f"{place!r} names {len(names)} classes ({format_names(names)}), and"
      " a flag"
      " others: leave --class-names and --num-classes out."
    )
  check_num_classes(k or len(names), repr(place))
  names = names or tuple(map(str, range(k or 0)))
  for name in names:
    check_name(f"{place!a}: class name", name)
  ((most, times),) = collections.Counter(names).most_common(1)
  if times > 1:
    raise InputError(f"{place!r} has the class {most!r} more than once.")
  return names


def label_numbers(
  values: Iterable[Any],
  names: Sequence[str],
  key: str,
  where: Callable[[int], str],
) -> list[int]:
  """Labels as class indices: numbers, names, or numbers that are texts.

  InputError: rows have none of the classes; `where` names a few.
  """
  known: dict[Any, int] = {label: label for label in range(len(names))}
  if not any(name.isdecimal() for name in names):  # else 2 may name class 0
    known |= {str(label): label for label in range(len(names))}
  known |= {name: label for label, name in enumerate(names)}
  labels = [known.get(v, -1) if type(v) in (int, str) else -1 for v in values]
  if wrong := [where(i) for i, label in enumerate(labels) if label < 0]:
    raise InputError(
      f"images without a label {key!r} among the {len(names)} classes, by name"
      f" or from 0 to {len(names) - 1}: {format_names(wrong)}."
    )
  return labels


def units_of_column(
  values: Sequence[Any],
  unit: str,
  where: Callable[[int], str],
  known: dict[int, str] | None = None,
) -> list[int]:
  """A `unit_id` for each row: its integer, or 63 bits of BLAKE2b of its text.

  *Formal guarantee*: a function of the name alone, so that no unit moves
  another, and the same in every data set. Two names with one number are
  refused, not merged: whoever leaves a shared unit changes it, and a change may
  cost twice what an absence does. Spaces around a name are no part of it.

  `unit` is what the values name ("patient"); `known` has names by number, where
  rows come in batches, and grows. InputError: values that are neither; a row
  without one (None or blank), of which `where` names a few; two names of one
  number.
  """
  kinds = {type(value) for value in values} - {type(None)}
  if kinds == {int} and None not in values:
    if min(values) >= -(2**63) and max(values) < 2**63:
      return list(values)
    kinds.add(str)
  if len(kinds) > 1 or not kinds <= {int, str}:
    raise InputError(
      f"--units {unit!r} must be all integers of 64 bits, or all texts."
    )
  whose = ["" if value is None else str(value).strip() for value in values]
  if missing := [where(i) for i, name in enumerate(whose) if not name]:
    raise InputError(
      f"images without a {unit}, and each needs one: {format_names(missing)}."
    )
  known = {} if known is None else known
  numbers: dict[str, int] = {}
  for name in set(whose):
    code = name.encode(errors="surrogatepass")
    digest = hashlib.blake2b(code, digest_size=8).digest()
    numbers[name] = number = int.from_bytes(digest) >> 1
    if (other := known.setdefault(number, name)) != name:
      both = f"{other!r} and {name!r}"
      raise InputError(f"{unit} {both} have one number, by chance: rename one.")
  return [numbers[name] for name in whose]


def units_of_files(
  units: str, images: Sequence[str], passed_over: Sequence[str], split: str
) -> tuple[str, list[int]]:
  """The public name of the unit, and a `unit_id` for each image file.

  `units` is FILE.csv with the columns `file` and, say, `patient`, or a regular
  expression with one group that has a name: `/(?P<patient>[^/_]+)_`. Paths are
  relative to the folder that the table is about, and start with `split`
  ("train/", or nothing): other rows are about other splits. Rows of files that
  are `passed_over` are, too. InputError: `units` is neither; an image without a
  unit; a row that is there twice, or is of a file that is not.
  """
  if units.lower().endswith(".csv"):
    unit, owners = _table(units)
    others = owners.keys() - {*images, *passed_over}
    strays = [f for f in others if f.startswith(split) and not is_ignored(f)]
    if strays:
      raise InputError(
        f"{units!r} names files that are not in the data set:"
        f" {format_names(sorted(strays))}; remove their rows."
      )
    whose = [owners.get(image) for image in images]
  else:
    try:
      pattern = re.compile(units)
      (unit,) = [*pattern.groupindex] if pattern.groups == 1 else []
    except (re.error, ValueError, OverflowError) as error:
      raise InputError(
        f"--units {units!r} must be FILE.csv, or a regular expression with one"
        " group, named after the unit: '(?P<patient>…)'."
      ) from error
    check_unit_name(unit)
    whose = [m and m[1] for m in map(pattern.search, images)]
    if len({*whose}) == 1 < len(whose) and whose[0]:
      raise InputError(
        f"--units {units!r}: all images are of the {unit} {whose[0]!r}, as if"
        " it had found a folder's name; begin it with '/'."
      )
  where = images.__getitem__
  return unit, units_of_column(whose, f"{unit} in {units!r}", where)


def _table(path: str) -> tuple[str, dict[str, str]]:
  try:
    file = io.StringIO(read_regular(path).decode("utf-8-sig"), newline="")
    rows = [*csv.reader(file, skipinitialspace=True, strict=True), []]
  except (UnicodeDecodeError, csv.Error) as error:
    raise InputError(f"{path!r} is no CSV file in UTF-8: {error}.") from error
  header, *lines = [[field.strip() for field in row] for row in rows]
  if len(header) != 2 or header[0] != "file":
    raise InputError(
      f"{path!r} begins with {','.join(header)[:80]!r}: its first line must be"
      ' "file," and what owns an image, such as file,patient.'
    )
  check_unit_name(header[1])
  owners: dict[str, str] = {}
  for line in filter(None, lines):
    if len(line) != 2:
      raise InputError(f"{path!r}: {line[0]!r} has {len(line)} fields, not 2.")
    file = posixpath.normpath(line[0])
    if file in owners:
      raise InputError(f"{path!r} has {file!r} more than once.")
    owners[file] = line[1]
  return header[1], owners
