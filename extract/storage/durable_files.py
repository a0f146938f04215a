"""Files that are there whole or not at all, for their owner only."""

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError

TEMPORARY_SUFFIX = ".tmp"
_NO_ROOM_KNOWN = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


@contextlib.contextmanager
def disk_errors(path: pathlib.Path, *others: type[Exception]) -> Iterator[None]:
  """Says in one line that what the disk refuses is `path`.

  A RunError in place of OSError, and of `others` with which a library reports
  one. Wrap writes only: what a source of rows raises is not the disk's.
  """
  try:
    yield
  except (OSError, *others) as e:
    reason = getattr(e, "strerror", None) or str(e).split("; ")[0]
    raise RunError(
      f"{path} cannot be written: {reason}; mend the disk or the permissions."
    ) from e


def check_on_disk(path: pathlib.Path) -> None:
  """Refuses a URL, of which the disk would make a folder of that name."""
  if re.match(r"[A-Za-z][\w+.-]+:/", os.fspath(path)):
    raise InputError(
      f"{os.fspath(path).replace(':/', '://', 1)} is no place on a disk: only"
      " caches may be elsewhere; results, heads and ledgers stay here."
    )


def keep_from_others(directory: pathlib.Path) -> None:
  """Gives a directory that nobody else sees yet mode 0700, and its files 0600.

  For what shows a result that is NOT PRIVATE: an accuracy, a picture or a page
  made of exact sums is a function of these. Folders in it see to themselves.
  """
  directory.chmod(0o700)
  for path in directory.iterdir():
    if path.is_file():
      path.chmod(0o600)


@contextlib.contextmanager
def temporary_file(
  directory: pathlib.Path, name: str
) -> Iterator[pathlib.Path]:
  """An empty file of mode 0600 that is gone when the context ends.

  Several processes may hold temporary files for one name: Beam may try a shard
  twice at once.
  """
  with disk_errors(directory / name):
    handle, path = tempfile.mkstemp(
      dir=directory, prefix=f"{name}.", suffix=TEMPORARY_SUFFIX
    )
    os.close(handle)
  try:
    yield pathlib.Path(path)
  finally:
    with contextlib.suppress(OSError):
      os.unlink(path)


def publish(temporary: pathlib.Path, final: pathlib.Path) -> None:
  """Renames a file to its final name, on the disk before it is visible."""
  with disk_errors(final):
    sync(temporary)
    os.replace(temporary, final)
    sync(final.parent)


def write_bytes(final: pathlib.Path, data: bytes) -> None:
  """Writes a file whole, by way of a temporary name beside it."""
  with temporary_file(final.parent, final.name) as temporary:
    with disk_errors(final):
      temporary.write_bytes(data)
    publish(temporary, final)


def write_json(final: pathlib.Path, data: Any) -> None:
  """`write_bytes` of a JSON value."""
  write_bytes(final, json_bytes(data))


def json_bytes(data: Any) -> bytes:
  """The text of a JSON file."""
  text = json.dumps(data, indent=2, sort_keys=True, allow_nan=False)
  return f"{text}\n".encode()


def read_bytes(path: pathlib.Path, most: int) -> bytes:
  """A file's bytes; an OSError for more than `most`, or what is no file."""
  status = path.stat()
  if not stat.S_ISREG(status.st_mode):
    raise OSError(errno.EINVAL, "it is no file")
  if status.st_size > most:
    raise OSError(errno.EFBIG, f"{status.st_size} bytes are too many")
  return path.read_bytes()


def file_sha256(path: pathlib.Path) -> str:
  """SHA-256 of a file, in hexadecimal."""
  with path.open("rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


def take_room(path: pathlib.Path, size: int) -> None:
  """Takes so many bytes of the disk, where it can tell that it has them."""
  handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
  try:
    os.posix_fallocate(handle, 0, size)
  except OSError as e:
    if e.errno not in _NO_ROOM_KNOWN:
      raise
  finally:
    os.close(handle)


def sync(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list of names, is on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
