"""Images in a column of a Parquet file, or of the Arrow files of `datasets`."""

import bisect
import functools
import hashlib
import itertools
import json
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.sources.example import chosen
from oneshot_dp.extract.sources.table.recent import Recent
from oneshot_dp.extract.storage.anywhere import (
  is_url,
  opened,
  read_range,
  seekable,
  state_of,
)

_TAIL = 1 << 20
_BYTES = (pa.binary(), pa.large_binary(), pa.binary_view())


class ParquetImages:
  """The images of one file, by row, any number of threads at once.

  Of a Parquet file row groups are read; an Arrow file is mapped. What is read
  is the file that was opened: its size and its time of change are compared at
  every row.
  """

  def __init__(
    self, path: str, key: str | None = None, groups: Recent | None = None
  ) -> None:
    """Opens the file and looks at its schema.

    `key` is the column of images: bytes of image files, or structs that have
    them as `bytes`; by default the only one, or that which is called `image`.
    """
    self._path = path
    recent = groups or Recent(2)
    is_arrow = path.lower().endswith(".arrow")
    try:
      self._state = state_of(path)
      if is_arrow:
        with opened(path) as mapped:
          place = pa.memory_map(f"/dev/fd/{mapped.fileno()}")
          table = pa.ipc.open_stream(place).read_all()
        table.validate(full=True)  # a place outside the file ends the process
        self._schema, sizes = table.schema, [len(table)]
        self._column = table.column
        self._group = lambda key, group: table.column(key)
      else:
        file = parquet.ParquetFile(seekable(path))
        self._schema, meta = file.schema_arrow, file.metadata
        numbers = range(meta.num_row_groups)
        sizes = [meta.row_group(number).num_rows for number in numbers]
        self._column = lambda key: file.read(columns=[key]).column(0)
        self._group = lambda key, group: recent.get(
          (path, group), lambda: file.read_row_group(group, [key]).column(0)
        )
    except (OSError, pa.ArrowException) as error:
      kind = "an Arrow stream" if is_arrow else "a Parquet file"
      raise InputError(f"{path!r} is not {kind}: {error}") from error
    self._features = _features(self._schema)
    columns = _image_columns(self._schema)
    if not columns:
      raise InputError(
        f"{path!r} has no column of image files as bytes, or as structs that"
        f" have `bytes`: it has {', '.join(self._schema.names)}."
      )
    self._key = chosen(repr(path), "image_key", key, columns, "image")
    self._starts = [0, *itertools.accumulate(sizes)]

  def __len__(self) -> int:
    return self._starts[-1]

  def __getitem__(self, row: int) -> bytes:
    """The bytes of an image file; none where there is a null.

    OSError: it was changed, or cannot be read. InputError: it is elsewhere.
    """
    # Of an object, each part that comes is compared.
    if not is_url(self._path) and state_of(self._path) != self._state:
      raise OSError(0, "the file was changed")
    group = bisect.bisect_right(self._starts, row) - 1
    try:
      images = self._group(self._key, group)
      image = images[row - self._starts[group]].as_py()
    except pa.ArrowException as error:
      raise OSError(0, str(error)) from error
    if isinstance(image, dict):
      if image["bytes"] is None and image.get("path") is not None:
        raise InputError(
          f"{self._path}[{row}] has the path of its image, and not its bytes:"
          " write the data set with save_to_disk or to_parquet, which put them"
          " in."
        )
      image = image["bytes"]
    return image or b""

  @functools.cached_property
  def stamp(self) -> str:
    """SHA-256 of its last MiB: what Parquet says of its parts is there."""
    tail = read_range(self._path, max(0, self._state[0] - _TAIL), _TAIL)
    return hashlib.sha256(tail).hexdigest()

  def label_key(self, key: str | None) -> str:
    """The column of labels that is asked for, or the one that there is."""
    kinds = self._features.items()
    labels = [name for name, kind in kinds if kind["_type"] == "ClassLabel"]
    place, field = repr(self._path), "label_key"
    if labels and key is None:
      return chosen(place, field, None, labels, "label")
    images = _image_columns(self._schema)
    columns = [name for name in self._schema.names if name not in images]
    if not columns:
      raise InputError(
        f"{place} has no column of labels: it has {', '.join(images)}, of bytes"
        " as images are."
      )
    return chosen(place, field, key or "label", columns, "label")

  def class_names(self, key: str) -> list[str] | None:
    """Names of the classes of a column, where its ClassLabel has them."""
    names = self._features.get(key, {}).get("names")
    return [str(name) for name in names] if isinstance(names, list) else None

  def values(self, key: str) -> list[Any]:
    """All of a column, as Python has it."""
    chosen(repr(self._path), "unit_name", key, self._schema.names)
    try:
      return self._column(key).to_pylist()
    except (OSError, pa.ArrowException) as error:
      raise InputError(f"{self._path!r} cannot be read: {error}") from error


def _image_columns(schema: pa.Schema) -> list[str]:
  """Columns of bytes, or of structs that have `bytes`."""

  def is_image(kind: pa.DataType | None) -> bool:
    if isinstance(kind, pa.StructType):
      place = kind.get_field_index("bytes")
      kind = kind.field(place).type if place >= 0 else None
    return kind in _BYTES

  return [field.name for field in schema if is_image(field.type)]


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
