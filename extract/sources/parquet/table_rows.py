"""Images in a column of Parquet files: bytes, structs with bytes, or pixels.

Hugging Face datasets, Spark, Ray and Daft write such columns. The ClassLabel
that `datasets` notes in the schema names the classes. Folders that are called
`label=cat` are a column of all files in them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.pixel_columns import has_pixels
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.annotations.labels import (
  class_labels,
  resolve_choice,
)
from oneshot_dp.extract.sources.annotations.split_columns import may_say_split
from oneshot_dp.extract.sources.annotations.splits import partition_columns
from oneshot_dp.extract.sources.file_format import FileRows
from oneshot_dp.extract.sources.limits import check_rows
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.parquet.table_columns import (
  PARQUET,
  STRINGS,
  extreme_words,
  inner_columns,
  is_plain,
  named_values,
  read_values,
  row_groups,
)

_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())


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
  splits: dict[str, list[Any]] = {}
  other_columns: list[str] = []
  with listed_files.opened(file, PARQUET) as content:
    table = parquet.ParquetFile(content)
    schema = table.schema_arrow
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
      other_columns += inner_columns(schema)
      for name in _split_columns(schema, (label_column, config.units)):
        values = read_values(content, file.path, name)
        names = class_labels(schema.metadata).get(name, ())
        splits[name] = named_values(values, names)
      for name, words in extreme_words(table).items():
        if name not in (label_column, config.units):
          splits.setdefault(name, sorted(words))
    if config.units is not None:
      columns = [name for name in schema.names if name not in images]
      _check_column(schema, columns, "--units", config.units, file.path, root)
      units = _column_values(
        content, file.path, root, config.units, len(locations)
      )
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
  return [*names, *filter(may_say_split, inner_columns(schema))]


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
