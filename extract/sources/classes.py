"""Names of classes, which are public, and labels and owners, which are not."""

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from oneshot_dp.configs.errors import InputError, check_name, check_num_classes
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.sources.listed_files import shortened
from oneshot_dp.extract.sources.owners import units_of_column


class NamelessClassesError(InputError):
  """Nothing says which classes there are."""


class FileRows(NamedTuple):
  """What a file of rows has: columns of values, in batches."""

  path: str
  rows: int
  where: Callable[[int], str]
  key: str
  named: Sequence[str]
  labels: Iterable[Sequence[Any]]
  units: Iterable[Sequence[Any]]


def listed_fields(
  settings: SourceSettings, files: Iterable[FileRows], labelled: bool
) -> dict[str, Any]:
  """Classes, labels and owners of all rows, as fields of a `Source`.

  Of each row 16 bytes stay in memory. InputError: a row has none, or files are
  of different classes.
  """
  names, known = None, {}
  labels, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

  def column(file: FileRows, batches: Iterable[Any], read: Any) -> list[Any]:
    found, row = [], 0
    for values in batches:
      where = functools.partial(_where, file, row)
      found.append(np.array(read(values, where=where), np.int64))
      row += len(found[-1])
    if row != file.rows:
      raise InputError(f"{file.path!r} is damaged: {row} of {file.rows} rows.")
    return found

  for file in files:
    if labelled:
      now = class_names(file.named, settings, file.path)
      if names not in (None, now):
        raise InputError(f"{file.path!r} has other classes than files before.")
      names = now
      read = functools.partial(label_numbers, names=now, key=file.key)
      labels += column(file, file.labels, read)
    else:
      labels.append(np.zeros(file.rows, np.int64))
    if unit := settings.units:
      read = functools.partial(units_of_column, unit=unit, known=known)
      owners += column(file, file.units, read)
  return {
    "class_names": names or ("unlabelled",),
    "labels": np.concatenate(labels).astype(np.int32),
    "unit": settings.units or EXAMPLE,
    "unit_ids": np.concatenate(owners) if settings.units else None,
  }


def _where(file: FileRows, first: int, row: int) -> str:
  return file.where(first + row)


def chosen(
  place: str,
  flag: str,
  key: str | None,
  candidates: Sequence[str],
  usual: str | None = None,
) -> str:
  """The column that was asked for, the only one, or the usual one."""
  if key is None:
    key = candidates[0] if len(candidates) == 1 else usual
  if key in candidates:
    return str(key)
  raise InputError(
    f"{place!r}: {flag} must be one of {shortened(candidates) or 'none'}"
    f"{f', and is {key!r}' if key else ''}."
  )


def class_names(
  named: Iterable[Any], settings: SourceSettings, place: str
) -> tuple[str, ...]:
  """The public names of all classes, which are never read off the labels.

  They are what the data say beside their labels (`named`), or flags.
  InputError: nobody says it, two say it differently, or a name cannot be.
  """
  found, stated = tuple(map(str, named)), tuple(settings.class_names)
  if found and stated and stated != found:
    raise InputError(
      f"{place!r} has the classes {shortened(found)}: leave --class-names out."
    )
  names, k = found or stated, settings.num_classes
  if not names and k is None:
    raise NamelessClassesError(
      f"{place!r} names no classes: give --class-names or --num-classes"
      " (labels are private, so neither is read off them)."
    )
  if names and k not in (None, len(names)):
    raise InputError(
      f"--num-classes {k}, but {place!r} names {len(names)} classes: leave it"
      " out."
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
  """Labels as class indices; texts are names of classes, or else numbers.

  InputError: rows have none of the classes; names a few.
  """
  index = {name: label for label, name in enumerate(names)}
  # Where 2 is the name of class 0, a text cannot be both.
  may_count = all(n == str(i) for n, i in index.items() if n.isdecimal())

  def number(value: Any) -> int:
    if isinstance(value, str):
      is_number = may_count and value.isdecimal() and len(value) < 19
      return index.get(value, int(value) if is_number else -1)
    return value if type(value) is int else -1

  labels = [number(value) for value in values]
  if wrong := [i for i, k in enumerate(labels) if not 0 <= k < len(names)]:
    raise InputError(
      f"images without a label {key!r} among the {len(names)} classes, by name"
      f" or from 0 to {len(names) - 1}: {shortened([where(i) for i in wrong])}."
    )
  return labels
