"""Images without labels, as `predict` and `inspect` are given them."""

import bisect
import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.folder import Folder
from oneshot_dp.extract.sources.listed_files import IMAGES, TABLES, File
from oneshot_dp.extract.sources.open_source import open_table
from oneshot_dp.extract.sources.source import Example, Listed, Source

_NO_CLASSES = ("unlabelled",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unlabelled(Source):
  """Images of one made-up class, part by part."""

  parts: tuple[Listed, ...]
  name: str = "unlabelled"
  split: str = "all"
  class_names: tuple[str, ...] = _NO_CLASSES

  @functools.cached_property
  def _starts(self) -> list[int]:
    return [0, *itertools.accumulate(map(len, self.parts))]

  def __len__(self) -> int:
    return self._starts[-1]

  def __getitem__(self, index: int) -> Example:
    part, row = self._at(index)
    return part[row]

  def name_of(self, index: int) -> str:
    """What an image is called in a table of answers: a path, FILE[row]."""
    part, row = self._at(index)
    return part.place(row)

  def _at(self, index: int) -> tuple[Listed, int]:
    if not 0 <= index < len(self):
      raise IndexError(f"{index} is not in [0, {len(self)}).")
    part = bisect.bisect_right(self._starts, index) - 1
    return self.parts[part], index - self._starts[part]


def unlabelled(paths: Sequence[str], image: str | None = None) -> Unlabelled:
  """The images of files, folders at any depth, npz, Parquet files and tars.

  They come in the order of the paths, those of a folder in that of their names
  by code point, those of a file in that of its rows.

  Args:
    paths: where they are.
    image: the array, column or extension that has them, where several can.

  Raises:
    InputError: one is none of these, or has no image.
  """
  parts: list[Listed] = []
  for is_row, group in itertools.groupby(
    listed_files.expanded(paths),
    lambda path: listed_files.is_folder(path) or _has_rows(path),
  ):
    if is_row:
      parts += [part for path in group for part in _rows(path, image)]
    else:
      parts.append(files_of("", [listed_files.file_at(path) for path in group]))
  return Unlabelled(parts=tuple(parts))


def files_of(root: str, files: Sequence[File]) -> Folder:
  """Image files as a source without labels."""
  labels = np.zeros(len(files), np.int32)
  fields = {"name": root, "split": "all", "class_names": _NO_CLASSES}
  return Folder.of(root, files, labels=labels, **fields)


def _has_rows(path: str) -> bool:
  return path.lower().endswith((".npz", *TABLES))


def _rows(path: str, image: str | None) -> list[Listed]:
  settings = SourceSettings(location=(path,), image=image)
  if not listed_files.is_folder(path):
    if path.lower().endswith(".npz"):
      from oneshot_dp.extract.sources.npz import open_npz

      return [open_npz(settings, path, labelled=False)]
    return [open_table(settings, path, "all", [path], labelled=False)]
  files = listed_files.files_in(path)
  listed_files.refuse_broken(path, files)
  if images := [f for f in files if listed_files.is_image(f.path)]:
    return [files_of(path, images)]
  if tables := [f.path for f in files if f.path.lower().endswith(TABLES)]:
    paths = [os.path.join(path, table) for table in tables]
    return [part for each in paths for part in _rows(each, image)]
  raise InputError(
    f"{path!r} has no images: they end in {', '.join(IMAGES)}, or are in files"
    f" that end in {', '.join(TABLES)}."
  )
