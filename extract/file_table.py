"""Files that were listed: names on the disk, numbers about them in memory.

A source may have a hundred million files. As Python objects they take 250 bytes
each; here it is 24, and what a name takes in a file that has no name itself, of
mode 0600, which is gone when the process is.
"""

import array
import bisect
import itertools
import operator
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt32

from oneshot_dp.configs.errors import RunError, escaped
from oneshot_dp.extract.files import disk_errors

_BLOCK_BYTES = 1 << 20
"""Names are read so many bytes at a time where all of them are."""
_NAME_ENCODING = ("utf-8", "surrogateescape")
"""Names on a disk need not be valid UTF-8."""
_AFTER_SLASH = chr(ord("/") + 1)
"""Sorts behind all that is in a folder, where its name has it for the slash."""


class File(NamedTuple):
  """A file as it was listed.

  Attributes:
    path: a path or URL; of `files_in`, relative to the folder.
    size: in bytes, or -1 where it is not a file that can be read.
    version: CRC-32 of what tells it from a later file of the same size: its
      time of modification on a disk, its entity tag in a store.
  """

  path: str
  size: int
  version: int


class FileColumns(NamedTuple):
  """Some files, each a row; see `File`."""

  paths: list[str]
  sizes: list[int]
  versions: list[int]


class _Names:
  """A temporary file of names, each with a NUL after it.

  Any thread may read.
  """

  def __init__(self):
    with disk_errors(tempfile.gettempdir()):
      self._file = tempfile.TemporaryFile()  # noqa: SIM115
    # Tables share it, so it is closed when the last of them is gone.
    weakref.finalize(self, self._file.close)

  def append(self, names: bytes) -> None:
    self._file.write(names)

  def finish(self) -> None:
    """Called after the last name; reading begins."""
    with disk_errors(tempfile.gettempdir()):
      self._file.flush()

  def read(self, start: int, stop: int) -> bytes:
    return os.pread(self._file.fileno(), stop - start, start)


class FileTable(Sequence[File]):
  """A sequence of `File`, in the order of their paths by code point.

  Iterating reads blocks of names. An element is made anew each time that it is
  asked for, and a slice is a table.

  Attributes:
    sizes: of each file, in bytes; see `File`.
    versions: of each file; see `File`.
  """

  def __init__(
    self,
    names: _Names,
    starts: Int64[np.ndarray, " n"],
    lengths: Int32[np.ndarray, " n"],
    sizes: Int64[np.ndarray, " n"],
    versions: UInt32[np.ndarray, " n"],
  ):
    self._names = names
    self._starts = starts
    self._lengths = lengths
    self.sizes = sizes
    self.versions = versions

  def __len__(self) -> int:
    return len(self.sizes)

  @overload
  def __getitem__(self, index: int) -> File: ...
  @overload
  def __getitem__(self, index: slice) -> "FileTable": ...
  def __getitem__(self, index: int | slice) -> "File | FileTable":
    if isinstance(index, slice):
      return self._at(index)
    start = int(self._starts[index])
    name = self._names.read(start, start + int(self._lengths[index]))
    path = name.decode(*_NAME_ENCODING)
    return File(path, int(self.sizes[index]), int(self.versions[index]))

  def __iter__(self) -> Iterator[File]:
    for rows in self._blocks():
      columns = FileColumns(
        self._decode(rows),
        self.sizes[rows].tolist(),
        self.versions[rows].tolist(),
      )
      yield from map(File, *columns)

  def paths(self) -> Iterator[str]:
    """The path of each file, in order."""
    for rows in self._blocks():
      yield from self._decode(rows)

  def select(self, is_kept: Bool[np.ndarray, " n"]) -> "FileTable":
    """Returns the files for which `is_kept` is true."""
    return self._at(is_kept)

  def folders(self) -> dict[str, slice]:
    """The folders directly in the one that was listed, if they have files.

    Returns:
      For the name of each, in order, which rows are its files.
    """
    # Files of a folder are neighbors, as all come in the order of their paths.
    # Names are read by blocks: to look for the end of each folder on the disk
    # would take minutes where a million folders have a file each.
    rows_of: dict[str, slice] = {}
    for rows in self._blocks():
      paths = self._decode(rows)
      place = 0
      while place < len(paths):
        folder, slash, _ = paths[place].partition("/")
        if not slash:  # a file that is in no folder
          place += 1
          continue
        first = rows.start + place
        if folder in rows_of:  # it began in an earlier block
          first = rows_of[folder].start
        place = bisect.bisect_left(paths, f"{folder}{_AFTER_SLASH}", place)
        rows_of[folder] = slice(first, rows.start + place)
    return rows_of

  def below(self, folder: str) -> "FileTable":
    """The files in a folder of this one, by their paths relative to it."""
    skipped = f"{folder}/".encode(*_NAME_ENCODING)
    rows = self.folders().get(folder, slice(0, 0))
    return self._at(rows, len(skipped))

  def _at(
    self, rows: slice | np.ndarray, skipped_bytes: int = 0
  ) -> "FileTable":
    """Some of the files, by their names without so many bytes."""
    return FileTable(
      self._names,
      self._starts[rows] + skipped_bytes,
      self._lengths[rows] - np.int32(skipped_bytes),
      self.sizes[rows],
      self.versions[rows],
    )

  def _blocks(self) -> Iterator[slice]:
    """Rows whose names are in one block; there is one row at least in each."""
    first = 0
    while first < len(self):
      end = self._starts[first] + _BLOCK_BYTES
      last = int(np.searchsorted(self._starts, end))
      yield slice(first, last)
      first = last

  def _decode(self, rows: slice) -> list[str]:
    """The paths of a block."""
    starts = self._starts[rows]
    ends = starts + self._lengths[rows]
    begin = int(starts[0])
    data = self._names.read(begin, int(ends[-1]))
    if (starts[1:] == ends[:-1] + 1).all():
      # Mostly all files are kept, and names lie side by side.
      return data.decode(*_NAME_ENCODING).split("\0")
    paths: list[str] = []
    for start, end in zip(
      (starts - begin).tolist(), (ends - begin).tolist(), strict=True
    ):
      paths.append(data[start:end].decode(*_NAME_ENCODING))
    return paths


