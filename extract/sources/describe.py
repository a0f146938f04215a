"""Looks at all images of a location as an extraction would, for `inspect`."""

import bisect
import dataclasses
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt64
from tqdm import tqdm

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import (
  MAX_PIXELS,
  NO_OWNER,
  SAME_IMAGE,
  SourceConfig,
)
from oneshot_dp.extract import hub
from oneshot_dp.extract.file_table import columns_of, make_table
from oneshot_dp.extract.image_files import BitDepthError, DecodeError
from oneshot_dp.extract.images import decoded, image_key
from oneshot_dp.extract.images_report import ImagesReport
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.annotations.labels import MissingFlagError
from oneshot_dp.extract.sources.annotations.splits import is_split, split_tables
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
  expand_location,
  refuse_prepared,
)
from oneshot_dp.extract.sources.open_source import is_on_hub, open_source
from oneshot_dp.extract.sources.source import Source
from oneshot_dp.extract.sources.source_of_files import unlabeled_source
from oneshot_dp.extract.threads import prefetch_map

_MAX_AHEAD = 1024
_IMAGES_PER_TASK = 8


def describe_images(
  config: SourceConfig,
  bit_depth: int | None = None,
  max_pixels: int = MAX_PIXELS,
) -> ImagesReport:
  """Looks at every image of every split once, on all cores.

  In memory are the names of files, and some tens of bytes of each image.

  Args:
    config: the location, and the flags that an extraction would be given.
    bit_depth: how many bits of 16-bit files are used.
    max_pixels: images that have more are faults.

  Raises:
    InputError: nothing is there, or it is tfds:NAME.
  """
  if config.units == SAME_IMAGE:
    # Whose an image is follows from the image: nothing of it can be wrong.
    config = dataclasses.replace(config, units=None)
  # This runs the code of an extraction. An error does not end the report: it
  # becomes a line of it, and everything else is looked at all the same.
  report = ImagesReport(location=" ".join(config.location))
  files: list[File] = []
  if is_on_hub(config.location):
    dataset = hub.find_dataset(config.location[0])
    paths = [hub.download_files(dataset, dataset.paths)]
    files = _files_of(dataset, paths[0])
    # Splits are opened by their address, which must not move meanwhile.
    config = dataclasses.replace(config, location=(dataset.pinned,))
  else:
    paths = expand_location(config.location)
    if len(paths) == 1:
      files = _sound_files(paths[0], report)
  if any(is_image(file.path) for file in files):
    sources = _describe_folder(config, paths[0], files, report)
  else:
    sources = _describe_tables(config, paths, files, report)
  for warning in left_out_warnings(report.passed_over):
    if warning not in report.faults:
      report.warnings.append(warning)
  _scan_images(sources, report, bit_depth, max_pixels)
  return report.escaped()


def _sound_files(folder: str, report: ImagesReport) -> list[File]:
  """Files of a folder; what cannot be read is added to the faults."""
  files: list[File] = []
  for file in listed_files.files_in(folder):
    if file.size < 0:
      report.faults.append(
        f"{file.path!r}: leads nowhere or back, or may not be read"
      )
    else:
      files.append(file)
  return files


def _files_of(dataset: hub.HubDataset, folder: str) -> list[File]:
  """Files of the Hub by their names in the folder that has them now."""
  files: list[File] = []
  for path in dataset.paths:
    file = listed_files.file_at(os.path.join(folder, path))
    files.append(file._replace(path=path))
  return files


class _Sources(NamedTuple):
  """All images of a location, and those of its splits that can be extracted."""

  images: list[Source]
  splits: list[Source]


def _describe_folder(
  config: SourceConfig, root: str, files: Sequence[File], report: ImagesReport
) -> _Sources:
  """Adds what an extraction would make of a folder."""
  images = [file for file in files if is_image(file.path)]
  others = [file.path for file in files if not is_image(file.path)]
  report.passed_over += others
  table = make_table([columns_of(files)])
  splits = [f for f in listed_files.folders_in(root, table) if is_split(f)]
  # CLASS/FILE, or SPLIT/CLASS/FILE where there are splits.
  depth = 2 if splits else 1
  strays = {file for file in images if file.path.count("/") < depth}
  for stray in sorted(strays):
    report.faults.append(f"{stray.path!r}: in no class folder")
  in_folders = [file for file in files if file not in strays]
  sound = make_table([columns_of(in_folders)])
  labeled: list[Source] = []
  for split in splits or [None]:
    split_config = dataclasses.replace(config, split=split)
    try:
      labeled.append(open_folder(split_config, root, sound))
    except (InputError, RunError) as error:
      _add_error(error, report)
  for source in labeled:
    _count_labels(source, report)
  whole = [listed_files.join_folder(root, file) for file in images]
  return _Sources([unlabeled_source(whole)], labeled)


