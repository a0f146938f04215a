"""Columns of Parquet files, read without unfolding what rows share."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import compute, parquet

from oneshot_dp.extract.sources.limits import (
  MAX_COLUMN_BYTES,
  MAX_WORD_BYTES,
  check_bytes,
  check_rows,
)

STRINGS = (pa.string(), pa.large_string(), pa.string_view())
_VALUES_AT_ONCE = 1 << 16
_PAGE_BUFFER = 1 << 20
_compute: Any = compute  # whose functions are made when it is imported


def read_values(content: Any, path: str, column: str) -> list[Any]:
  """Reads the integers or strings of a column; nulls become None.

  Args:
    content: the open file.
    path: of the file, for messages.
    column: a name of the schema.

  Raises:
    InputError: the column unfolds to too many rows or bytes.
  """
  table = open_parquet(content, column)
  sizes = [column_bytes(group, column) for group in row_groups(table)]
  check_bytes(path, f"column {column!r}", sum(sizes), MAX_COLUMN_BYTES)
  values: list[Any] = []
  for batch in table.iter_batches(_VALUES_AT_ONCE, columns=[column]):
    values += python_values(path, column, batch.column(0))
    check_rows(path, len(values))
  return values


def python_values(path: str, column: str, array: pa.Array) -> list[Any]:
  """Returns the values of a batch; rows of a dictionary share them.

  Args:
    path: of the file, for messages.
    column: the name of the column, for messages.
    array: the batch.

  Raises:
    InputError: a value is too long for the name of a class or an owner.
  """
  is_dictionary = pa.types.is_dictionary(array.type)
  words = array.dictionary if is_dictionary else array
  if words.type in STRINGS:
    # A thousand rows may have one word of megabytes, and each is hashed.
    longest = _compute.max(_lengths(words)).as_py() or 0
    check_bytes(path, f"a value of {column!r}", longest, MAX_WORD_BYTES)
  if not is_dictionary:
    return array.to_pylist()
  shared = words.to_pylist()
  values: list[Any] = []
  for index in array.indices.to_pylist():
    values.append(None if index is None else shared[index])
  return values


def is_plain(kind: pa.DataType) -> bool:
  """Whether values of a type are strings, integers or truth values."""
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  is_number = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
  return kind in STRINGS or is_number


def named_values(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
  """The values of a column, where a class index is the name of the class.

  Args:
    values: of the column.
    names: of its classes; empty where it is no ClassLabel.
  """
  named: list[Any] = []
  for value in values:
    is_index = isinstance(value, int) and 0 <= value < len(names)
    named.append(names[value] if is_index else value)
  return named


def open_parquet(content: Any, column: str) -> parquet.ParquetFile:
  """Opens a file to read a column page by page, without expanding dictionaries.

  A dictionary may have one cell of 100 MB that each of a thousand rows refers
  to; Arrow would make a thousand copies of it.

  Args:
    content: the open file.
    column: the column that will be read.
  """
  content.seek(0)
  metadata = parquet.read_metadata(content)
  leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
  with_bytes = [
    leaf.path
    for leaf in leaves
    if leaf.physical_type == "BYTE_ARRAY" and _is_part(leaf.path, column)
  ]
  content.seek(0)
  return parquet.ParquetFile(
    content,
    metadata=metadata,
    read_dictionary=with_bytes,
    buffer_size=_PAGE_BUFFER,
  )


def _is_part(path: str, column: str) -> bool:
  """Whether a leaf of the schema belongs to a column."""
  return path == column or path.startswith(f"{column}.")


def row_groups(table: parquet.ParquetFile) -> list[Any]:
  """Returns the metadata of each row group, from the footer."""
  metadata = table.metadata
  return [metadata.row_group(i) for i in range(metadata.num_row_groups)]


def column_bytes(group: Any, column: str) -> int:
  """Computes the unpacked bytes of a column in a row group.

  A value counts as a byte at least: runs of equal pixels are short in a page.

  Args:
    group: the metadata of the row group.
    column: the name of the column.
  """
  chunks = [group.column(i) for i in range(group.num_columns)]
  return sum(
    max(chunk.total_uncompressed_size, chunk.num_values)
    for chunk in chunks
    if _is_part(chunk.path_in_schema, column)
  )


def unfolded_bytes(images: pa.Array) -> int:
  """Bytes of a batch of cells if each row had a copy of its own."""
  if isinstance(images.type, pa.StructType):
    place = images.type.get_field_index("bytes")
    if place < 0:
      return images.nbytes
    images = images.field(place)
  if not isinstance(images, pa.DictionaryArray):
    return images.nbytes
  lengths = _lengths(images.dictionary).take(images.indices)
  return _compute.sum(lengths).as_py() or 0  # None, where all rows are null


def _lengths(array: pa.Array) -> pa.Array:
  """Bytes of each cell of strings or binary cells; null of a null."""
  return _compute.binary_length(array)
