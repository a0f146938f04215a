"""npz and Parquet files of embeddings, read a block of rows at a time."""

import dataclasses
import json
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.files import open_regular

Columns = dict[str, np.ndarray]
_BLOCK_BYTES = 1 << 24
_MOST_ROWS = 8192
_UNREADABLE = (
  *(OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error),
  *(NotImplementedError, RuntimeError, KeyError, TypeError, SyntaxError),
  *(OverflowError, tokenize.TokenError, UnicodeError),
)
"""What Python and NumPy raise over a damaged npz."""


class VectorFile:
  """Columns; `shapes` has those that there are, of a row: () of a plain value.

  `class_names` are those that the file names itself; None where it does not.
  """

  place: str
  shapes: Mapping[str, tuple[int, ...]]
  class_names: tuple[str, ...] | None

  def num_rows(self, name: str) -> int:
    """How many rows a column has."""
    raise NotImplementedError

  def read(self, names: Sequence[str]) -> Iterator[Columns]:
    """Blocks of columns of as many rows, in order; InputError: damaged."""
    raise NotImplementedError


def open_vectors(path: Path) -> VectorFile:
  """Opens FILE.npz, FILE.parquet, or a folder of Parquet files.

  Python objects are never unpickled. InputError: it is none of these.
  """
  if path.is_dir():
    files = sorted(
      file
      for file in path.rglob("*.parquet")
      if not any(p[:1] in "._" for p in file.relative_to(path).parts)
    )
    if not files:
      raise InputError(f"{path} has no .parquet file: name a file to import.")
    return _Parquet(path, files)
  open_regular(path).close()  # a pipe or device would be read for ever
  match path.suffix.lower():
    case ".npz":
      return _Npz(path)
    case ".parquet":
      return _Parquet(path, [path])
  raise InputError(
    f"{path} is neither .npz nor .parquet: save it as one, with numpy.savez"
    " or pyarrow.parquet.write_table."
  )


@dataclasses.dataclass(frozen=True)
class _Array:
  """An array of an npz, by its header."""

  shape: tuple[int, ...]
  dtype: np.dtype
  in_columns: bool


