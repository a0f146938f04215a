"""Images in a column of Parquet files: bytes, or structs that have `bytes`.

So write them Hugging Face datasets, Spark, Ray and Daft. The ClassLabel that
`datasets` notes in the schema names the classes.
"""

import json
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError, one_line
from oneshot_dp.configs.extract_config import SourceConfig
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.labels import FileRows, chosen
from oneshot_dp.extract.sources.listed_files import File

_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_PARQUET = "Parquet file"
_KEPT_BYTES = 1 << 30
_reading = threading.Lock()
_groups: dict[Any, Any] = {}
"""Row groups that threads read last: 1 GiB, and two in any case."""


def read_cell(file: File, column: str, group: int, row: int) -> bytes:
  """An image of a row group; nothing where there is a null, or only a path.

  InputError: it cannot be read.
  """
  with _reading:
    if (key := (file, group, column)) not in _groups:
      with listed_files.opened(file, _PARQUET) as opened:
        read = parquet.ParquetFile(opened).read_row_group(group, [column])
        _groups[key] = read.column(0)
      sizes = [kept.nbytes for kept in _groups.values()]
      while len(_groups) > 2 and sum(sizes) > _KEPT_BYTES:
        del _groups[next(iter(_groups))], sizes[0]
    images = _groups[key]
  try:
    image = images[row].as_py()
  except (ValueError, IndexError, pa.ArrowException) as error:
    said = f"{file.path!r} has a cell that cannot be read: {one_line(error)}."
    raise InputError(said) from error
  return (image["bytes"] if isinstance(image, dict) else image) or b""


def parquet_rows(
  settings: SourceConfig, file: File, labelled: bool
) -> FileRows:
  """Rows of a Parquet file; InputError: it is none, or has no such columns."""
  label, named, labels, units = "", (), [], []
  with listed_files.opened(file, _PARQUET) as opened:
    table = parquet.ParquetFile(opened)
    schema, meta = table.schema_arrow, table.metadata
    sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    images = [field.name for field in schema if _is_image(field.type)]
    image = chosen(file.path, "--image", settings.image, images)

    def values(column: str) -> list[Any]:
      batches = table.iter_batches(columns=[column])
      return [v for some in batches for v in some.column(0).to_pylist()]

    if labelled:
      label, named = _labels(settings, schema, images, file.path)
      labels = values(label)
    if settings.units is not None:
      units = values(settings.units)
  groups = np.repeat(np.arange(len(sizes)), sizes)
  rows = np.concatenate([np.arange(n) for n in (0, *sizes)])
  at = np.stack([groups, rows], axis=1)
  return FileRows(image, at, label, named, labels, units)


def _labels(
  settings: SourceConfig, schema: pa.Schema, images: list[str], path: str
) -> tuple[str, tuple[str, ...]]:
  """The column of labels, and what names the classes."""
  columns = [name for name in schema.names if name not in images]
  classes = class_labels(schema.metadata)
  asked = settings.label or (None if classes else "label")
  label = chosen(path, "--label", asked, columns if asked else list(classes))
  for flag, key in (("--label", label), ("--units", settings.units)):
    if key is not None:
      key = chosen(path, flag, key, columns)
      if columns.count(key) > 1:
        raise InputError(f"{path!r} has several columns {key!r}: leave one.")
      kind = schema.field(key).type
      kind = kind.value_type if pa.types.is_dictionary(kind) else kind
      if not (pa.types.is_integer(kind) or kind in _TEXTS):
        raise InputError(
          f"{path!r}: {flag} {key!r} is {str(kind)[:80]!a}: it must be integers"
          " or texts."
        )
  return label, classes.get(label, ())


def _is_image(kind: pa.DataType | None) -> bool:
  if isinstance(kind, pa.StructType):
    place = kind.get_field_index("bytes")
    kind = kind.field(place).type if place >= 0 else None
  return kind in _BYTES


def class_labels(
  metadata: Mapping[bytes, bytes] | None,
) -> dict[str, tuple[str, ...]]:
  """The classes of each ClassLabel, if `datasets` wrote the file."""
  try:
    said = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    features = said.get("info", {}).get("features", {}).items()
    return {
      column: tuple(map(str, kind.get("names") or ()))
      for column, kind in features
      if isinstance(kind, dict) and kind.get("_type") == "ClassLabel"
    }
  except (ValueError, AttributeError, TypeError, RecursionError):
    return {}
