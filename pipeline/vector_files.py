"""npz and Parquet files of embeddings, read in blocks; a public start."""

import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PublicStart
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.files import read_regular
from oneshot_dp.extract.sources import listed_files
from oneshot_dp.extract.sources.listed_files import File, opened

_BLOCK_BYTES = 1 << 24
_NPZ, _PARQUET = "npz (write it again)", "Parquet file (write it again)"


def open_vectors(path: Path) -> "Npz | Parquet":
  """Opens FILE.npz, FILE.parquet, or a folder of Parquet files.

  Both have `vectors(name)`, the blocks [rows, …] of a column in order; `shapes`
  of whole columns, 0 where it is not known yet; and `class_names`, or None.
  Python objects are never unpickled.

  InputError, of all methods: it is none of these, is damaged, holds another
  thing, or is changed meanwhile.
  """
  if path.is_dir():
    listed = listed_files.files_in(place := str(path))
    files = [f for f in listed if f.path.endswith(".parquet")]
    files = [f for f in files if "/_" not in f"/{f.path}"]  # Spark's own
    if not files:
      raise InputError(f"{path} has no .parquet file: name a file to import.")
    listed_files.refuse_broken(place, files)
    return Parquet(place, [listed_files.join_folder(place, f) for f in files])
  file, suffix = listed_files.file_at(str(path)), path.suffix.lower()
  if suffix == ".npz":
    return Npz(file)
  if suffix == ".parquet":
    return Parquet(file.path, [file])
  raise InputError(
    f"{path} is neither .npz nor .parquet: use numpy.savez, for example."
  )


def read_start(path: Path, info: CacheInfo) -> PublicStart:
  """The start that `--start` names, for a head of a cache of this `info`.

  The file has a vector [d] for each class, by its name: embeddings of the names
  by a text tower, say. It is no function of the private rows. InputError: no
  such file; other classes, or vectors of another width.
  """
  content, names, d = read_regular(path), info.class_names, info.feature_dim
  table = open_vectors(path)
  if wrong := sorted({*names} ^ table.shapes.keys()):
    raise InputError(
      f"{path} must hold one vector for each class of the cache, under its"
      f" name, and no more: see {wrong[0]!a}, and {len(wrong) - 1} others."
    )
  if wrong := [name for name in names if table.shapes[name] != (d,)]:
    raise InputError(
      f"{path}: {wrong[0]!r} has shape {table.shapes[wrong[0]]}, and embeddings"
      f" are ({d},): use the same model's."
    )
  return PublicStart.of(
    np.stack([column(table, name) for name in names]),
    num_classes=len(names),
    feature_dim=d,
    names=names,
    sha256=hashlib.sha256(content).hexdigest(),
  )


def column(table: "Npz | Parquet", name: str) -> np.ndarray:
  """All values of a column, [n]."""
  return np.concatenate([*table.vectors(name)] or [np.zeros(0)])


class Npz:
  """The arrays of an npz."""

  def __init__(self, file: File):
    self.place, self._file = file.path, file
    with opened(file, _NPZ) as content, zipfile.ZipFile(content) as arrays:
      names = [name.removesuffix(".npy") for name in arrays.namelist()]
      headers = {name: self._array(arrays, name)[1:] for name in names}
    self.shapes = {n: shape for n, (shape, _, _) in headers.items() if shape}
    self.class_names = None
    if "class_names" in names:
      found = column(self, "class_names")
      if found.dtype.kind != "U" or found.ndim != 1:
        raise InputError(f"{self.place}: class_names must be strings [K].")
      self.class_names = tuple(found.tolist())

  def _array(self, arrays: zipfile.ZipFile, name: str) -> tuple[Any, ...]:
    """An array's bytes after the header, its shape, order and dtype."""
    stream, npy = arrays.open(f"{name}.npy"), np.lib.format
    major, _ = npy.read_magic(stream)
    return stream, *getattr(npy, f"read_array_header_{major}_0")(stream)

  def vectors(self, name: str) -> Iterator[np.ndarray]:
    with opened(self._file, _NPZ) as content, zipfile.ZipFile(content) as all_:
      stream, (n, *rest), in_columns, dtype = self._array(all_, name)
      if in_columns or dtype.hasobject:
        raise InputError(
          f"{self.place}: {name} holds Python objects, or is in Fortran's"
          " order, without rows: save numpy.ascontiguousarray of it."
        )
      width = int(np.prod(rest, dtype=object))
      rows = max(1, _BLOCK_BYTES // max(1, dtype.itemsize * width))
      for start in range(0, n, rows):
        count = min(rows, n - start)
        data = stream.read(count * dtype.itemsize * width)
        yield np.frombuffer(data, dtype, count * width).reshape(count, *rest)
      if stream.read(1):  # and so its checksum is looked at
        raise ValueError(f"{name} is longer than it says")
      stream.close()


class Parquet:
  """Columns of whole numbers, strings, and lists of floats."""

  def __init__(self, place: str, files: Sequence[File]):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from oneshot_dp.extract.sources.parquet import class_labels

    self.place, self._files, tables = place, files, []
    for file in files:
      with opened(file, _PARQUET) as content:
        tables.append(pq.ParquetFile(content))
    schema = tables[0].schema_arrow
    rows = sum(table.metadata.num_rows for table in tables)
    self.class_names = class_labels(schema.metadata).get("label") or None
    self.shapes: dict[str, tuple[int, ...]] = {}
    for each in schema:
      is_vector = isinstance(each.type, pa.BaseExtensionType)
      is_vector |= pa.types.is_nested(each.type)
      self.shapes[each.name] = (rows, 0) if is_vector else (rows,)

  def vectors(self, name: str) -> Iterator[np.ndarray]:
    import pyarrow.parquet as pq

    for file in self._files:
      with opened(file, _PARQUET) as content:
        table = pq.ParquetFile(content)
        for batch in table.iter_batches(1024, columns=[name]):
          yield _array(file.path, name, batch[name])


def _array(path: str, name: str, column: Any) -> np.ndarray:
  import pyarrow as pa

  if isinstance(column.type, pa.BaseExtensionType):
    column = column.storage
  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  if column.null_count:
    raise InputError(
      f"{path}: {name} has rows without a value; fill or drop them."
    )
  if pa.types.is_integer(column.type):
    return column.to_numpy(zero_copy_only=False)
  if column.type in (pa.string(), pa.large_string()):
    return np.array(column.to_pylist(), object)
  if not pa.types.is_nested(column.type):
    raise InputError(
      f"{path}: {name} is of type {column.type!s:.60}; labels and owners are"
      " whole numbers or strings, and embeddings are lists."
    )
  rows = column.to_numpy(zero_copy_only=False)
  if len({*map(len, rows)}) > 1:
    raise InputError(f"{path}: the vectors of {name} are not of one length.")
  return np.stack(rows)  # a value that is missing is NaN
