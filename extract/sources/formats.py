"""The formats that files of images may have: one row each.

A new format is a file beside this one and a row here. `extract`, `predict` and
`inspect` then read it, and folders of it, without a change.
"""

import os
import re
from collections.abc import Sequence

import numpy as np

from oneshot_dp.configs.errors import InputError, format_count
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
  from oneshot_dp.extract.sources.parquet import table_rows

  return table_rows.parquet_rows(config, file, labeled=labeled)


def _read_cell(file: File, column: str, group: int, row: int) -> ImageData:
  from oneshot_dp.extract.sources.parquet import image_cells

  return image_cells.read_cell(file, column, group, row)


_IMAGE = Format(
  name="image",
  suffixes=IMAGE_SUFFIXES,
  is_table=False,
  list_rows=_image_rows,
  read_image=_read_file,
)
# Formats of photographs that are not read: a person who has them must not
# believe that they were. Of cameras, of hospitals, and of other programs.
_UNREADABLE = re.compile(
  r"\.(tiff?|hei[cf]s?|hif|jxl|jp[2fx]|j2k|psd|dng|nef|cr[23]|arw|raw|rw2|orf"
  r"|raf|pef|srw|dcm|dicom|nii|svs|ndpi|p[bgnp]m|exr|hdr|tga|ico|svg|eps)"
)
# Files that lie beside photographs, and are none.
_DOCUMENT = re.compile(
  r"\.(txt|[ct]sv|jsonl?|xml|ya?ml|toml|ini|md|rst|html?|pdf|docx?|xlsx?|py"
  r"|ipynb|log|db|mat|pkl|md5|sha256)|readme|license|copying|makefile|_success"
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
  suffix = os.path.splitext(path)[1].lower()
  return bool(_UNREADABLE.fullmatch(suffix)) and not is_image(path)


def _is_document(path: str) -> bool:
  """Whether a file is named as one that is no photograph."""
  stem, suffix = os.path.splitext(os.path.basename(path).lower())
  return bool(_DOCUMENT.fullmatch(suffix or stem))


def left_out_warnings(others: Sequence[str]) -> list[str]:
  """Says which of the files that are passed over are, or may be, photographs.

  Args:
    others: names of files that are neither read as images nor as tables.
  """
  photographs: list[str] = []
  unknown: list[str] = []
  for path in others:
    if is_unreadable_photograph(path):
      photographs.append(path)
    elif not is_table(path) and not _is_document(path):
      unknown.append(path)
  warnings: list[str] = []
  if photographs:
    warnings.append(unreadable_photographs(photographs))
  if unknown:
    warnings.append(
      f"{format_count(len(unknown), 'file')} not named as images, LEFT OUT:"
      f" {format_names(unknown)}; what is an image needs the suffix of its"
      " format, such as .jpg"
    )
  return warnings


def unreadable_photographs(paths: Sequence[str]) -> str:
  """Says which photographs are left out, and what to do about it."""
  suffixes = {os.path.splitext(path)[1].lower() for path in paths}
  return (
    f"{format_count(len(paths), 'photograph')} of a format that is not read,"
    f" LEFT OUT: {format_names(paths)}; {reading_advice(suffixes)}"
  )
