"""What is read of sources, by path or by URL: files and lists of folders."""

import contextlib
import io
import os
import pathlib
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
  store, name = _bucket(path)
  try:
    return store.size(name) >= 0
  except FileNotFoundError:
    return False


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
    with open(path, "rb") as file:
      yield file
    return
  store, name = _bucket(path)
  files = store.local_files([(name, store.size(name))])
  with contextlib.closing(files), next(files).open("rb") as file:
    yield file


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
