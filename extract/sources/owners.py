"""Whose an image is: a `unit_id` for each, where somebody may have many."""

import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import check_unit_name
from oneshot_dp.extract.files import read_regular
from oneshot_dp.extract.sources.listed_files import is_litter, shortened


def unit_numbers(
  names: Sequence[str | None],
  unit: str,
  where: Callable[[int], str],
  known: dict[int, str] | None = None,
) -> list[int]:
  """A `unit_id` for each row: 63 bits of BLAKE2b of its unit's name.

  *Formal guarantee*: a function of the name alone, so that no unit moves
  another, and the same in every data set. Two names with one number are
  refused, not merged: whoever leaves a shared unit changes it, and a change may
  cost twice what an absence does. Spaces around a name are no part of it.

  `unit` is what the names name ("patient"), `where` says where a row is, for
  errors; `known` has names by number, where rows come in batches, and grows.
  InputError: a row without a name (None or blank); two names of one number.
  """
  whose = [(name or "").strip() for name in names]
  if missing := [where(i) for i, name in enumerate(whose) if not name]:
    raise InputError(
      f"images without a {unit}, and each needs one: {shortened(missing)}."
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


def units_of_column(
  values: Sequence[Any],
  unit: str,
  where: Callable[[int], str],
  known: dict[int, str] | None = None,
) -> list[int]:
  """A `unit_id` for each row: integers as they are, texts by `unit_numbers`.

  InputError: they are neither, or a row has none.
  """
  kinds = {type(value) for value in values} - {type(None)}
  if kinds == {int} and None not in values:
    if min(values) >= -(2**63) and max(values) < 2**63:
      return list(values)
  elif kinds <= {str} or kinds == {int}:
    names = [None if value is None else str(value) for value in values]
    return unit_numbers(names, unit, where, known)
  raise InputError(
    f"--units {unit!r} must be all integers of 64 bits, or all texts, and is"
    f" {', '.join(sorted(kind.__name__ for kind in kinds))}."
  )


def units_of_files(
  units: str, images: Sequence[str], passed_over: Sequence[str], split: str
) -> tuple[str, list[int]]:
  """The public name of the unit, and a `unit_id` for each image file.

  `units` is FILE.csv with the columns `file` and, say, `patient`, or a regular
  expression with one group that has a name: `(?P<patient>[^_]+)_`. Paths are
  relative to the folder that the table is about, and start with `split`
  ("train/", or nothing): other rows are about other splits. Rows of files that
  are `passed_over` are, too. InputError: `units` is neither; an image without a
  unit; a row that is there twice, or is of a file that is not.
  """
  if units.lower().endswith(".csv"):
    unit, owners = _table(units)
    others = owners.keys() - {*images, *passed_over}
    strays = [f for f in others if f.startswith(split) and not is_litter(f)]
    if strays:
      raise InputError(
        f"{units!r} names files that are not in the data set:"
        f" {shortened(sorted(strays))}; remove their rows."
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
  return unit, unit_numbers(whose, f"{unit} in {units!r}", images.__getitem__)


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
