"""Reads the columns of Parquet files of embeddings, in blocks.

Vectors, labels and owners are written in many ways by pandas, Arrow, Spark and
`datasets`. Each is reduced to whole numbers, strings or rows of floats, some
rows at a time, as a few bytes of a compressed page may unfold to gigabytes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import storage
from oneshot_dp.extract.sources.annotations.labels import class_labels
from oneshot_dp.extract.sources.annotations.splits import (
  is_split_column,
  partition_columns,
)
from oneshot_dp.extract.sources.limits import (
  MAX_COLUMN_BYTES,
  check_bytes,
  check_rows,
  check_unfolding,
)
from oneshot_dp.extract.sources.listed_files import File, opened

BLOCK_BYTES = 1 << 24
"""What is in memory of a column at a time, of an npz as well."""
_BLOCK_ROWS = 1024
_VALUE_BYTES = 8  # of a double
_PARQUET = "Parquet file (write it again)"


class ParquetVectors:
  """The columns of a Parquet file; see `VectorFile`.

  They are whole numbers, strings, and lists of floats: plain ones, of a fixed
  size, or tensors.
  """

  def __init__(self, file: File, root: str):
    import pyarrow as pa
    from pyarrow import parquet

    from oneshot_dp.extract.sources.parquet.table_columns import (
      extreme_words,
      inner_columns,
    )

    self.path = file.path
    self._file = file
    self.shapes: dict[str, tuple[int, ...]] = {}
    with opened(file, _PARQUET) as content:
      table = parquet.ParquetFile(content)
      rows = table.metadata.num_rows
      schema = table.schema_arrow
      self._class_labels = class_labels(schema.metadata)
      self.inner_columns = inner_columns(schema)
      self._extreme_words: dict[str, list[str]] = {}
      for name, words in extreme_words(table).items():
        self._extreme_words[name] = sorted(words)
      for field in schema:
        is_vector = pa.types.is_nested(field.type) or isinstance(
          field.type, pa.BaseExtensionType
        )
        self.shapes[field.name] = (rows, 0) if is_vector else (rows,)
    # What the folders say is a column like others, unless the file has it.
    self._partitions: dict[str, str] = {}
    for column, value in partition_columns(file.path, root).items():
      if column not in self.shapes and not is_split_column(column):
        self._partitions[column] = value
        self.shapes[column] = (rows,)

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    if name in self._partitions:
      check_rows(self.path, self.shapes[name][0])
      yield np.full(self.shapes[name], self._partitions[name], object)
      return
    # Arrow takes a third of a second to import.
    from oneshot_dp.extract.sources.parquet.table_columns import open_parquet

    with opened(self._file, _PARQUET) as content:
      table = open_parquet(content, name)
      self._check_column(content, table, name)
      first_row = 0
      for group in range(table.metadata.num_row_groups):
        for column in self._columns(content, table, group, name, first_row):
          _check_values(self.path, name, column, first_row)
          first_row += len(column)
          yield _to_numpy(self.path, name, column)

  def plain_values(self, name: str) -> list[Any]:
    if name in self._partitions:
      return []  # what folders say was looked at when they were listed
    from oneshot_dp.extract.sources.parquet.table_columns import (
      is_plain,
      named_values,
      open_parquet,
      read_values,
    )

    with opened(self._file, _PARQUET) as content:
      schema = open_parquet(content, name).schema_arrow
      is_inner = name in self.inner_columns
      if not is_inner and not is_plain(schema.field(name).type):
        return []
      values = read_values(content, self.path, name)
    return named_values(values, self._class_labels.get(name, ()))

  def _check_column(self, content: Any, table: Any, name: str) -> None:
    """Refuses a column that unfolds to far more than the file has."""
    stored = 0
    encoded = 0
    num_values = 0
    for group in range(table.metadata.num_row_groups):
      size = self._measure(content, table, group, name)
      stored += size.stored_bytes
      encoded += size.unfolded_bytes
      num_values += size.num_values
    what = f"column {name!r}"
    unfolded = max(encoded, _VALUE_BYTES * num_values)
    check_unfolding(self.path, what, unfolded, stored, MAX_COLUMN_BYTES)
    # Labels and owners are in memory together, but for vectors.
    if self.shapes[name] == self.shapes[name][:1]:
      check_bytes(self.path, what, encoded, MAX_COLUMN_BYTES)

  def _columns(
    self, content: Any, table: Any, group: int, name: str, first_row: int
  ) -> Iterator[Any]:
    """Yields a column of a row group, some rows at a time.

    Arrow cannot read vectors of a fixed size if one is missing. The rows of
    such a group are then read one by one, and the first that fails is named.
    """
    import pyarrow as pa

    def batches(rows_at_once: int) -> Iterator[Any]:
      return table.iter_batches(
        rows_at_once, row_groups=[group], columns=[name]
      )

    try:
      rows_at_once = self._rows_at_once(content, table, group, name)
      for batch in batches(rows_at_once):
        yield batch[name]
    except pa.ArrowInvalid as error:
      row = first_row
      with contextlib.suppress(pa.ArrowInvalid):
        for _ in batches(1):
          row += 1
      raise InputError(
        f"{self.path}[{row}] has no {name}, or a broken one: fill or drop it,"
        " and all rows like it."
      ) from error

  def _rows_at_once(
    self, content: Any, table: Any, group: int, name: str
  ) -> int:
    """Rows of a batch, by what the pages of a row group unfold to."""
    # A few bytes of a compressed page may unfold to gigabytes, so batches are
    # made as small as that needs.
    metadata = table.metadata.row_group(group)
    check_rows(self.path, metadata.num_rows)
    size = self._measure(content, table, group, name)
    # Equal numbers are short in their pages, where they are runs.
    group_bytes = max(size.unfolded_bytes, _VALUE_BYTES * size.num_values)
    row_bytes = group_bytes // max(1, metadata.num_rows)
    check_bytes(self.path, f"a row of {name!r}", row_bytes, MAX_COLUMN_BYTES)
    return max(1, min(_BLOCK_ROWS, BLOCK_BYTES // max(1, row_bytes)))

  def _measure(self, content: Any, table: Any, group: int, name: str) -> Any:
    from oneshot_dp.extract.sources.parquet.table_columns import measure_column

    is_vector = self.shapes[name] != self.shapes[name][:1]
    return measure_column(
      content,
      self.path,
      table.metadata.row_group(group),
      name,
      first_page=is_vector and storage.is_url(self.path),
    )

  def few_words(self) -> dict[str, list[str]]:
    return self._extreme_words

  def class_names(self, label: str) -> tuple[str, ...]:
    return self._class_labels.get(label, ())

  def are_indices(self, label: str) -> bool:
    return bool(self._class_labels.get(label))


def _check_values(path: str, name: str, column: Any, first_row: int) -> None:
  """InputError: a row has no value; names the first such row."""
  if column.null_count:
    row = first_row + column.is_null().to_pylist().index(True)
    raise InputError(
      f"{path}[{row}] has no {name}: fill or drop it, and all rows like it."
    )


def _to_numpy(path: str, name: str, column: Any) -> np.ndarray:
  """A batch of a column as an array; vectors of one length are [rows, d].

  InputError: it is of another type, or a row has no value.
  """
  import pyarrow as pa

  from oneshot_dp.extract.sources.parquet.table_columns import (
    STRINGS,
    python_values,
  )

  # Writers of Parquet wrap vectors and strings in several ways. Each is reduced
  # to what lies below it, and what is left must be one of three plain types.
  if isinstance(column.type, pa.BaseExtensionType):
    column = column.storage
  if pa.types.is_dictionary(column.type):
    values = python_values(path, name, column)
    if pa.types.is_integer(column.type.value_type):
      return np.array(values, np.int64)
    if column.type.value_type in STRINGS:
      return np.array(values, object)
  if pa.types.is_integer(column.type):
    return column.to_numpy(zero_copy_only=False)
  if column.type in STRINGS:
    return np.array(python_values(path, name, column), object)
  if not pa.types.is_nested(column.type):
    raise InputError(
      f"{path}: {name} is of type {column.type!s:.60}; labels and owners are"
      " whole numbers or strings, and embeddings are lists."
    )
  # A list column becomes an array of arrays, one a row, which stack if they
  # have one length.
  rows = column.to_numpy(zero_copy_only=False)
  if len({len(row) for row in rows}) > 1:
    raise InputError(f"{path}: the vectors of {name} are not of one length.")
  return np.stack(rows)  # a number that is missing in a vector is NaN
