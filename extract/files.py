"""Files on this machine's disk: durable, private to their owner, and files.

What is written is there whole or not at all, of mode 0600, and on the disk
before it is in view. What is read is a regular file of a bounded size: a FIFO,
a device, a socket or a folder in its place is refused, and nothing waits on it.
"""

import contextlib
import errno
import hashlib
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from oneshot_dp.configs.errors import InputError, RunError, escaped

MOST_BYTES = 1 << 30
"""A larger file that is read whole is taken for a mistake."""


def open_regular(
  path: str | os.PathLike, most_bytes: int | None = None
) -> BinaryIO:
  """Opens a regular file for reading; the caller closes it.

  InputError: it is not there, not a regular file, has more than `most_bytes` or
  may not be read.
  """
  fault = f"{escaped(os.fspath(path))} cannot be read:"
  try:
    # Else to open a FIFO waits until somebody writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  except (OSError, ValueError) as e:
    raise InputError(f"{fault} {getattr(e, 'strerror', e)}.") from e
  found, said = os.fstat(handle), None
  if not stat.S_ISREG(found.st_mode):
    said = "it is not a regular file; give a file"
  elif most_bytes is not None and found.st_size > most_bytes:
    said = f"{found.st_size:,} bytes are more than {most_bytes:,}"
  if said:
    os.close(handle)
    raise InputError(f"{fault} {said}.")
  return os.fdopen(handle, "rb")


def read_regular(
  path: str | os.PathLike, most_bytes: int = MOST_BYTES
) -> bytes:
  """All bytes of a regular file of at most so many; see `open_regular`."""
  with open_regular(path, most_bytes) as file:
    try:
      return file.read(os.fstat(file.fileno()).st_size)
    except OSError as e:
      shown = escaped(os.fspath(path))
      raise InputError(f"{shown} cannot be read: {e.strerror}.") from e


def sha256(path: str | os.PathLike) -> str:
  """The SHA-256 of a regular file, in hexadecimal; see `open_regular`."""
  with open_regular(path) as file:
    digest: Any = hashlib.file_digest(file, "sha256")  # pyrefly: ignore
  return digest.hexdigest()


def walk(
  folder: str, name: str = "", inside: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[str, tuple[int, str]]]:
  """Name (from `name`), bytes and version of each file below a folder.

  -1 bytes: no regular file, a folder that may not be read, or a link to one
  that it is in. What is no folder has none. OSError: the folder itself may not
  be read.
  """
  try:
    status, entries = os.stat(folder), list(os.scandir(folder))
  except (FileNotFoundError, NotADirectoryError):
    return
  except PermissionError:
    if not inside:
      raise
    yield name, (-1, "")
    return
  if (here := (status.st_dev, status.st_ino)) in inside:
    yield name, (-1, "")
    return
  for entry in entries:
    inner = f"{name}/{entry.name}" if name else entry.name
    if entry.is_dir():
      yield from walk(entry.path, inner, (*inside, here))
    elif entry.is_file():
      with contextlib.suppress(FileNotFoundError):  # it has just gone
        status = entry.stat()
        yield inner, (status.st_size, str(status.st_mtime_ns))
    else:
      yield inner, (-1, "")


def write_once(path: str | os.PathLike, data: bytes | Iterable[bytes]) -> bool:
  """Writes a file of mode 0600 unless there is one of its name.

  `data` may come in parts. Returns whether it was written. RunError: the disk
  refuses.
  """
  final = pathlib.Path(path)
  with disk_errors(final):
    final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:  # Without a name until it is whole: a kill leaves nothing behind.
      flags, temporary = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, None
      handle = os.open(final.parent, flags, 0o600)
    except (AttributeError, OSError):  # not Linux, or not this file system
      suffix = f".{final.name}.tmp"
      handle, temporary = tempfile.mkstemp(suffix, ".", final.parent)
    try:
      with os.fdopen(handle, "wb", closefd=False) as file:
        file.writelines([data] if isinstance(data, bytes) else data)
        file.flush()
        os.fsync(handle)
      # Unlike a rename it fails where the name is taken. (With a src_dir_fd,
      # which is not used, Python does follow the link of /proc.)
      source = temporary or f"/proc/self/fd/{handle}"
      os.link(source, final, src_dir_fd=handle, follow_symlinks=True)
    except FileExistsError:
      return False
    finally:
      os.close(handle)
      if temporary is not None:
        os.unlink(temporary)
    sync(final.parent)
  return True


def sync(path: str | os.PathLike) -> None:
  """Waits until a file, or a folder's list of names, is on the disk."""
  handle = os.open(path, os.O_RDONLY)
  try:
    os.fsync(handle)
  except OSError as e:
    if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # folders of some systems
      raise
  finally:
    os.close(handle)


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike) -> Iterator[None]:
  """Says in one line that the disk refuses to write `path`, as a RunError."""
  try:
    yield
  except OSError as e:
    raise RunError(
      f"{escaped(os.fspath(path))} cannot be written: {e.strerror or e}; mend"
      " the disk or the permissions."
    ) from e
