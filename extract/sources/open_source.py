"""Opens a source of images; its location says what kind of source it is."""

import dataclasses
import os
import sys
from collections.abc import Sequence

from oneshot_dp.configs.errors import InputError, escaped, format_count
from oneshot_dp.configs.extract_config import (
  DISTINCT_IMAGE,
  SAME_IMAGE,
  SourceConfig,
  check_unit_name,
)
from oneshot_dp.extract import hub
from oneshot_dp.extract.file_table import FileTable
from oneshot_dp.extract.image_files import IMAGE_SUFFIXES
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.annotations.labels import (
  warn_of_one_class,
)
from oneshot_dp.extract.sources.annotations.owner_names import (
  check_owners,
)
from oneshot_dp.extract.sources.annotations.split_columns import (
  refuse_differing_splits,
  split_of_columns,
)
from oneshot_dp.extract.sources.annotations.splits import (
  resolve_split,
  split_of_path,
  split_tables,
)
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
from oneshot_dp.extract.sources.source_of_files import (
  labeled_source,
  unlabeled_source,
)

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
    from oneshot_dp.extract.sources.tfds.tfds_source import open_tfds

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
  return labeled_source(config, files)


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
  return labeled_source(config, [files[path] for path in members])


def _split_of_arrays(config: SourceConfig, path: str) -> str:
  """The split of a file that is of whatever split a flag says.

  InputError: its name says another one.
  """
  name = os.path.basename(path)
  refuse_differing_splits(path, config.split, [name])
  columns = split_of_columns((config.image, config.label))
  return config.split or columns or split_of_path(name) or "all"


def open_unlabeled(paths: Sequence[str]) -> Source:
  """Opens the images of files and folders, without labels.

  They come in the order of the paths; those of a folder in the order of their
  names by code point, and those of a table in the order of its rows.

  Args:
    paths: image files, tables, and folders of them at any depth.

  Returns:
    A source whose labels are all 0; see `unlabeled_source`.

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
  return unlabeled_source(files)
