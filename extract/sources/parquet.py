"""Images in a column of Parquet files: bytes, structs with bytes, or pixels.

Hugging Face datasets, Spark, Ray and Daft write such columns. The ClassLabel
that `datasets` notes in the schema names the classes. Folders that are called
`label=cat` are a column of all files in them.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract import storage
from oneshot_dp.extract.pixel_columns import (
  has_pixels,
  is_pixel_struct,
  noted_shape,
  pixels_of,
)
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.file_format import FileRows, ImageData
from oneshot_dp.extract.sources.labels import class_labels, resolve_choice
from oneshot_dp.extract.sources.limits import (
  MAX_ARRAY_BYTES,
  MAX_IMAGE_BYTES,
  check_bytes,
  check_rows,
  check_unfolding,
)
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.parquet_columns import (
  STRINGS,
  ColumnSize,
  is_plain,
  measure_column,
  named_values,
  open_parquet,
  read_values,
  row_groups,
  unfolded_bytes,
)
from oneshot_dp.extract.sources.splits import may_say_split, partition_columns

_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
_PARQUET = "Parquet file"
_BATCH_BYTES = 1 << 25
_KEPT_BYTES = 1 << 29
_MAX_DICTIONARY_BYTES = 1 << 27
"""Of a dictionary that is kept as one. Arrow copies it for each batch."""


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
    with listed_files.reopened(self._file, _PARQUET) as content:
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


def parquet_rows(
  config: SourceConfig, file: File, *, labeled: bool
) -> FileRows:
  """Lists the rows of a Parquet file.

  Args:
    config: names the columns, where the schema leaves a choice.
    file: as it was listed.
    labeled: whether labels are wanted.

  Raises:
    InputError: the file is damaged, or has no such columns.
  """
  # The schema is in the footer: columns are chosen before any page is read.
  label_column = ""
  class_names: tuple[str, ...] = ()
  # Whoever lists a data set has put its one folder here.
  root = config.location[0]
  labels: list[Any] = []
  units: list[Any] = []
  other_columns: list[str] = []
  with listed_files.opened(file, _PARQUET) as content:
    schema = parquet.ParquetFile(content).schema_arrow
    locations = _locations(content, file.path)
    images = [field.name for field in schema if _is_image(field)]
    image = resolve_choice(file.path, "--image", config.image, images)
    if labeled:
      label_column, class_names = _label_column(
        config, schema, images, file.path
      )
      labels = _column_values(
        content, file.path, root, label_column, len(locations)
      )
      for name in (*schema.names, *partition_columns(file.path, root)):
        if name not in (image, label_column):
          other_columns.append(name)
    if config.units is not None:
      columns = [name for name in schema.names if name not in images]
      _check_column(schema, columns, "--units", config.units, file.path, root)
      units = _column_values(
        content, file.path, root, config.units, len(locations)
      )
    splits: dict[str, list[Any]] = {}
    if labeled:
      for name in _split_columns(schema, (label_column, config.units)):
        values = read_values(content, file.path, name)
        names = class_labels(schema.metadata).get(name, ())
        splits[name] = named_values(values, names)
  return FileRows(
    column=image,
    locations=locations,
    label_column=label_column,
    class_names=class_names,
    labels=labels,
    are_indices=bool(class_names),
    units=units,
    splits=splits,
    other_columns=other_columns,
  )


def _split_columns(schema: pa.Schema, used: Sequence[str | None]) -> list[str]:
  """The columns of plain values that may say the split of each row."""
  names: list[str] = []
  for field in schema:
    is_candidate = may_say_split(field.name) and field.name not in used
    if is_candidate and is_plain(field.type):
      names.append(field.name)
  return names


def _column_values(
  content: Any, path: str, root: str, column: str, num_rows: int
) -> list[Any]:
  """The values of a column of the file, or of the folders that it is in."""
  partitions = partition_columns(path, root)
  if column in partitions:
    return [partitions[column]] * num_rows
  return read_values(content, path, column)


def _locations(content: Any, path: str) -> np.ndarray:
  """The row group of each row, and its number in the group."""
  content.seek(0)
  groups = row_groups(parquet.ParquetFile(content))
  sizes = [group.num_rows for group in groups]
  for size in sizes:
    check_rows(path, size)
  check_rows(path, sum(sizes))
  locations = np.zeros((sum(sizes), 2), np.int64)
  start = 0
  for number, size in enumerate(sizes):
    locations[start : start + size, 0] = number
    locations[start : start + size, 1] = np.arange(size)
    start += size
  return locations


def _rows_per_batch(num_rows: int, size: ColumnSize, *, expanded: bool) -> int:
  bytes_per_row = size.unfolded_bytes / max(1, num_rows)
  rows = min(1024, int(_BATCH_BYTES / max(1.0, bytes_per_row)))
  if expanded:  # each row may be the largest cell of the dictionary
    rows = min(rows, MAX_IMAGE_BYTES // size.dictionary_bytes)
  return max(1, rows)


def _label_column(
  config: SourceConfig, schema: pa.Schema, images: list[str], path: str
) -> tuple[str, tuple[str, ...]]:
  """The column of labels, and the names of the classes, if it has such."""
  columns = [name for name in schema.names if name not in images]
  candidates = [*columns, *partition_columns(path, config.location[0])]
  classes = class_labels(schema.metadata)
  if config.label:
    label = resolve_choice(path, "--label", config.label, candidates)
  elif classes:
    # A column that is called "label" is meant before another that has names.
    named = [name for name in ("label",) if name in candidates]
    label = resolve_choice(path, "--label", None, [*classes, *named])
  else:
    label = resolve_choice(path, "--label", "label", candidates)
  _check_column(schema, columns, "--label", label, path, config.location[0])
  return label, classes.get(label, ())


def _check_column(
  schema: pa.Schema,
  columns: list[str],
  flag: str,
  name: str,
  path: str,
  root: str,
) -> None:
  """Raises InputError unless a column is one of integers or strings."""
  partitions = partition_columns(path, root)
  name = resolve_choice(path, flag, name, [*columns, *partitions])
  if columns.count(name) > 1 or (name in partitions and name in schema.names):
    raise InputError(f"{path!r} has several columns {name!r}: leave one.")
  if name in partitions:
    return
  kind = schema.field(name).type
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  if not (pa.types.is_integer(kind) or kind in STRINGS):
    raise InputError(
      f"{path!r}: {flag} {name!r} is {str(kind)[:80]!a}: it must be integers"
      " or strings."
    )


def _is_image(field: pa.Field) -> bool:
  """Whether a column has bytes, structs that have them, or pixels."""
  if has_pixels(field):
    return True
  kind = field.type
  if isinstance(kind, pa.StructType):
    place = kind.get_field_index("bytes")
    if place < 0:
      return False
    kind = kind.field(place).type
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  return kind in _BINARY