def _describe_tables(
  config: SourceConfig,
  paths: Sequence[str],
  files: Sequence[File],
  report: ImagesReport,
) -> _Sources:
  """Adds what an extraction would make of tables."""
  tables = [file.path for file in files if is_table(file.path)]
  for file in files:
    if not is_table(file.path):
      report.passed_over.append(file.path)
  # Each table is opened by itself, so that one broken file hides none of the
  # others.
  places = list(paths)
  if tables:
    places = [os.path.join(paths[0], table) for table in tables]
  parts: list[Source] = []
  try:
    if not tables:
      _refuse_no_tables(paths[0], report.passed_over)
    by_split = split_tables(tables or paths, TABLE_SUFFIXES)
    splits: list[str | None] = [split for split in by_split if split]
    splits = splits or [None]
  except InputError as error:
    report.faults.append(str(error))
    return _Sources([], [])
  for place in places:
    try:
      file = listed_files.file_at(place)
      arrays = format_of(place).list_splits(file)
      if arrays:
        splits = list(arrays)
        parts += [
          unlabeled_source([file], f"{split}_image") for split in arrays
        ]
      else:
        parts.append(unlabeled_source([file]))
    except (InputError, RunError) as error:
      report.faults.append(str(error))
  labeled: list[Source] = []
  if parts:
    labeled = _describe_splits(config, splits, report)
  return _Sources(parts, labeled)


def _refuse_no_tables(folder: str, names: Sequence[str]) -> None:
  """Raises InputError if it is known what a folder without tables is."""
  refuse_prepared(folder, names)
  photographs = [name for name in names if is_unreadable_photograph(name)]
  if photographs:
    raise InputError(unreadable_photographs(photographs))


def _describe_splits(
  config: SourceConfig, splits: Sequence[str | None], report: ImagesReport
) -> list[Source]:
  """Adds the classes and owners of each split of tables."""
  labeled: list[Source] = []
  for split in splits:
    split_config = dataclasses.replace(config, split=split)
    try:
      labeled.append(open_source(split_config))
    except (InputError, RunError) as error:
      _add_error(error, report)
  for source in labeled:
    _count_labels(source, report)
  return labeled


def _add_error(error: Exception, report: ImagesReport) -> None:
  if isinstance(error, MissingFlagError):
    report.notes.append(str(error))
  elif str(error) not in report.faults:
    report.faults.append(str(error))


def _count_labels(source: Source, report: ImagesReport) -> None:
  """Adds the images of each class of a split, and of its owners."""
  names = source.class_names
  counts = np.bincount(source.labels, minlength=len(names)).tolist()
  report.classes[source.split] = dict(zip(names, counts, strict=True))
  if source.unit_ids is not None:
    owners = source.unit_ids
    if owners.ndim == 2:
      owners = owners[owners != NO_OWNER]
    _, per_owner = np.unique(owners, return_counts=True)
    report.owners[source.split] = {
      "unit": source.unit,
      "number": len(per_owner),
      "most": int(max(per_owner, default=0)),
    }


class _AllImages:
  """The images of several sources, numbered one after the other."""

  def __init__(self, sources: Sequence[Source]):
    self._sources = sources
    self._starts = [0]
    for source in sources:
      self._starts.append(self._starts[-1] + len(source))

  def __len__(self) -> int:
    return self._starts[-1]

  def find(self, index: int) -> tuple[Source, int]:
    """The source that has an image, and its index there."""
    number = bisect.bisect(self._starts, index) - 1
    return self._sources[number], index - self._starts[number]

  def name_of(self, index: int) -> str:
    """Where an image is, for messages."""
    source, place = self.find(index)
    return source.name_of(place)


