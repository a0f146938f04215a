"""A folder where files are kept, on a disk or in an object store.

Names are relative to the folder, with "/" between their parts. Nobody who
holds a store needs to know which it is; a new kind is a row of `store_at`.
"""

import os
import pathlib
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from oneshot_dp.extract.storage.local import LocalStore

# A pathlib.Path has lost the second slash of "gs://bucket/cache".
URL = re.compile(r"(gs|s3):/+([^/]+)/*(.*)")


@runtime_checkable
class Store(Protocol):
  """Files under one folder, for their owner only.

  Formal guarantees: a file is there whole or not at all, and what a call has
  returned from survives a crash.

  Raises (all methods):
    FileNotFoundError: a file that is not there, where one is read or moved.
    InputError: the place cannot be read: no permission, no such bucket.
    RunError: it cannot be written, or does not answer.

  Attributes:
    path: the folder, for people and for error messages.
  """

  path: pathlib.Path

  def sizes(self, folder: str = "") -> dict[str, int]:
    """Bytes of each file right in a folder, by name; folders end in "/"."""
    ...

  def read(self, name: str, most: int = sys.maxsize) -> bytes:
    """Returns a small file; InputError if it has more than `most` bytes."""
    ...

  def put(self, name: str, data: bytes, *, create: bool = False) -> bool:
    """Writes a small file; if `create`, never over another.

    Returns whether the file now holds the data: False if it is there already
    and holds something else.
    """
    ...

  def scratch(self, name: str) -> AbstractContextManager[pathlib.Path]:
    """A local path; what is written there is `name` when the context ends.

    No other process may write the same name. Nothing is left after an error.
    """
    ...

  def move(self, name: str, to: str) -> None:
    """Renames a file; moved already (by another process), it is all right."""
    ...

  def remove(self, names: Iterable[str]) -> None:
    """Removes files, or folders ("name/"); those not there are all right."""
    ...

  def local_files(
    self, files: Sequence[tuple[str, int]]
  ) -> Generator[pathlib.Path, None, None]:
    """Yields a local path of each file, given with its size, in turn.

    A path is good until the next one is asked for. From afar, files are
    fetched ahead, in ranges, through a bounded buffer.
    """
    ...

  def lock(self, name: str) -> AbstractContextManager[None]:
    """Holds a lock; InputError if another process that is alive has it."""
    ...


def store_at(place: str | os.PathLike) -> Store:
  """The store of a path, of a URL gs://bucket/folder, or of s3://bucket/folder."""
  if not (url := URL.fullmatch(os.fspath(place))):
    return LocalStore(pathlib.Path(place))
  # Only where it is asked for: it starts threads of its own.
  from oneshot_dp.extract.storage.objects import object_store

  return object_store(*url.groups())