class _Npz(VectorFile):
  """Arrays of an npz: those whose first axis is the rows."""

  def __init__(self, path: Path):
    self.place = str(path)
    self._path = path
    with _damage(path), zipfile.ZipFile(path) as file:
      names = [n.removesuffix(".npy") for n in file.namelist()]
      self._arrays = {name: self._header(file, name) for name in names}
    self.class_names = self._class_names()
    self.shapes = {
      name: array.shape[1:]
      for name, array in self._arrays.items()
      if array.shape and name != "class_names"
    }

  def num_rows(self, name: str) -> int:
    return self._arrays[name].shape[0]

  def _header(self, file: zipfile.ZipFile, name: str) -> _Array:
    with file.open(f"{name}.npy") as stream:
      return _read_header(stream)

  def _class_names(self) -> tuple[str, ...] | None:
    if "class_names" not in self._arrays:
      return None
    array = self._arrays["class_names"]
    if array.dtype.kind not in "US" or len(array.shape) != 1:
      raise InputError(
        f"{self.place}: class_names has dtype {array.dtype} and shape"
        f" {array.shape}; it must be strings [K]."
      )
    with _damage(self._path), zipfile.ZipFile(self._path) as file:
      (names,) = self._blocks(file, "class_names", max(1, array.shape[0]))
      if array.dtype.kind == "S":
        names = np.char.decode(names, "utf-8")
    return tuple(names.tolist())

  def read(self, names: Sequence[str]) -> Iterator[Columns]:
    for name in names:
      array = self._arrays[name]
      if array.dtype.hasobject:
        raise InputError(
          f"{self.place}: {name} holds Python objects; save plain arrays."
        )
      if array.in_columns:
        raise InputError(
          f"{self.place}: {name} is in Fortran's order, which has no rows to"
          " read: save numpy.ascontiguousarray of it."
        )
    widths = [_row_bytes(self._arrays[name]) for name in names]
    rows = max(1, min(_MOST_ROWS, _BLOCK_BYTES // max([*widths, 1])))
    with _damage(self._path), zipfile.ZipFile(self._path) as file:
      blocks = [self._blocks(file, name, rows) for name in names]
      for arrays in zip(*blocks, strict=True):
        yield dict(zip(names, arrays, strict=True))

  def _blocks(
    self, file: zipfile.ZipFile, name: str, rows: int
  ) -> Iterator[np.ndarray]:
    with file.open(f"{name}.npy") as stream:
      array = _read_header(stream)
      n, *rest = array.shape
      for start in range(0, n, rows):
        count = min(rows, n - start)
        data = stream.read(count * _row_bytes(array))
        yield np.frombuffer(data, array.dtype, count * _size(rest)).reshape(
          count, *rest
        )
      if stream.read(1):  # and so its checksum is looked at
        raise ValueError(f"{name} is longer than it says")


def _read_header(stream: Any) -> _Array:
  version = np.lib.format.read_magic(stream)
  read = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
  }.get(version)
  if read is None:
    raise ValueError(f"format {version} of an array is not known")
  shape, in_columns, dtype = read(stream)
  return _Array(shape, dtype, in_columns)


def _row_bytes(array: _Array) -> int:
  return array.dtype.itemsize * _size(array.shape[1:])


def _size(shape: Sequence[int]) -> int:
  return int(np.prod(shape, dtype=object))


class _Parquet(VectorFile):
  """Columns of Parquet files: numbers, strings, and lists of floats."""

  def __init__(self, path: Path, files: Sequence[Path]):
    import pyarrow.parquet as pq

    self.place, self._path, self._files = str(path), path, files
    with _damage(path):
      schemas = [pq.read_schema(file) for file in files]
      self._rows = sum(pq.read_metadata(file).num_rows for file in files)
    for file, schema in zip(files, schemas, strict=True):
      if schema.names != schemas[0].names:
        raise InputError(
          f"{file} has other columns than {files[0]}: import one of them, or"
          " write them anew."
        )
    self.class_names = _names_of_datasets(schemas[0].metadata)
    self.shapes = {
      field.name: (0,) if _values_type(field.type) is not None else ()
      for field in schemas[0]
    }

  def num_rows(self, name: str) -> int:
    return self._rows

  def read(self, names: Sequence[str]) -> Iterator[Columns]:
    import pyarrow.parquet as pq

    for path in self._files:
      with _damage(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1024, columns=list(names)):
          yield {name: self._array(path, name, batch[name]) for name in names}

  def _array(self, path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow as pa

    if isinstance(column.type, pa.BaseExtensionType):
      column = column.storage
    if isinstance(column.type, pa.DictionaryType):
      column = column.dictionary_decode()
    if column.null_count:
      raise InputError(
        f"{path}: {name} has rows without a value; fill or drop them."
      )
    if isinstance(column.type, pa.StructType):  # a vector of Spark's
      if any(column.field("indices").is_valid()):
        raise InputError(
          f"{path}: {name} has sparse vectors; write dense ones."
        )
      column = column.field("values")
    if _values_type(column.type) is None:
      kinds = pa.types
      if kinds.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False)
      if kinds.is_string(column.type) or kinds.is_large_string(column.type):
        return np.array(column.to_pylist(), object)
      raise InputError(
        f"{path}: {name} is of type {column.type}; it must be whole numbers"
        f"{'' if name == 'label' else ' or strings'}."
      )
    values = column.flatten()
    width, rest = divmod(len(values), max(1, len(column)))
    lengths = (
      np.full(len(column), width)
      if pa.types.is_fixed_size_list(column.type)
      else column.value_lengths().to_numpy(zero_copy_only=False)
    )
    if rest or (lengths != width).any() or values.null_count:
      raise InputError(
        f"{path}: the vectors of {name} are not of one length, or lack values."
      )
    return values.to_numpy(zero_copy_only=False).reshape(-1, width)


def _values_type(of: Any) -> Any:
  """The type of a vector's values; None where a column has no vectors."""
  import pyarrow as pa

  if isinstance(of, pa.BaseExtensionType):
    of = of.storage_type
  if isinstance(
    of, pa.StructType
  ):  # of Spark's ML: type, size, indices, values
    if {field.name for field in of} < {"values", "indices"}:
      return None
    names = [field.name for field in of]
    return of.field("values").type.value_type if "values" in names else None
  kinds = pa.types
  is_list = kinds.is_list(of) or kinds.is_large_list(of)
  if not is_list and not kinds.is_fixed_size_list(of):
    return None
  return of.value_type


def _names_of_datasets(
  metadata: Mapping[bytes, bytes] | None,
) -> tuple[str, ...] | None:
  """The classes of a ClassLabel, as Hugging Face's datasets writes them."""
  try:
    info = json.loads((metadata or {})[b"huggingface"])
    names = info["info"]["features"]["label"]["names"]
    return tuple(names) if all(isinstance(n, str) for n in names) else None
  except (KeyError, ValueError, TypeError):
    return None


class _damage:
  """Says of a file that it is damaged, in a line."""

  def __init__(self, path: Path):
    self._path = path

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
    if isinstance(error, InputError):
      return
    if isinstance(error, MemoryError):
      raise InputError(f"{self._path}: a row does not fit into memory.")
    if isinstance(error, _UNREADABLE):
      said = " ".join(str(error).split())[:200]
      raise InputError(
        f"{self._path} is damaged, or no such file ({said}); write it anew."
      ) from error
