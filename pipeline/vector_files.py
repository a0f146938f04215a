"""Opens files of embeddings, npz or Parquet, and reads them in blocks.

A file is opened as a `VectorFile`, which states the shapes of its columns and
yields a column block by block, so that no file is in memory as a whole. What a
file unfolds to is bounded before it is unfolded, and Python objects are never
unpickled. Here are the arrays of an npz; Parquet has a file of its own.
"""

import contextlib
import functools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.npy import Header, open_archive, read_header
from oneshot_dp.extract.sources.limits import (
  MAX_COLUMN_BYTES,
  MAX_FEW_WORDS_BYTES,
  check_bytes,
  check_rows,
)
from oneshot_dp.extract.sources.listed_files import File, opened
from oneshot_dp.pipeline.parquet_vectors import BLOCK_BYTES, ParquetVectors

SUFFIXES = (".npz", ".parquet")
"""Suffixes of files of embeddings, in lower case."""
CLASS_NAMES = "class_names"
"""The array of an npz that names the classes."""

NPZ = "npz (write it again)"


@runtime_checkable
class VectorFile(Protocol):
  """A file with columns of numbers, strings and vectors.

  Attributes:
    path: of the file.
    shapes: of each column, [rows, …]. The width of a column of vectors is 0
      where it is known only once rows are read.
    inner_columns: names of plain values within structs, such as meta.split,
      which have no shape here, as they are looked at and not used.
  """

  path: str
  shapes: dict[str, tuple[int, ...]]
  inner_columns: list[str]

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    """Yields a column in order, some rows [r, …] at a time.

    Raises:
      InputError: the column is damaged, of Python objects, or has rows without
        a value.
    """
    ...

  def plain_values(self, name: str) -> list[Any]:
    """Returns the strings, integers or truth values of a column; some are None.

    It is empty where the column is of another kind.

    Raises:
      InputError: the column is damaged, or unfolds to too many bytes.
    """
    ...

  def few_words(self) -> dict[str, list[str]]:
    """Returns strings of columns, by which one may see whether they are splits.

    They are all of a column, or its extremes; none of a large column.
    """
    ...

  def class_names(self, label: str) -> tuple[str, ...]:
    """Returns the names of label 0, 1, … that the file states; () if none.

    Args:
      label: the column of the labels.
    """
    ...

  def are_indices(self, label: str) -> bool:
    """Returns whether integer labels count the classes from 0.

    A ClassLabel of `datasets` says so, whatever its names are; elsewhere the
    label 1 among the classes 1, 2 and 3 is the class of that name.

    Args:
      label: the column of the labels.
    """
    ...


def open_vector_file(file: File, root: str | None = None) -> VectorFile:
  """Opens an npz or a Parquet file.

  Args:
    file: as it was listed.
    root: the folder of the data set, below which names of folders may state
      columns; None where the file is all of the data set.

  Raises:
    InputError: it is neither, or is damaged.
  """
  suffix = Path(file.path).suffix.lower()
  if suffix == ".npz":
    return NpzVectors(file.path, functools.partial(opened, file, NPZ))
  if suffix == ".parquet":
    return ParquetVectors(file, root or os.path.dirname(file.path))
  raise InputError(
    f"{file.path} is neither .npz nor .parquet: use numpy.savez, for example."
  )


def read_column(vectors: VectorFile, name: str) -> np.ndarray:
  """Reads all values of a column of numbers or strings, [n].

  Args:
    vectors: an open npz or Parquet file.
    name: a key of its `shapes`.

  Raises:
    InputError: it is damaged, or has too many rows to be in memory.
  """
  # Labels and owners are in memory for all rows together, unlike vectors; so it
  # is here that a file which claims too many is stopped.
  check_rows(vectors.path, vectors.shapes[name][0])
  blocks = []
  num_bytes = 0
  for block in vectors.blocks(name):
    num_bytes += block.nbytes
    check_bytes(vectors.path, f"{name!r}", num_bytes, MAX_COLUMN_BYTES)
    blocks.append(block)
  if not blocks:
    return np.zeros(0)
  return np.concatenate(blocks)