def _scan_images(
  sources: _Sources,
  report: ImagesReport,
  bit_depth: int | None,
  max_pixels: int,
) -> None:
  """Adds what decoding all images shows: faults, sizes and duplicates."""
  images = _AllImages(sources.images)
  total = len(images)
  # Threads write to different rows of these arrays, so no lock is needed. Rows
  # of broken images stay zero in both.
  keys = np.zeros((total, 2), np.uint64)
  sides = np.zeros((total, 2), np.int32)
  faults: dict[int, Exception] = {}
  warnings: dict[int, str] = {}

  def scan(index: int) -> None:
    source, place = images.find(index)
    try:
      image = source.image(place)
      with decoded(image, bit_depth, max_pixels) as result:
        height, width, _ = result.pixels.shape
        if result.warning:
          warnings[index] = f"{images.name_of(index)}: {result.warning}"
        del result  # while it counts: the next image is decoded at once
      sides[index] = width, height
      keys[index] = image_key(image)
    except (InputError, RunError, DecodeError) as error:
      faults[index] = error

  threads = os.cpu_count() or 1
  scanned = prefetch_map(
    scan, range(total), _MAX_AHEAD, threads, _IMAGES_PER_TASK
  )
  with tqdm(total=total, desc="inspect", unit=" images", disable=None) as bar:
    for _ in scanned:
      bar.update()
  report.num_images = total
  for index in sorted(faults):
    report.faults.append(f"{images.name_of(index)}: {faults[index]}")
  if any(isinstance(fault, BitDepthError) for fault in faults.values()):
    report.notes.append("16-bit images are nearly black: give --bit-depth.")
  report.warnings += [warnings[index] for index in sorted(warnings)]
  report.sizes = _sizes(sides)
  groups = _equal_keys(keys)
  for group in groups:
    names = [images.name_of(index) for index in group]
    report.duplicates.append(" = ".join(names))
  report.label_conflicts = _label_conflicts(images, groups, sources.splits)


def _label_conflicts(
  images: _AllImages, groups: Sequence[Sequence[int]], splits: Sequence[Source]
) -> list[str]:
  """Equal images that are in several classes, each with its class."""
  # Images are known by their place: the scan and the splits number them in ways
  # of their own.
  class_of = _classes_of(images, groups, splits)
  conflicts: list[str] = []
  for group in groups:
    classes: set[str] = set()
    named: list[str] = []
    for index in group:
      source, place = images.find(index)
      name = class_of.get(source.place_of(place))
      if name is not None:
        classes.add(name)
        named.append(f"{images.name_of(index)} ({name})")
    if len(classes) > 1:
      conflicts.append(" = ".join(named))
  return conflicts


def _classes_of(
  images: _AllImages, groups: Sequence[Sequence[int]], splits: Sequence[Source]
) -> dict[tuple[str, str, int, int], str]:
  """The classes, by place, of the images that are equal to others.

  Other images are left out: the places of all of them would fill the memory.
  """
  places: set[tuple[str, str, int, int]] = set()
  for group in groups:
    for index in group:
      source, place = images.find(index)
      places.add(source.place_of(place))
  class_of: dict[tuple[str, str, int, int], str] = {}
  if not places:
    return class_of
  for source in splits:
    for index, label in enumerate(source.labels.tolist()):
      image_place = source.place_of(index)
      if image_place in places:
        class_of[image_place] = source.class_names[label]
  return class_of


def _sizes(sides: Int32[np.ndarray, "n 2"]) -> list[str]:
  """Smallest, median and largest width and height of what could be decoded."""
  known = sides[sides[:, 0] > 0]
  if not len(known):
    return []
  quantiles = np.percentile(known, [0, 50, 100], axis=0, method="nearest")
  return [f"{width} x {height}" for width, height in quantiles]


def _equal_keys(keys: UInt64[np.ndarray, "n 2"]) -> list[list[int]]:
  """Groups of at least two indices whose keys are equal, and not zero."""
  # Equal keys are neighbors once sorted: a dictionary of millions of images
  # would take ten times the memory.
  order = np.lexsort((keys[:, 1], keys[:, 0]))
  differs = (np.diff(keys[order], axis=0) != 0).any(axis=1)
  groups: list[list[int]] = []
  for group in np.split(order, np.flatnonzero(differs) + 1):
    if len(group) > 1 and keys[group[0]].any():
      groups.append(group.tolist())
  return groups
