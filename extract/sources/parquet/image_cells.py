"""Reads images of Parquet files on workers, from cells of row groups.

A row group may have more bytes than memory, and a page unfolds to many times
its own: no more is read at a time than a batch, and batches are kept for the
threads that read near one another.
"""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.extract import storage
from oneshot_dp.extract.pixel_columns import (
  is_pixel_struct,
  noted_shape,
  pixels_of,
)
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.file_format import ImageData
from oneshot_dp.extract.sources.limits import (
  MAX_ARRAY_BYTES,
  MAX_IMAGE_BYTES,
  check_bytes,
  check_unfolding,
)
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.parquet.table_columns import (
  PARQUET,
  ColumnSize,
  measure_column,
  open_parquet,
  unfolded_bytes,
)

_BATCH_BYTES = 1 << 25
_KEPT_BYTES = 1 << 29
_MAX_DICTIONARY_BYTES = 1 << 27
"""The largest dictionary kept as one. Arrow copies it for each batch."""


class _Batch(NamedTuple):
  """Consecutive images of a row group, from row `start` on."""

  start: int
  images: pa.Array
  num_bytes: int


class _GroupReader:
  """Reads the images of one row group, some rows at a time.

  A row group may have more bytes than memory, so no more of it is read than a
  batch. Parquet can only be read on from where one is; a row that is behind is
  read from the beginning of the group again, and a job reads in order.
  """

  def __init__(self, file: File, column: str, group: int):
    self._file = file
    self._column = column
    self._group = group
    self._batches: Iterator[Any] = iter(())
    self._next_row = 0
    self._unfolded_bytes = 0
    self._fault: InputError | None = None
    self.pixel_shape: tuple[int, ...] = ()
    self.kept: list[_Batch] = []

  @property
  def kept_bytes(self) -> int:
    """Bytes of the batches in memory."""
    return sum(batch.num_bytes for batch in self.kept)

  def row(self, row: int) -> Any:
    """The cell of a row, as an Arrow scalar."""
    # Rows come in order, a few threads apart: nearly all are in a batch that is
    # kept.
    for batch in self.kept:
      if 0 <= row - batch.start < len(batch.images):
        return batch.images[row - batch.start]
    return self._read_to(row)

  def _read_to(self, row: int) -> Any:
    if row < self._next_row or not self._next_row:
      self._batches = self._open()
      self._next_row = 0
      self._unfolded_bytes = 0
    # Threads ask for thousands of rows of a group that was refused at its
    # first: it is not read again for each.
    if self._fault is not None:
      raise self._fault
    for images in self._batches:
      self._check_unfolding(images)
      # Those on the way are kept, too: another thread asks for them next.
      batch = _Batch(self._next_row, images, images.nbytes)
      self.kept.append(batch)
      self._next_row += len(images)
      if row < self._next_row:
        return images[row - batch.start]
      while self.kept_bytes > _KEPT_BYTES:
        self.kept.pop(0)
    if self._fault is not None:
      raise self._fault
    raise InputError(f"{self._file.path!r} has fewer rows than it states.")

  def _open(self) -> Iterator[Any]:
    with listed_files.reopened(self._file, PARQUET) as content:
      metadata = parquet.read_metadata(content).row_group(self._group)
      try:
        size = self._measure(content, metadata)
      except InputError as error:  # the file is as it was, and a bomb
        self._fault = error
        return
      # What a thousand photographs of half a megabyte begin with, as pandas
      # writes them, is a dictionary of 512 MB, of which no two rows share a
      # cell.
      expanded = size.dictionary_bytes > _MAX_DICTIONARY_BYTES
      table = open_parquet(content, self._column, expanded=expanded)
      self.pixel_shape = noted_shape(table.schema_arrow.field(self._column))
      rows = _rows_per_batch(metadata.num_rows, size, expanded=expanded)
      for batch in table.iter_batches(
        rows, row_groups=[self._group], columns=[self._column]
      ):
        yield batch.column(0)

  def _measure(self, content: Any, metadata: Any) -> ColumnSize:
    """InputError: a page, or all of them, unfold to more than real data do."""
    path = self._file.path
    size = measure_column(
      content,
      path,
      metadata,
      self._column,
      first_page=storage.is_url(path),
    )
    check_unfolding(
      path,
      f"column {self._column!r}",
      size.unfolded_bytes,
      size.stored_bytes,
      MAX_ARRAY_BYTES,
    )
    return size

  def _check_unfolding(self, images: pa.Array) -> None:
    """InputError: rows refer to one cell so often that it takes hours."""
    self._unfolded_bytes += unfolded_bytes(images)
    try:
      check_unfolding(
        self._file.path,
        f"column {self._column!r}",
        self._unfolded_bytes,
        self._file.size,
        MAX_ARRAY_BYTES,
      )
    except InputError as error:
      self._fault = error
      raise


