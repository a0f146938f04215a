"""Makes a source of listed files: of all their rows, labeled or not.

Each file is listed by its format. What holds for all files together is checked
here: one list of classes, owners of one kind, rows of one split.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE, SourceConfig
from oneshot_dp.extract.sources.annotations.labels import (
  class_names,
  label_numbers,
  warn_of_labels_from_one,
  warn_of_second_label,
  warn_of_unusual_label,
)
from oneshot_dp.extract.sources.annotations.owner_names import (
  check_owner_names,
  check_owners,
  check_unused_owners,
  refuse_mixed_owners,
  units_of_column,
)
from oneshot_dp.extract.sources.annotations.split_columns import (
  check_folder_splits,
  check_splits,
)
from oneshot_dp.extract.sources.file_format import FileRows
from oneshot_dp.extract.sources.formats import format_of
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.source import Source

_UNLABELED = "unlabeled"


def labeled_source(config: SourceConfig, files: Sequence[File]) -> Source:
  """Makes a source of the rows of listed files, with their labels and owners.

  Args:
    config: the flags about classes, labels and units; its location is the one
      folder of the data set, and its name and split are those of the source.
    files: of one split, in the order of their rows.

  Returns:
    A source, of which no image has been decoded.

  Raises:
    InputError: a row has no label or owner, files have different classes, or
      rows are of several splits.
  """
  # Each file is checked as if it were alone, and all must have the same
  # classes, or a label would mean one class here and another there.
  names: tuple[str, ...] = ()
  unit_names: dict[int, str] = {}
  all_rows: list[FileRows] = []
  labels: list[np.ndarray] = []
  units: list[np.ndarray] = []
  for file in files:
    rows = format_of(file.path).list_rows(config, file, labeled=True)
    file_names = class_names(rows.class_names, config, file.path)
    if all_rows and file_names != names:
      raise InputError(
        f"{file.path!r} defines different classes from the other files."
      )
    names = file_names
    all_rows.append(rows)
    labels.append(_labels_of(file, rows, names))
    if config.units is not None:
      units.append(_units_of(file, rows, config.units, unit_names))
  place = files[0].path if len(files) == 1 else config.location[0]
  if all(_are_labels_numbers(rows) for rows in all_rows):
    warn_of_labels_from_one(place, np.concatenate(labels), len(names))
  _warn_of_doubtful_labels(place, config, all_rows)
  _check_splits(place, config, all_rows)
  check_folder_splits(
    place,
    config.split or "all",
    [file.path for file in files],
    config.location[0],
    (all_rows[0].label_column, config.units),
  )
  # Without a unit each row is protected by itself, which is the wrong promise
  # where a column says whose it is; with one, owners must be what they seem.
  unit_ids = None
  if config.units is None:
    unused: set[str] = set()
    for rows in all_rows:
      unused.update(rows.other_columns)
    check_unused_owners(place, unused)
  else:
    check_owner_names(unit_names.values(), config.units)
    unit_ids = np.concatenate(units)
    refuse_mixed_owners(config.units, unit_ids, unit_names)
    check_owners(config.units, unit_ids, np.concatenate(labels))
  return Source(
    name=config.name or "",
    split=config.split or "all",
    class_names=names,
    unit=config.units or EXAMPLE,
    labels=np.concatenate(labels),
    unit_ids=unit_ids,
    files=tuple(files),
    columns=tuple(rows.column for rows in all_rows),
    locations=_locations(all_rows),
  )


def _warn_of_doubtful_labels(
  place: str, config: SourceConfig, all_rows: Sequence[FileRows]
) -> None:
  """Warns, once for all files, of labels that may not be those meant."""
  if config.label is None and all_rows[0].are_indices:
    warn_of_unusual_label(place, all_rows[0].label_column)
  for rows in all_rows:
    if rows.second_label:
      warn_of_second_label(place, rows.label_column, rows.second_label)
      return


def _are_labels_numbers(rows: FileRows) -> bool:
  """Whether labels are numbers, which nothing says the meaning of."""
  if rows.are_indices or not len(rows.labels):
    return False
  # All labels of a file are of one kind, by its format: one stands for all.
  first = rows.labels[0]  # tars have text alone
  return type(first) is int or (type(first) is str and first.isdecimal())


def _labels_of(file: File, rows: FileRows, names: Sequence[str]) -> np.ndarray:
  """The class index of each row of a file."""
  numbers = label_numbers(
    rows.labels,
    names,
    rows.label_column,
    lambda row: f"{file.path}[{row}]",
    rows.are_indices,
  )
  _check_length(file, rows, len(numbers))
  return np.array(numbers, np.int32)


def _units_of(
  file: File, rows: FileRows, unit: str, unit_names: dict[int, str]
) -> np.ndarray:
  """The number of each row's owner; `unit_names` grows by their names."""
  numbers = units_of_column(
    list(rows.units), unit, lambda row: f"{file.path}[{row}]", unit_names
  )
  _check_length(file, rows, len(numbers))
  return np.array(numbers, np.int64)


def _check_splits(
  place: str, config: SourceConfig, all_rows: Sequence[FileRows]
) -> None:
  """InputError: a column of the files says that rows are of several splits."""
  # Over all files: a file of each split is the mistake, too, where their names
  # do not say it.
  values_of: dict[str, set[Any]] = {}
  for rows in all_rows:
    for column, values in rows.splits.items():
      values_of.setdefault(column, set()).update(values)
  for column, values in values_of.items():
    check_splits(place, config.split or "all", column, values)


def _check_length(file: File, rows: FileRows, count: int) -> None:
  total = len(rows.locations)
  if count != total:
    raise InputError(f"{file.path!r} is damaged: {count} of {total} rows.")


def _locations(all_rows: Sequence[FileRows]) -> np.ndarray:
  """Returns for each row the number of its file, and its location there."""
  parts = [np.zeros((0, 3), np.int64)]
  for number, rows in enumerate(all_rows):
    part = np.full((len(rows.locations), 3), number, np.int64)
    part[:, 1:] = rows.locations
    parts.append(part)
  return np.concatenate(parts)


def unlabeled_source(files: Sequence[File], image: str | None = None) -> Source:
  """Makes a source of the images of listed files, without labels.

  Args:
    files: as they were listed, by their whole paths.
    image: the column or array that has the images, where a file has several;
      None for the only one.

  Returns:
    A source whose labels are all 0, of a single class called "unlabeled".

  Raises:
    InputError: a file is damaged, or has no images, or several columns of them.
  """
  config = SourceConfig(location=(".",), image=image)
  all_rows: list[FileRows] = []
  for file in files:
    all_rows.append(format_of(file.path).list_rows(config, file, labeled=False))
  locations = _locations(all_rows)
  return Source(
    name=_UNLABELED,
    split="all",
    class_names=(_UNLABELED,),
    labels=np.zeros(len(locations), np.int32),
    files=tuple(files),
    columns=tuple(rows.column for rows in all_rows),
    locations=locations,
  )
