"""What is read of sources, by path or by URL: files and lists of folders."""

import contextlib
import errno
import io
import os
import pathlib
import stat
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from oneshot_dp.extract.storage.store import URL

if typing.TYPE_CHECKING:
  from oneshot_dp.extract.storage.objects import ObjectStore


class Entry(NamedTuple):
  """What a folder of an object store has, as `os.DirEntry` says it."""

  path: str
  name: str
  size: int

  def is_dir(self) -> bool:
    return self.path.endswith("/")

  def is_file(self) -> bool:
    return not self.is_dir()

  def stat(self) -> os.stat_result:
    return os.stat_result((0,) * 6 + (self.size,) + (0,) * 3)


def scan(folder: str) -> list[os.DirEntry[str]] | list[Entry]:
  """What is right in a folder; OSError where that cannot be said."""
  if not is_url(folder):
    with os.scandir(folder) as entries:
      return list(entries)
  store, name = _bucket(folder)
  return [
    Entry(f"{folder.rstrip('/')}/{inner}", inner.rstrip("/"), size)
    for inner, size in store.sizes(name).items()
  ]


def is_folder(path: str, scan: Callable[[str], list[Any]] = scan) -> bool:
  """Whether a folder is there; in an object store, if `scan` finds anything."""
  return bool(scan(path)) if is_url(path) else os.path.isdir(path)


def is_file(path: str) -> bool:
  """Whether a file is there."""
  if not is_url(path):
    return os.path.isfile(path)
  try:
    return state_of(path)[0] >= 0
  except FileNotFoundError:
    return False


def state_of(path: str) -> tuple[int, int | str]:
  """Bytes of a file, and what tells it from another of its name and size."""
  if not is_url(path):
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
  store, name = _bucket(path)
  return store.state(name)


def read_file(path: str) -> bytes:
  """Returns all of a file; OSError where it cannot be read."""
  if not is_url(path):
    return pathlib.Path(path).read_bytes()
  store, name = _bucket(path)
  return store.read(name)


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.BufferedReader]:
  """Opens a file, or a copy of it that is gone afterwards, to be read."""
  if not is_url(path):
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
      raise OSError(errno.EINVAL, "not a regular file", path)
    with open(path, "rb") as file:
      yield file
    return
  store, name = _bucket(path)
  files = store.local_files([(name, store.state(name)[0])])
  with contextlib.closing(files), next(files).open("rb") as file:
    yield file


def read_range(path: str, start: int, size: int) -> bytes:
  """Bytes of a file from a place on, fewer at its end."""
  if not is_url(path):
    with open(path, "rb") as file:
      return os.pread(file.fileno(), size, start)
  store, name = _bucket(path)
  return store.part(name, start, start + size)[0]


def seekable(path: str) -> "str | SeekableObject":
  """What a library is given that reads parts of a file."""
  return SeekableObject(path) if is_url(path) else path


class SeekableObject(io.RawIOBase):
  """An object of a store as a file, of which only what is asked for is fetched.

  OSError: it is no longer the one that was opened.
  """

  def __init__(self, path: str):
    self._store, self._name = _bucket(path)
    self._size, self._version = self._store.state(self._name)
    self._at = 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def tell(self) -> int:
    return self._at

  def seek(self, to: int, whence: int = os.SEEK_SET) -> int:
    start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}
    self._at = start[whence] + to
    return self._at

  def readinto(self, buffer: Any) -> int:
    view = memoryview(buffer).cast("B")
    end = min(self._at + len(view), self._size)
    if end <= self._at:
      return 0
    data, version = self._store.part(self._name, self._at, end)
    if version != self._version:
      raise OSError(0, "the file was changed")
    view[: len(data)] = data
    self._at += len(data)
    return len(data)


def is_url(path: str | os.PathLike) -> bool:
  """Whether a path is in an object store."""
  return URL.fullmatch(os.fspath(path)) is not None


def _bucket(path: str) -> tuple["ObjectStore", str]:
  """One store of the whole bucket, whose connections all files share."""
  from oneshot_dp.extract.storage.objects import object_store

  match = URL.fullmatch(path)
  assert match, path
  scheme, bucket, name = match.groups()
  return object_store(scheme, bucket, ""), name.rstrip("/")