def columns_of(files: Sequence[File]) -> FileColumns:
  """Returns files as columns; of a `FileTable`, no `File` is made."""
  if isinstance(files, FileTable):
    sizes = files.sizes.tolist()
    versions = files.versions.tolist()
    return FileColumns(list(files.paths()), sizes, versions)
  columns = FileColumns([], [], [])
  for file in files:
    columns.paths.append(file.path)
    columns.sizes.append(file.size)
    columns.versions.append(file.version)
  return columns


def make_table(listed: Iterable[FileColumns]) -> FileTable:
  """Keeps the files of a listing, as they come.

  Args:
    listed: files, each once, in blocks. Where they do not come in the order of
      their paths they are sorted, all of them in memory.

  Raises:
    RunError: a file comes twice, or the disk of temporary files refuses.
  """
  names = _Names()
  # Unlike lists of arrays these grow in place.
  lengths = array.array("i")
  sizes = array.array("q")
  versions = array.array("I")
  previous = ""  # is before all paths
  in_order = True
  # A block at a time: what is done for each file takes most of the time.
  for block in listed:
    paths = block.paths
    if not paths:
      continue
    encoded = "\0".join(paths).encode(*_NAME_ENCODING) + b"\0"
    with disk_errors(tempfile.gettempdir()):
      names.append(encoded)
    lengths.extend(map(len, encoded.split(b"\0")[:-1]))
    sizes.extend(block.sizes)
    versions.extend(block.versions)
    # Disks and most stores list in order. Where one does not, files are sorted
    # once: the order decides the number of each image.
    in_order = in_order and previous < paths[0]
    in_order = in_order and all(map(operator.lt, paths, paths[1:]))
    previous = paths[-1]
  names.finish()
  table = FileTable(
    names,
    _starts_of(np.frombuffer(lengths, np.int32)),
    np.frombuffer(lengths, np.int32),
    np.frombuffer(sizes, np.int64),
    np.frombuffer(versions, np.uint32),
  )
  return table if in_order else _sorted(table)


def _starts_of(lengths: Int32[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
  """Where each name begins, of names that have a NUL after them."""
  starts = np.zeros(len(lengths), np.int64)
  np.cumsum(lengths[:-1], out=starts[1:])
  return starts + np.arange(len(lengths))


def _sorted(table: FileTable) -> FileTable:
  """Sorts files by their paths; RunError: one is there twice.

  S3's directory buckets list their names in no order.
  """
  files = sorted(table)
  for file, following in itertools.pairwise(files):
    if file.path == following.path:
      raise RunError(
        f"{escaped(file.path)} was listed twice; run the same command again."
      )
  return make_table([columns_of(files)])