class _Readers:
  """Row groups that threads read last: 512 MiB, and one batch in any case.

  The threads of a job read near one another, each at a place of its own.
  """

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._readers: dict[Any, _GroupReader] = {}

  def cell(
    self, file: File, column: str, group: int, row: int
  ) -> tuple[Any, tuple[int, ...]]:
    """The cell of a row, as an Arrow scalar, and the shape of all pixels."""
    with self._lock:
      key = (file, column, group)
      # Taken out and put in again, so that the dictionary is ordered by last
      # use.
      reader = self._readers.pop(key, None)
      if reader is None:
        reader = _GroupReader(file, column, group)
      self._readers[key] = reader  # the last of all now
      cell = reader.row(row)
      self._forget_oldest()
    return cell, reader.pixel_shape

  def clear(self) -> None:
    """Forgets all row groups."""
    with self._lock:
      self._readers.clear()

  def _forget_oldest(self) -> None:
    kept_bytes = sum(reader.kept_bytes for reader in self._readers.values())
    while kept_bytes > _KEPT_BYTES:
      oldest = next(iter(self._readers))
      reader = self._readers[oldest]
      if len(self._readers) > 1:
        kept_bytes -= reader.kept_bytes
        del self._readers[oldest]
      elif len(reader.kept) > 1:
        kept_bytes -= reader.kept.pop(0).num_bytes
      else:
        return


_readers = _Readers()


def read_cell(file: File, column: str, group: int, row: int) -> ImageData:
  """Reads an image of a row group.

  Args:
    file: as it was listed.
    column: the column of the images.
    group: the number of the row group.
    row: the number of the row in the group.

  Returns:
    The bytes of an image file, or pixels; no bytes where the cell is null or
    has only a path.

  Raises:
    InputError: the cell is larger than any image, or the file is a bomb.
    RunError: the file cannot be read any more.
  """
  try:
    cell, shape = _readers.cell(file, column, group, row)
    if shape or is_pixel_struct(cell.type):
      return pixels_of(cell, shape) if cell.is_valid else b""
    if isinstance(cell, pa.StructScalar):
      cell = cell["bytes"]
    if isinstance(cell, pa.DictionaryScalar):
      cell = cell.value
    if not cell.is_valid:
      return b""
    size = cell.as_buffer().size
    check_bytes(file.path, f"{column!r} of a row", size, MAX_IMAGE_BYTES)
    return cell.as_py()
  except InputError:  # a ValueError that says by itself what is wrong
    raise
  except (ValueError, IndexError, KeyError, pa.ArrowException) as error:
    raise RunError(
      f"{file.path!r} has a cell that cannot be read: {one_line(error)}."
    ) from error


def _rows_per_batch(num_rows: int, size: ColumnSize, *, expanded: bool) -> int:
  bytes_per_row = size.unfolded_bytes / max(1, num_rows)
  rows = min(1024, int(_BATCH_BYTES / max(1.0, bytes_per_row)))
  if expanded:  # each row may be the largest cell of the dictionary
    rows = min(rows, MAX_IMAGE_BYTES // size.dictionary_bytes)
  return max(1, rows)
