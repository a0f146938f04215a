"""Images in a column of Parquet files: bytes, or structs that have `bytes`.

So write them Hugging Face datasets, Spark, Ray and Daft. The ClassLabel that
`datasets` notes in the schema names the classes.
"""

import bisect
import contextlib
import dataclasses
import json
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.configs.extract_config import SourceSettings
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.classes import FileRows, chosen, listed_fields
from oneshot_dp.extract.sources.listed_files import File
from oneshot_dp.extract.sources.source import Source

_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())
_TEXTS = (pa.string(), pa.large_string(), pa.string_view())
_KEPT_BYTES = 1 << 30
_LABELS_AT_ONCE = 1 << 16
# What pyarrow lets through of damaged files.
_UNREADABLE = (OSError, ValueError, KeyError, MemoryError, pa.ArrowException)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Parquet(Source):
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
      with _parquet(file) as opened:
        return opened.read_row_group(group, [self.column]).column(0)

    try:
      images = _groups.get((file, group, self.column), read)
      image = images[index - first].as_py()
    except (InputError, *_UNREADABLE) as error:
      place = self.place(index)
      raise RunError(f"{place!r} cannot be read: {one_line(error)}.") from error
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
  settings: SourceSettings, paths: Sequence[str], labelled: bool, **names: str
) -> Parquet:
  """Parquet files as a source; without labels, all rows are of class 0.

  InputError: one is none, or has no such columns.
  """
  files = [listed_files.file_at(path) for path in paths]
  groups, images = [], []

  def rows() -> Iterator[FileRows]:
    first = 0
    for number, file in enumerate(files):
      with _parquet(file) as opened:
        asked = images[0] if images else settings.image
        asked = dataclasses.replace(settings, image=asked)
        has = _columns(opened.schema_arrow, asked, file.path, labelled)
        images.append(has[0])
        start = first
        for group in range(opened.num_row_groups):
          groups.append((number, group, first, start))
          first += opened.metadata.row_group(group).num_rows
        yield FileRows(
          path=file.path,
          rows=first - start,
          where=f"{file.path}[{{}}]".format,
          key=has[1],
          named=has[2],
          labels=_values(opened, file, has[1]),
          units=_values(opened, file, settings.units or ""),
        )

  return Parquet(
    **listed_fields(settings, rows(), labelled),
    **names,
    files=tuple(files),
    groups=tuple(groups),
    column=images[0],
  )


@contextlib.contextmanager
def _parquet(file: File) -> Iterator[parquet.ParquetFile]:
  """Opens the file that was listed; InputError: it cannot be read."""
  with listed_files.seekable(file) as opened, _errors(file):
    yield parquet.ParquetFile(opened)


@contextlib.contextmanager
def _errors(file: File) -> Iterator[None]:
  try:
    yield
  except InputError:
    raise
  except _UNREADABLE as error:
    raise InputError(
      f"{file.path!r} is not a readable Parquet file: {one_line(error)}."
    ) from error


def _values(
  opened: parquet.ParquetFile, file: File, column: str
) -> Iterator[list[Any]]:
  with _errors(file):
    for batch in opened.iter_batches(_LABELS_AT_ONCE, columns=[column]):
      yield batch.column(0).to_pylist()


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
    return {name: kind for name, kind in features if "_type" in kind}
  except (ValueError, AttributeError, TypeError, RecursionError):
    return {}
