"""Names of classes, which are public, and labels and owners, which are not."""

import collections
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError, check_name, check_num_classes
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.sources.listed_files import File, shortened
from oneshot_dp.extract.sources.owners import units_of_column
from oneshot_dp.extract.sources.source import Source


class NamelessClassesError(InputError):
  """Nothing says which classes there are."""


class FileRows(NamedTuple):
  """A file of rows: where its images are, and its columns, in batches.

  `key` is the column of labels, and `named` what names the classes. See
  `Source` for `column` and `at`.
  """

  file: File
  column: str
  at: Int64[np.ndarray, "r 2"]
  key: str
  named: Sequence[Any]
  labels: Iterable[Sequence[Any]]
  units: Iterable[Sequence[Any]]


def source_of(
  settings: SourceSettings, rows: Iterable[FileRows], labelled: bool
) -> Source:
  """Files of rows, one after another; without labels, all are of class 0.

  InputError: a row has no label or owner, or files are of different classes.
  """
  names, known = ("unlabelled",), {}
  files, at, nothing = [], [], np.zeros(0, np.int64)
  labels, owners = [nothing], [nothing]
  for row in rows:
    before = names
    if labelled:
      names = class_names(row.named, settings, row.file.path)
      read = functools.partial(label_numbers, names=names, key=row.key)
      labels += _numbers(row, row.labels, read)
    else:
      labels.append(np.zeros(len(row.at), np.int64))
    if files and names != before:
      raise InputError(f"{row.file.path!r} has other classes than others.")
    if unit := settings.units:
      read = functools.partial(units_of_column, unit=unit, known=known)
      owners += _numbers(row, row.units, read)
    at.append(np.insert(row.at, 0, len(files), axis=1))
    files.append((row.file, row.column))
  return Source(
    name=settings.name or "unlabelled",
    split=settings.split or "all",
    class_names=names,
    unit=settings.units or EXAMPLE,
    labels=np.concatenate(labels).astype(np.int32),
    unit_ids=np.concatenate(owners) if settings.units else None,
    files=tuple(file.path for file, _ in files),
    sizes=np.array([file.size for file, _ in files], np.int64),
    versions=np.array([file.version for file, _ in files], np.int64),
    columns=tuple(column for _, column in files),
    at=np.concatenate(at),
  )


def _numbers(
  rows: FileRows,
  batches: Iterable[Sequence[Any]],
  read: Callable[..., list[int]],
) -> list[np.ndarray]:
  found, n, path = [], 0, rows.file.path
  for values in batches:
    where = functools.partial(_where, path, n)
    found.append(np.array(read(values, where=where), np.int64))
    n += len(found[-1])
  if n != len(rows.at):
    raise InputError(f"{path!r} is damaged: {n} of {len(rows.at)} rows.")
  return found


def _where(path: str, first: int, row: int) -> str:
  return f"{path}[{first + row}]"


def chosen(
  place: str, flag: str, key: str | None, candidates: Sequence[str]
) -> str:
  """The column that was asked for, the only one, or that of the flag's name."""
  if key is None:
    usual = flag.removeprefix("--")
    key = candidates[0] if len(candidates) == 1 else usual
  if key not in candidates:
    has = shortened(candidates) or "none"
    raise InputError(f"{place!r}: {flag} {key!r} is none of {has}.")
  return key


def class_names(
  named: Iterable[Any], settings: SourceSettings, place: str
) -> tuple[str, ...]:
  """The public names of all classes, which are never read off the labels.

  They are what the data say beside their labels (`named`), or flags.
  InputError: nobody says it, two say it differently, or a name cannot be.
  """
  found, stated = tuple(map(str, named)), tuple(settings.class_names)
  names, k = found or stated, settings.num_classes
  if not names and k is None:
    raise NamelessClassesError(
      f"{place!r} names no classes: give --class-names or --num-classes"
      " (labels are private, so neither is read off them)."
    )
  if (stated and names != stated) or k not in (None, len(names) or k):
    raise InputError(
      f"{place!r} names {len(names)} classes ({shortened(names)}), and a flag"
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
