"""The formats that files of images may have: one row each.

A new format is a file beside this one and a row here. `extract`, `predict` and
`inspect` then read it, and folders of it, without a change.
"""

import os
from collections.abc import Sequence

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.image_files import IMAGE_SUFFIXES, reading_advice
from oneshot_dp.extract.sources import listed_files, npz, tar
from oneshot_dp.extract.sources.file_format import FileRows, Format, ImageData
from oneshot_dp.extract.sources.listed_files import File, format_names


def _image_rows(config: SourceConfig, file: File, *, labeled: bool) -> FileRows:
  """An image file is one row; only the folder that it is in has its label."""
  if labeled:
    raise InputError(f"{file.path!r} is an image, and has no label.")
  return FileRows(column="", locations=np.array([(0, file.size)], np.int64))


def _read_file(file: File, column: str, start: int, size: int) -> bytes:
  """An image that is a file, or a part of one."""
  return listed_files.read(file, start, size)


# Importing Arrow takes a third of a second: only Parquet files wait for it.
def _parquet_rows(
  config: SourceConfig, file: File, *, labeled: bool
) -> FileRows:
  from oneshot_dp.extract.sources import parquet

  return parquet.parquet_rows(config, file, labeled=labeled)


def _read_cell(file: File, column: str, group: int, row: int) -> ImageData:
  from oneshot_dp.extract.sources import parquet

  return parquet.read_cell(file, column, group, row)


_IMAGE = Format(
  name="image",
  suffixes=IMAGE_SUFFIXES,
  is_table=False,
  list_rows=_image_rows,
  read_image=_read_file,
)
# Formats of photographs that are not read: a person who has them must not
# believe that they were.
_UNREADABLE = (
  ".tif",
  ".tiff",
  ".heic",
  ".heif",
  ".jxl",
  ".jp2",
  ".dng",
  ".nef",
  ".cr2",
  ".cr3",
  ".arw",
)
FORMATS = (
  _IMAGE,
  Format(
    name="npz of plain arrays",
    suffixes=(".npz",),
    list_rows=npz.npz_rows,
    read_image=npz.read_row,
    list_splits=npz.array_splits,
    any_split=True,
  ),
  Format(
    name="Parquet file",
    suffixes=(".parquet",),
    list_rows=_parquet_rows,
    read_image=_read_cell,
  ),
  Format(
    name="tar",
    suffixes=(".tar",),
    list_rows=tar.tar_rows,
    read_image=_read_file,
  ),
)


def _table_suffixes() -> tuple[str, ...]:
  suffixes: list[str] = []
  for kind in FORMATS:
    if kind.is_table:
      suffixes += kind.suffixes
  return tuple(suffixes)


TABLE_SUFFIXES = _table_suffixes()


def format_of(path: str) -> Format:
  """The format that the name of a file says; else it is taken for an image.

  Args:
    path: of the file; what follows the last dot counts, in any case.
  """
  suffix = os.path.splitext(path)[1].lower()
  for kind in FORMATS:
    if suffix in kind.suffixes:
      return kind
  return _IMAGE


def is_image(path: str) -> bool:
  """Whether a file is named as an image."""
  return path.lower().endswith(IMAGE_SUFFIXES)


def is_table(path: str) -> bool:
  """Whether a file is named as one that has images in rows."""
  return path.lower().endswith(TABLE_SUFFIXES)


def is_unreadable_photograph(path: str) -> bool:
  """Whether a file is named as an image of a format that is not read."""
  return path.lower().endswith(_UNREADABLE) and not is_image(path)


def unreadable_photographs(paths: Sequence[str]) -> str:
  """Says which photographs are left out, and what to do about it."""
  suffixes = {os.path.splitext(path)[1].lower() for path in paths}
  return (
    f"{len(paths):,} photographs are of a format that is not read, and are LEFT"
    f" OUT: {format_names(paths)}; {reading_advice(suffixes)}"
  )
