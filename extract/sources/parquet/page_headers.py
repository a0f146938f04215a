"""What the pages of a Parquet column unfold to, by their own headers.

Arrow unfolds a page whole before any row of it is seen, and takes up to four
times its bytes. The footer of the file says how many bytes a whole column has,
which is little help: it may be a single cell, and it may be false. Each page
has a header of its own, which Arrow goes by, so these headers are what is
bounded here before Arrow is let near the column.

Source: Apache Parquet's `parquet.thrift` (PageHeader), written in Thrift's
compact protocol.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from oneshot_dp.extract.sources.limits import (
  MAX_COLUMN_BYTES,
  check_bytes,
  check_unfolding,
)

_MOST_UNFOLDING = 100
"""How many times its bytes in the file a large page may unfold to."""
# Numbers of fields in PageHeader, and in the three kinds of headers in it.
_UNFOLDED, _STORED = 2, 3
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_NUM_VALUES = 1
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64 = range(7)
_DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(7, 13)
# A varint has seven bits a byte, so that 64 bits take ten. In a header there is
# a struct of the kind of page, and one of its statistics in that.
_MOST_VARINT_BYTES = 10
_MOST_NESTING = 8


class Page(NamedTuple):
  """A page of a column.

  Attributes:
    num_values: of the column, nulls included.
    stored_bytes: that it takes in the file.
    unfolded_bytes: that it takes in memory at least.
    is_dictionary: whether it has the values that rows refer to.
  """

  num_values: int
  stored_bytes: int
  unfolded_bytes: int
  is_dictionary: bool


def checked_pages(
  content: Any, path: str, column: str, chunk: Any
) -> Iterator[Page]:
  """Reads the headers of all pages of a column in one row group.

  Args:
    content: the open file.
    path: of the file, for messages.
    column: its name, for messages.
    chunk: what the footer says of the column in the row group.

  Yields:
    The pages, in the order of the file.

  Raises:
    InputError: a page unfolds to more than any page of real data.
    ValueError: a header is damaged.
  """
  what = f"a page of column {column!r}"
  # The dictionary, if there is one, lies before the first page of data. Some
  # writers state a place of 0 where there is none.
  position = chunk.data_page_offset
  if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < position:
    position = chunk.dictionary_page_offset
  end = position + chunk.total_compressed_size
  while position < end:
    content.seek(position)
    page = _read_page(content)
    # Photographs hardly shrink, and a page of a thousand of them is large.
    check_unfolding(
      path,
      what,
      page.unfolded_bytes,
      page.stored_bytes,
      MAX_COLUMN_BYTES,
      _MOST_UNFOLDING,
    )
    per_value = page.unfolded_bytes // max(1, page.num_values)
    check_bytes(path, f"a value of {column!r}", per_value, MAX_COLUMN_BYTES)
    yield page
    position = content.tell() + page.stored_bytes


def _read_page(content: Any) -> Page:
  """Reads the header of a page; the file is then where its data begin."""
  header = _read_struct(content, 0)
  num_values = 0
  for kind in (_DATA, _DICTIONARY, _DATA_V2):
    if kind in header:
      num_values = _number_in(header[kind], _NUM_VALUES)
  return Page(
    num_values=num_values,
    stored_bytes=_number_in(header, _STORED),
    unfolded_bytes=_number_in(header, _UNFOLDED),
    is_dictionary=_DICTIONARY in header,
  )


def _number_in(fields: Any, number: int) -> int:
  """The integer that a struct has in a field, which cannot be negative."""
  value = fields.get(number) if isinstance(fields, dict) else None
  if not isinstance(value, int) or value < 0:
    raise ValueError("the header of a page is damaged")
  return value


def _read_struct(content: Any, depth: int) -> dict[int, Any]:
  """Reads the fields of a struct by their numbers: integers and structs.

  Others, such as statistics, are passed over.
  """
  if depth > _MOST_NESTING:
    raise ValueError("the header of a page is nested too deeply")
  fields: dict[int, Any] = {}
  number = 0
  while True:
    head = _read_byte(content)
    kind = head & 0x0F
    if kind == _STOP:
      return fields
    step = head >> 4
    number = number + step if step else _read_integer(content)
    if kind == _STRUCT:
      fields[number] = _read_struct(content, depth + 1)
    elif kind in (_I16, _I32, _I64):
      fields[number] = _read_integer(content)
    else:
      _skip(content, kind)


def _skip(content: Any, kind: int) -> None:
  """Passes over a value that is neither an integer nor a struct."""
  if kind in (_TRUE, _FALSE):  # which are in the type alone
    return
  if kind == _BYTE:
    _read_byte(content)
  elif kind == _DOUBLE:
    content.seek(8, 1)
  elif kind == _BINARY:
    content.seek(_read_varint(content), 1)
  else:  # no header of a page has lists, sets or maps
    raise ValueError("the header of a page is damaged")


def _read_integer(content: Any) -> int:
  """Reads a signed integer, zigzag: 0, -1, 1, -2 are written as 0, 1, 2, 3."""
  value = _read_varint(content)
  return (value >> 1) ^ -(value & 1)


def _read_varint(content: Any) -> int:
  """Reads an integer of seven bits a byte, the lowest first."""
  value = 0
  for i in range(_MOST_VARINT_BYTES):
    byte = _read_byte(content)
    value |= (byte & 0x7F) << (7 * i)
    if byte < 0x80:
      return value
  raise ValueError("the header of a page is damaged")


def _read_byte(content: Any) -> int:
  data = content.read(1)
  if not data:
    raise ValueError("the file ends within a page")
  return data[0]
