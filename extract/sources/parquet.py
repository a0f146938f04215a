"""Images in a column of Parquet files: bytes, or structs that have `bytes`.

So write them Hugging Face datasets, Spark, Ray and Daft. The ClassLabel that
`datasets` notes in the schema names the classes.
"""

import bisect
import contextlib
import dataclasses
import functools
import json
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import EXAMPLE, SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import (
  chosen,
  class_names,
  label_numbers,
)
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.owners import units_of_column
from oneshot_dp.extract.sources.source import Listed

_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_KEPT_BYTES = 1 << 30
_LABELS_AT_ONCE = 1 << 16
# What pyarrow lets through of damaged files.
_UNREADABLE = (OSError, ValueError, KeyError, MemoryError, pa.ArrowException)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Parquet(Listed):
  """Rows of Parquet files, in the order of the files.

  Attributes:
    files: path, bytes and version of each.
    groups: of each row group the place of its file, its number in it, its first
      row and that of its file.
    column: that which has the images.
  """

  files: tuple[Sequence[Any], ...]
  groups: tuple[Sequence[int], ...]
  column: str

  def image(self, index: int) -> bytes:
    number, group, first, _ = self._group_of(index)
    file = File(*self.files[number])

    def read() -> Any:
      with _parquet(file) as opened:  # the file that was listed, or refused
        return opened.read_row_group(group, [self.column]).column(0)

    try:
      images = _groups.get((file, group, self.column), read)
      image = images[index - first].as_py()
    except (InputError, *_UNREADABLE) as error:
      raise RunError(
        f"{self.place(index)!r} cannot be read: {one_line(error)}."
      ) from error
    # A null, and a path instead of bytes, are images that cannot be decoded.
    return (image["bytes"] if isinstance(image, dict) else image) or b""

  def place(self, index: int) -> str:
    file, _, _, start = self._group_of(index)
    return f"{self.files[file][0]}[{index - start}]"

  def _group_of(self, index: int) -> Sequence[int]:
    at = bisect.bisect_right(self.groups, index, key=operator.itemgetter(2))
    return self.groups[at - 1]


class _Recent:
  """Row groups that threads read last: 1 GiB, and the last two in any case."""

  def __init__(self) -> None:
    self._lock = threading.Lock()
    self._values: dict[Hashable, Any] = {}

  def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
    with self._lock:
      if key not in self._values:
        self._values[key] = make()
        while (
          len(self._values) > 2
          and sum(v.nbytes for v in self._values.values()) > _KEPT_BYTES
        ):
          del self._values[next(iter(self._values))]
      return self._values[key]


_groups = _Recent()


def open_parquet(
  settings: SourceSettings,
  name: str,
  split: str,
  paths: Sequence[str],
  labelled: bool = True,
) -> Parquet:
  """Parquet files as a source; without labels, all rows are of class 0.

  Labels and units are read in batches: of each, 8 bytes a row stay in memory.

  Raises:
    InputError: one is none, or has no such columns.
  """
  files = [listed_files.file_at(path) for path in paths]
  names: tuple[str, ...] = ("unlabelled",)
  nothing = np.zeros(0, np.int64)
  groups, labels, owners, first = [], [nothing], [nothing], 0
  known: dict[int, str] = {}
  keys: Any = None
  for number, file in enumerate(files):
    with _parquet(file) as opened:
      columns = _columns(opened.schema_arrow, settings, file.path, labelled)
      if keys not in (None, columns):
        raise InputError(
          f"{file.path!r} has other columns or classes than {paths[0]!r}: they"
          " are no one data set."
        )
      if keys is None and labelled:
        names = class_names(columns[2], settings, paths[0])
      keys, start = columns, first
      for group in range(opened.num_row_groups):
        groups.append((number, group, first, start))
        first += opened.metadata.row_group(group).num_rows
      if labelled:
        read = functools.partial(label_numbers, names=names, key=columns[1])
        labels += _numbers(opened, file, columns[1], read)
      else:
        labels.append(np.zeros(first - start, np.int64))
      if unit := settings.units:
        read = functools.partial(units_of_column, unit=unit, known=known)
        owners += _numbers(opened, file, unit, read)
  return Parquet(
    name=name,
    split=split,
    class_names=names,
    unit=settings.units or EXAMPLE,
    labels=np.concatenate(labels).astype(np.int32),
    unit_ids=np.concatenate(owners) if settings.units else None,
    files=tuple(files),
    groups=tuple(groups),
    column=keys[0],
  )


@contextlib.contextmanager
def _parquet(file: File) -> Iterator[parquet.ParquetFile]:
  """Opens the file that was listed.

  Raises:
    InputError: it is another, or something in it cannot be read.
  """
  with listed_files.seekable(file) as opened:
    try:
      yield parquet.ParquetFile(opened)
    except InputError:
      raise
    except _UNREADABLE as error:
      raise InputError(
        f"{file.path!r} is not a readable Parquet file: {one_line(error)}."
      ) from error


def _columns(
  schema: pa.Schema, settings: SourceSettings, path: str, labelled: bool
) -> tuple[str, str, tuple[str, ...]]:
  """The columns of images and labels, and what names the classes."""
  images = [field.name for field in schema if _is_image(field.type)]
  others = [name for name in schema.names if name not in images]
  image = chosen(path, "--image", settings.image, images, "image")
  if not labelled:
    return image, "", ()
  features = _features(schema)
  named = [k for k, v in features.items() if v["_type"] == "ClassLabel"]
  if (label := settings.label) is None:
    usual = None if named else "label"
    label = chosen(path, "--label", usual, named or others, "label")
  for flag, key in (("--label", label), ("--units", settings.units)):
    if key is not None:
      kind = schema.field(chosen(path, flag, key, others)).type
      kind = kind.value_type if pa.types.is_dictionary(kind) else kind
      if not (pa.types.is_integer(kind) or kind in _TEXTS):
        raise InputError(
          f"{path!r}: {flag} {key!r} is {str(kind)[:80]!a}: it must be integers"
          " or texts."
        )
  names = features.get(label, {}).get("names")
  return image, label, tuple(names) if isinstance(names, list) else ()


def _is_image(kind: pa.DataType | None) -> bool:
  if isinstance(kind, pa.StructType):
    place = kind.get_field_index("bytes")
    kind = kind.field(place).type if place >= 0 else None
  return kind in _BYTES


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
  """What `datasets` says of the columns, if it wrote the file."""
  try:
    said = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = said.get("info", {}).get("features", {}).items()
  except (ValueError, AttributeError, RecursionError):
    return {}
  return {
    name: kind
    for name, kind in features
    if isinstance(kind, dict) and "_type" in kind
  }


def _numbers(
  opened: parquet.ParquetFile,
  file: File,
  column: str,
  read: Callable[..., list[int]],
) -> list[np.ndarray]:
  """A column as integers, batch by batch."""
  found, row = [], 0
  for batch in opened.iter_batches(_LABELS_AT_ONCE, columns=[column]):
    values = batch.column(0).to_pylist()
    where = functools.partial(_where, file.path, row)
    found.append(np.array(read(values, where=where), np.int64))
    row += len(values)
  return found


def _where(path: str, first: int, row: int) -> str:
  return f"{path}[{first + row}]"
