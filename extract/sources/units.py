"""Whose an image is, where people are named, not numbered."""

import csv
import hashlib
import io
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import check_unit_name
from oneshot_dp.extract.sources.example import shortened
from oneshot_dp.extract.storage.anywhere import read_file


def numbers_of(
  names: Sequence[str | None], unit: str, where: Callable[[int], str]
) -> list[int]:
  """A `unit_id` for each row: 63 bits of BLAKE2b of its unit's name.

  A function of the name alone, so that no unit moves another, and the same in
  every data set. Two names with one number are refused, not merged: whoever
  leaves a shared unit changes it, and a change may cost twice what an absence
  does. Spaces around a name are no part of it.

  `unit` is what they name ("patient"), and `where` says where a row is, both
  for errors: a row without a name (None or blank); two names with one number.
  """
  known = [(name or "").strip() for name in names]
  if missing := [where(i) for i, name in enumerate(known) if not name]:
    n = len(missing)
    have = "1 image has" if n == 1 else f"{n:,} images have"
    raise InputError(
      f"{have} no {unit}, and each needs one: {shortened(missing)}."
    )
  owners: dict[int, str] = {}
  for name in set(known):
    code = name.encode(errors="surrogatepass")
    digest = hashlib.blake2b(code, digest_size=8).digest()
    number = int.from_bytes(digest) >> 1
    if number in owners:
      raise InputError(
        f"{unit} {owners[number]!r} and {name!r} have one number, by chance:"
        " call one of them otherwise."
      )
    owners[number] = name
  numbers = {name: number for number, name in owners.items()}
  return [numbers[name] for name in known]


def units_of_files(
  units: str, images: Sequence[str], split: str
) -> tuple[str, list[int]]:
  """The public name of the unit, and a `unit_id` for each image file.

  `units` is FILE.csv with the columns `file` and, say, `patient`, or a regular
  expression with one group that has a name: `(?P<patient>[^_]+)_`. `images` are
  relative to the folder that the table is about, and start with `split`
  ("train/", or nothing): other rows are about other splits. InputError: neither
  can be read; an image without a unit, a row without an image or there twice.
  """
  if units.lower().endswith(".csv"):
    unit, owners = _table(units)
    known = set(images)
    strays = [f for f in owners if f.startswith(split) and f not in known]
    if strays:
      raise InputError(
        f"{units!r} names {len(strays):,} files that are no images of the data"
        f" set: {shortened(strays)}; remove their rows."
      )
  else:
    unit, owners = _by_path(units, images)
  whose = [owners.get(image) for image in images]
  return unit, numbers_of(whose, f"{unit} in {units!r}", images.__getitem__)


def _by_path(
  pattern: str, images: Sequence[str]
) -> tuple[str, Mapping[str, str | None]]:
  try:
    compiled = re.compile(pattern)
  except re.error as error:
    raise InputError(
      f"source.units={pattern!r} is neither a .csv file nor a regular"
      f" expression: {error}."
    ) from error
  if compiled.groups != 1 or not compiled.groupindex:
    raise InputError(
      f"source.units={pattern!r} must have one group, named after the unit:"
      " (?P<patient>…)."
    )
  (unit,) = compiled.groupindex
  check_unit_name(unit)
  found = {image: compiled.search(image) for image in images}
  return unit, {image: match and match[1] for image, match in found.items()}


def _table(path: str) -> tuple[str, Mapping[str, str]]:
  try:
    text = read_file(path).decode("utf-8-sig")
    file = io.StringIO(text, newline="")
    rows = [*csv.reader(file, skipinitialspace=True, strict=True), []]
  except OSError as error:
    reason = error.strerror or error
    raise InputError(f"{path!r} cannot be read: {reason}.") from error
  except (UnicodeDecodeError, csv.Error) as error:
    raise InputError(f"{path!r} is no CSV file in UTF-8: {error}.") from error
  header, *lines = [[field.strip() for field in row] for row in rows]
  if other := re.search(r"^file\s*([;|\t])", ",".join(header)):
    raise InputError(f"{path!r} is separated by {other[1]!r}; it must be ','.")
  if len(header) != 2 or header[0] != "file":
    raise InputError(
      f"{path!r} begins with {','.join(header)[:80]!r}: its first line must be"
      ' "file," and what owns an image, such as file,patient.'
    )
  check_unit_name(header[1])
  owners: dict[str, str] = {}
  for line in filter(None, lines):
    if len(line) != 2:
      raise InputError(
        f"{path!r} has a line of {len(line)} fields instead of 2, that of"
        f" {line[0]!r}."
      )
    file = posixpath.normpath(line[0])
    if file in owners:
      raise InputError(f"{path!r} has {file!r} more than once.")
    owners[file] = line[1]
  return header[1], owners
