"""Opens a source of images; its location says what kind of source it is."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, escaped, format_count
from oneshot_dp.configs.extract_config import (
  DISTINCT_IMAGE,
  EXAMPLE,
  SAME_IMAGE,
  SourceConfig,
  check_unit_name,
)
from oneshot_dp.extract import hub
from oneshot_dp.extract.file_table import FileTable
from oneshot_dp.extract.image_files import IMAGE_SUFFIXES
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.annotations.labels import (
  class_names,
  label_numbers,
  warn_of_labels_from_one,
  warn_of_one_class,
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
from oneshot_dp.extract.sources.annotations.splits import (
  check_folder_splits,
  check_splits,
  refuse_differing_splits,
  resolve_split,
  split_of_columns,
  split_of_path,
  split_tables,
)
from oneshot_dp.extract.sources.file_format import FileRows
from oneshot_dp.extract.sources.folder import open_folder
from oneshot_dp.extract.sources.formats import (
  TABLE_SUFFIXES,
  format_of,
  is_image,
  is_table,
  is_unreadable_photograph,
  left_out_warnings,
  unreadable_photographs,
)
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.location import (
  advice,
  common_folder,
  expand_location,
  list_tables,
)
from oneshot_dp.extract.sources.source import Source

_UNLABELED = "unlabeled"
_PASSED_OVER_CHARACTERS = 300


def open_source(config: SourceConfig) -> Source:
  """Opens one split of a labeled data set.

  It is listed, and labels and units are read, so this is done once, where a job
  is started. A data set of TFDS or the Hub that is not on the disk yet is
  downloaded.

  Args:
    config: the location, the split, and the flags about labels and units.

  Returns:
    A source, of which no image has been decoded yet.

  Raises:
    InputError: there is no such data set or split, or it is not what it should
      be.
    RunError: a data set of TFDS or the Hub cannot be downloaded or prepared.
  """
  if not isinstance(config, SourceConfig):
    raise InputError(
      f"config={config!a} must be a SourceConfig(location=('photos',))."
    )
  if config.units == SAME_IMAGE:
    # The owner of a row follows from its image, which only workers read.
    source = open_source(dataclasses.replace(config, units=None))
    return dataclasses.replace(source, unit=DISTINCT_IMAGE)
  source = _open_any(config)
  warn_of_one_class(config.location[0], source.class_names)
  return source


def _open_any(config: SourceConfig) -> Source:
  """Opens a source whose owners, if any, are known before an image is read."""
  if len(config.location) == 1 and config.location[0].startswith("tfds:"):
    # TFDS takes seconds to import.
    from oneshot_dp.extract.sources.tfds import open_tfds

    return open_tfds(config)
  if config.data_dir is not None:
    raise InputError("--data-dir is for tfds:NAME: leave it out.")
  if is_on_hub(config.location):
    return _open_hub_dataset(config)
  paths = expand_location(config.location)
  # A folder with an image anywhere in it is a folder of images, and tables
  # beside them are passed over; without one it is a folder of tables.
  if len(paths) == 1:
    files = listed_files.files_in(paths[0])
    if any(is_image(path) for path in files.paths()):
      return _open_images(config, paths[0], files)
  return _open_tables(config, paths)


def is_on_hub(location: Sequence[str]) -> bool:
  """Whether a location is an address of the Hugging Face Hub."""
  return len(location) == 1 and location[0].startswith(hub.PROTOCOL)


def _open_hub_dataset(config: SourceConfig) -> Source:
  """Opens the Parquet files of one split, downloading them first if need be."""
  if config.units is not None:
    check_unit_name(config.units)
  dataset = hub.find_dataset(config.location[0])
  # The split follows from names in the repository. Messages show whole
  # addresses, which can be given instead.
  prefix = f"{dataset.root}/"
  by_split: dict[str, list[str]] = {}
  for split, paths in split_tables(dataset.paths, TABLE_SUFFIXES).items():
    by_split[split] = [prefix + path for path in paths]
  split, addresses = resolve_split(config.location[0], config.split, by_split)
  chosen = [address.removeprefix(prefix) for address in addresses]
  print(
    f"reading {len(chosen):,} files of {dataset.pinned}, split {split}",
    file=sys.stderr,
  )
  folder = hub.download_files(dataset, chosen)
  files = [listed_files.file_at(os.path.join(folder, path)) for path in chosen]
  name = config.name or dataset.repository
  config = dataclasses.replace(
    config, location=(folder,), name=name, split=split
  )
  return _labeled_rows(config, files)


def _open_images(config: SourceConfig, root: str, files: FileTable) -> Source:
  if config.image or config.label:
    raise InputError("--image and --label are for tables, not for folders.")
  source = open_folder(config, root, files)
  if len(source) < len(files):  # of millions, names are looked at once
    others = [path for path in files.paths() if not is_image(path)]
    _report_passed_over(root, others)
  if source.unit_ids is not None:
    check_owners(source.unit, source.unit_ids, source.labels)
  return source


def _report_passed_over(root: str, others: Sequence[str]) -> None:
  """Says which files of a data set are not read, and warns of photographs."""
  for warning in left_out_warnings(others):
    shown = escaped(f"{root}: {warning}", but="")[:_PASSED_OVER_CHARACTERS]
    print(f"WARNING: {shown}", file=sys.stderr)
  if others:
    suffixes: set[str] = set()
    for path in others:
      _, suffix = os.path.splitext(path)
      suffixes.add(suffix.lower() or "without a suffix")
    count = format_count(len(others), "file")
    message = f"{root}: {count}, {', '.join(sorted(suffixes))}"
    shown = escaped(message, but="")[:_PASSED_OVER_CHARACTERS]
    print(f"passed over in {shown}", file=sys.stderr)


def _open_tables(config: SourceConfig, paths: Sequence[str]) -> Source:
  name, files = list_tables(paths, TABLE_SUFFIXES)
  if not files:
    raise InputError(f"{paths[0]!r} is empty: {advice(TABLE_SUFFIXES)}.")
  photographs = [path for path in files if is_unreadable_photograph(path)]
  if photographs and not any(is_table(path) for path in files):
    raise InputError(f"{paths[0]!r}: {unreadable_photographs(photographs)}.")
  by_split = split_tables(files, TABLE_SUFFIXES)
  _report_passed_over(paths[0], [path for path in files if not is_table(path)])
  # A single file may hold several splits: train_image, test_image …
  if len(files) == 1:
    ((path, file),) = files.items()
    kind = format_of(path)
    splits = kind.list_splits(file)
    if not splits and kind.any_split:
      splits = [_split_of_arrays(config, path)]
    if splits:
      by_split = {split: [path] for split in splits}
  split, members = resolve_split(paths[0], config.split, by_split)
  if config.units is not None:
    check_unit_name(config.units)
  config = dataclasses.replace(
    config,
    location=(common_folder(files) or ".",),
    name=config.name or os.path.splitext(name)[0],
    split=split,
  )
  return _labeled_rows(config, [files[path] for path in members])


def _split_of_arrays(config: SourceConfig, path: str) -> str:
  """The split of a file that is of whatever split a flag says.

  InputError: its name says another one.
  """
  name = os.path.basename(path)
  refuse_differing_splits(path, config.split, [name])
  columns = split_of_columns((config.image, config.label))
  return config.split or columns or split_of_path(name) or "all"


def _labeled_rows(config: SourceConfig, files: Sequence[File]) -> Source:
  """Lists the rows of all files, with their labels and units.

  InputError: a row has no label or owner, or files have different classes.
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


