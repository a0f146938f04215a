"""Columns of Parquet files, read without unfolding what rows share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import compute, parquet

from oneshot_dp.extract.sources.limits import (
  MAX_COLUMN_BYTES,
  MAX_WORD_BYTES,
  check_bytes,
  check_rows,
)
from oneshot_dp.extract.sources.parquet.page_headers import checked_pages

PARQUET = "Parquet file"
"""What a file is to be, for messages."""
STRINGS = (pa.string(), pa.large_string(), pa.string_view())
_VALUES_AT_ONCE = 1 << 16
_PAGE_BUFFER = 1 << 20
_MOST_GROUPS = 256
_compute: Any = compute  # whose functions are made when it is imported


def read_values(content: Any, path: str, column: str) -> list[Any]:
  """Reads the integers or strings of a column; nulls become None.

  Args:
    content: the open file.
    path: of the file, for messages.
    column: a name of the schema, or of `inner_columns`.

  Raises:
    InputError: the column unfolds to too many rows or bytes.
  """
  # The column is measured before any of it is unfolded, and rows are counted as
  # they come: a run of a billion equal labels is a few bytes of its page.
  table = open_parquet(content, column)
  num_bytes = 0
  for group in row_groups(table):
    num_bytes += measure_column(content, path, group, column).unfolded_bytes
    check_bytes(path, f"column {column!r}", num_bytes, MAX_COLUMN_BYTES)
  values: list[Any] = []
  for batch in table.iter_batches(_VALUES_AT_ONCE, columns=[column]):
    array = batch.column(0)
    while isinstance(array, pa.StructArray):  # with this field of it alone
      array = array.field(0)
    values += python_values(path, column, array)
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
  # Rows refer to the same few words: each becomes one Python string, which all
  # its rows share.
  shared = words.to_pylist()
  values: list[Any] = []
  for index in array.indices.to_pylist():
    values.append(None if index is None else shared[index])
  return values


def is_plain(kind: pa.DataType) -> bool:
  """Whether values of a type are strings, numbers or truth values."""
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
  return kind in STRINGS or is_number or pa.types.is_boolean(kind)


def inner_columns(schema: pa.Schema) -> list[str]:
  """The names of plain values within structs, such as meta.split."""
  # Spark and `datasets` write nested records as structs, where a split or an
  # owner is as easily overlooked as it matters.
  names: list[str] = []
  unseen = [(field.name, field.type) for field in schema]
  while unseen:
    name, kind = unseen.pop()
    if isinstance(kind, pa.StructType):
      inner = [kind.field(i) for i in range(kind.num_fields)]
      unseen += [(f"{name}.{field.name}", field.type) for field in inner]
    elif "." in name and name not in schema.names and is_plain(kind):
      names.append(name)
  return sorted(names)


def extreme_words(table: parquet.ParquetFile) -> dict[str, set[str]]:
  """The least and greatest value of each column of strings, by the footer.

  Columns of strings have captions and addresses of millions of rows, which are
  not read to see what they are.

  Args:
    table: the open file, of which only the footer is used.

  Returns:
    Column, such as image.path, to its extremes in row groups; without those
    that the footer does not state, or not as text.
  """
  extremes: dict[str, set[str]] = {}
  # Some programs make a group of each row: groups far apart are enough.
  groups = row_groups(table)
  for group in groups[:: max(1, len(groups) // _MOST_GROUPS)]:
    for i in range(group.num_columns):
      chunk = group.column(i)
      if chunk.physical_type != "BYTE_ARRAY" or not chunk.is_stats_set:
        continue
      try:
        least = chunk.statistics.min
        greatest = chunk.statistics.max
      except UnicodeDecodeError:  # text that was cut in the middle
        continue
      if isinstance(least, str) and isinstance(greatest, str):
        words = extremes.setdefault(chunk.path_in_schema, set())
        words.update((least, greatest))
  return extremes


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


def open_parquet(
  content: Any, column: str, *, expanded: bool = False
) -> parquet.ParquetFile:
  """Opens a file to read a column page by page, without expanding dictionaries.

  A dictionary may have one cell of 100 MB that each of a thousand rows refers
  to; Arrow would make a thousand copies of it.

  Args:
    content: the open file.
    column: the column that will be read.
    expanded: whether each row is to have a copy of its cell all the same.
  """
  content.seek(0)
  metadata = parquet.read_metadata(content)
  with_bytes: list[str] = []
  for i in range(metadata.num_columns):
    leaf = metadata.schema.column(i)
    is_binary = leaf.physical_type == "BYTE_ARRAY"
    if is_binary and _is_part(leaf.path, column) and not expanded:
      with_bytes.append(leaf.path)
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


class ColumnSize(NamedTuple):
  """What a column of a row group takes.

  Attributes:
    num_values: of all its leaves, nulls included.
    stored_bytes: that it takes in the file.
    unfolded_bytes: of its pages. A value counts as a byte at least: runs of
      equal pixels are short in a page.
    dictionary_bytes: of the largest page that has values which rows refer to.
  """

  num_values: int
  stored_bytes: int
  unfolded_bytes: int
  dictionary_bytes: int


def measure_column(
  content: Any, path: str, group: Any, column: str, *, first_page: bool = False
) -> ColumnSize:
  """Measures a column by its pages, and checks that each can be read.

  Args:
    content: the open file.
    path: of the file, for messages.
    group: the metadata of the row group.
    column: the name of the column.
    first_page: whether only the first page is looked at, where a dictionary
      is, and the footer is believed about the others. In a bucket each page of
      a large column costs a request.

  Raises:
    InputError: a page unfolds to more than any page of real data.
  """
  num_values = 0
  stored = 0
  unfolded = 0
  dictionary = 0
  for i in range(group.num_columns):
    chunk = group.column(i)
    # A group without rows may have no pages, wherever it says that they are.
    if not group.num_rows or not _is_part(chunk.path_in_schema, column):
      continue
    stored += chunk.total_compressed_size
    if first_page:
      num_values += chunk.num_values
      unfolded += max(chunk.total_uncompressed_size, chunk.num_values)
    for page in checked_pages(content, path, column, chunk):
      # Arrow copies the dictionary for each batch: whoever reads some rows has
      # to know how large it is.
      if page.is_dictionary:
        dictionary = max(dictionary, page.unfolded_bytes)
      if first_page:
        break
      num_values += page.num_values
      unfolded += max(page.unfolded_bytes, page.num_values)
  return ColumnSize(num_values, stored, unfolded, dictionary)


def unfolded_bytes(images: pa.Array) -> int:
  """Bytes of a batch of cells if each row had a copy of its own."""
  # A dictionary's cell is decoded once for each row that refers to it: the time
  # of a job follows from these bytes, and not from those in memory.
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