class NpzVectors:
  """The arrays of an npz; see `VectorFile`."""

  def __init__(
    self,
    path: str,
    open_content: Callable[[], contextlib.AbstractContextManager[BinaryIO]],
  ):
    """Reads the headers of all arrays.

    Args:
      path: of the file, for messages.
      open_content: opens the file anew, and raises InputError where the body
        finds it damaged.
    """
    self.path = path
    self._open_content = open_content
    self.inner_columns: list[str] = []  # arrays have none
    self.shapes: dict[str, tuple[int, ...]] = {}
    with open_content() as content, open_archive(content) as archive:
      # Only headers are read here: an array's shape is known without its
      # numbers.
      for member in archive.namelist():
        name = member.removesuffix(".npy")
        with archive.open(member) as stream:
          header = read_header(stream)
        if header.shape:
          self.shapes[name] = header.shape

  def blocks(self, name: str) -> Iterator[np.ndarray]:
    with (
      self._open_content() as content,
      open_archive(content) as archive,
    ):
      # Of a member no more is ever unpacked than the archive states here.
      stated_bytes = archive.getinfo(f"{name}.npy").file_size
      with archive.open(f"{name}.npy") as stream:
        header = read_header(stream)
        self._check_header(name, header, stated_bytes)
        yield from _read_rows(stream, header)
        if stream.read(1):  # and the archive's checksum is compared here
          raise ValueError(f"{name} is longer than it says")

  def plain_values(self, name: str) -> list[Any]:
    with (
      self._open_content() as content,
      open_archive(content) as archive,
      archive.open(f"{name}.npy") as stream,
    ):
      header = read_header(stream)
    if header.dtype.kind not in "USiubf":
      return []
    values = read_column(self, name).reshape(-1)
    if header.dtype.kind == "S":
      values = np.char.decode(values, "utf-8", "replace")
    return values.tolist()

  def few_words(self) -> dict[str, list[str]]:
    words: dict[str, list[str]] = {}
    for name in self.shapes:
      with (
        self._open_content() as content,
        open_archive(content) as archive,
        archive.open(f"{name}.npy") as stream,
      ):
        size = archive.getinfo(f"{name}.npy").file_size
        kind = read_header(stream).dtype.kind
      if kind in "US" and size <= MAX_FEW_WORDS_BYTES:
        words[name] = self.plain_values(name)
    return words

  def _check_header(self, name: str, header: Header, stated_bytes: int) -> None:
    if header.dtype.hasobject or header.is_fortran:
      raise InputError(
        f"{self.path}: {name} holds Python objects, or is in Fortran's order,"
        " without rows: save numpy.ascontiguousarray of it."
      )
    # A header may state any shape. What is allocated is bounded by a row's
    # size, and by what the archive says that the member has.
    rows, *rest = header.shape
    row_bytes = header.dtype.itemsize * math.prod(rest)
    check_bytes(self.path, f"a row of {name!r}", row_bytes, MAX_COLUMN_BYTES)
    if rows * row_bytes > stated_bytes:
      raise ValueError(f"{name} is shorter than it says")

  def class_names(self, label: str) -> tuple[str, ...]:
    if CLASS_NAMES not in self.shapes:
      return ()
    names = read_column(self, CLASS_NAMES)
    if names.dtype.kind != "U" or names.ndim != 1:
      raise InputError(f"{self.path}: class_names must be strings [K].")
    return tuple(names.tolist())

  def are_indices(self, label: str) -> bool:
    return False


def _read_rows(stream: Any, header: Header) -> Iterator[np.ndarray]:
  """Reads an array in blocks of whole rows of about `BLOCK_BYTES`."""
  # NumPy reads an array as a whole, or maps it from a disk, which a member of
  # an archive is not: its bytes are read here, as many as a block has.
  rows, *rest = header.shape
  width = math.prod(rest)
  row_bytes = header.dtype.itemsize * width
  rows_at_once = max(1, BLOCK_BYTES // max(1, row_bytes))
  for start in range(0, rows, rows_at_once):
    count = min(rows_at_once, rows - start)
    data = stream.read(count * row_bytes)
    values = np.frombuffer(data, header.dtype, count * width)
    native = header.dtype.newbyteorder("=")  # whatever machine wrote the file
    yield values.astype(native, copy=False).reshape(count, *rest)