def open_unlabeled(paths: Sequence[str]) -> Source:
  """Opens the images of files and folders, without labels.

  They come in the order of the paths; those of a folder in the order of their
  names by code point, and those of a table in the order of its rows.

  Args:
    paths: image files, tables, and folders of them at any depth.

  Returns:
    A source whose labels are all 0; see `images_of`.

  Raises:
    InputError: a path is none of these, or has no image.
  """
  files: list[File] = []
  for path in expand_location(paths):
    members = listed_files.files_in(path)
    if not members and not os.path.isdir(path):
      files.append(listed_files.file_at(path))
      continue
    listed_files.refuse_broken(path, members)
    # The rule of `open_source`: images of a folder, or else its tables, not
    # both.
    chosen = [file for file in members if is_image(file.path)]
    if not chosen:
      chosen = [file for file in members if is_table(file.path)]
    if not chosen:
      names = [file.path for file in members]
      photographs = [name for name in names if is_unreadable_photograph(name)]
      if photographs:
        raise InputError(f"{path!r}: {unreadable_photographs(photographs)}.")
      raise InputError(
        f"{path!r} has no images: they end in {', '.join(IMAGE_SUFFIXES)}, or"
        f" are in {', '.join(TABLE_SUFFIXES)} files."
      )
    files += [listed_files.join_folder(path, file) for file in chosen]
  return images_of(files)


def images_of(files: Sequence[File], image: str | None = None) -> Source:
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
