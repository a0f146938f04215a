"""Reads and writes files on a disk: durable, and private to their owner.

What is written is there whole or not at all, of mode 0600, and on the disk
before it is in view. What is read is a regular file of a bounded size: a FIFO,
a device, a socket or a folder in its place is refused, and nothing waits on it.
What a crash would write, all memory, is not written at all.
"""

import collections
import contextlib
import ctypes
import errno
import hashlib
import os
import pathlib
import resource
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from oneshot_dp.configs.errors import InputError, RunError, escaped

MOST_BYTES = 1 << 30
"""A larger file that is read whole is taken for a mistake."""
_BLOCK_FILES = 512
"""Files are listed so many at a time, at the most."""
_MOST_FOLDERS = 256
"""Folders within each other; no program that makes data sets has a tenth."""
_MOST_WAYS = 256
"""Paths by which links lead to one folder: of ten folds, each image has ten."""
_PR_SET_DUMPABLE = 4  # of linux/prctl.h


class TooLargeError(InputError):
  """A file has more bytes than are read."""


def open_regular(
  path: str | os.PathLike, most_bytes: int | None = None
) -> BinaryIO:
  """Opens a regular file for reading; the caller closes it.

  Args:
    path: of the file.
    most_bytes: a larger file is refused; None for any size.

  Raises:
    TooLargeError: it has more than `most_bytes`.
    InputError: it is not there, not a regular file, or may not be read.
  """
  shown = escaped(os.fspath(path))
  try:
    # Without O_NONBLOCK, to open a FIFO waits until somebody writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
  except OSError as e:
    raise InputError(f"{shown} cannot be read: {e.strerror}.") from e
  except ValueError as e:  # a null byte, say
    raise InputError(f"{shown} cannot be read: {e}.") from e
  # What was opened is looked at, not its name: that may lead elsewhere by now.
  status = os.fstat(handle)
  if not stat.S_ISREG(status.st_mode):
    os.close(handle)
    raise InputError(
      f"{shown} cannot be read: it is not a regular file; give a file."
    )
  if most_bytes is not None and status.st_size > most_bytes:
    os.close(handle)
    raise TooLargeError(
      f"{shown} cannot be read: {status.st_size:,} bytes are more than"
      f" {most_bytes:,}."
    )
  return os.fdopen(handle, "rb")


def read_regular(
  path: str | os.PathLike, most_bytes: int = MOST_BYTES
) -> bytes:
  """Reads a regular file whole.

  Args:
    path: of the file.
    most_bytes: a larger file is refused before any of it is in memory.

  Raises:
    InputError: as of `open_regular`, or the disk fails.
  """
  with open_regular(path, most_bytes) as file, _read_errors(path):
    # No more than was bounded, however the file grows meanwhile.
    return file.read(os.fstat(file.fileno()).st_size)


@contextlib.contextmanager
def as_file(data: bytes) -> Iterator[BinaryIO]:
  """A file that has these bytes, for libraries that read files only.

  Args:
    data: its content.

  Yields:
    The open file. It has no name that others find, is gone when the process is,
    and is in memory where the system has such files.

  Raises:
    RunError: the disk of temporary files refuses.
  """
  with contextlib.ExitStack() as stack:
    with disk_errors(tempfile.gettempdir()):
      if hasattr(os, "memfd_create"):  # on Linux
        file = os.fdopen(os.memfd_create("oneshot-dp"), "w+b")
      else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
      stack.enter_context(file)
      file.write(data)
      file.seek(0)  # and flushes
    del data  # so that the caller can drop it, too
    yield file


def sha256(path: str | os.PathLike) -> str:
  """The SHA-256 of a regular file, in hexadecimal; see `read_regular`."""
  with open_regular(path) as file, _read_errors(path):
    digest: Any = hashlib.file_digest(file, "sha256")  # pyrefly: ignore
  return digest.hexdigest()


@contextlib.contextmanager
def _read_errors(path: str | os.PathLike) -> Iterator[None]:
  """Says in one line that the disk fails to read a file, as an InputError."""
  try:
    yield
  except OSError as e:
    shown = escaped(os.fspath(path))
    raise InputError(f"{shown} cannot be read: {e.strerror}.") from e


class FileBlock(NamedTuple):
  """Some files of a listing, in its order.

  Attributes:
    names: relative to what is listed.
    sizes: in bytes; -1 marks what cannot be read.
    versions: of each file, what tells it from a later one of the same name.
  """

  names: list[str]
  sizes: list[int]
  versions: list[str]


def walk(folder: str) -> Iterator[FileBlock]:
  """Yields the name, bytes and version of each file below a folder, in blocks.

  Files come in the order of their names by code point; only the names of one
  folder at a time are in memory. A place that is not a folder has no files. A
  size of -1 marks what is not a regular file, a folder that may not be read,
  and a link to a folder that it lies in.

  Args:
    folder: its path.

  Raises:
    InputError: a folder lies within more than `_MOST_FOLDERS` others, or links
      lead to it in more than `_MOST_WAYS` ways.
    OSError: the folder itself may not be read.
  """
  yield from _walk(folder, "", (), collections.Counter(), is_linked=False)


def _walk(
  folder: str,
  name: str,
  inside: tuple[tuple[int, int], ...],
  visits: collections.Counter[tuple[int, int]],
  *,
  is_linked: bool,
) -> Iterator[FileBlock]:
  """As `walk`, of a folder at any depth.

  Args:
    folder: its path.
    name: what the names begin with.
    inside: device and inode of each folder that this one lies in.
    visits: how often links led to each folder; it grows.
    is_linked: whether the folder itself is a link.
  """
  if len(inside) > _MOST_FOLDERS:
    raise InputError(
      f"{escaped(name)[:80]!r}… lies within {len(inside):,} folders, and may"
      f" lie within {_MOST_FOLDERS}: move it up, or remove it."
    )
  try:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
  except (FileNotFoundError, NotADirectoryError):
    return
  except PermissionError:
    if not inside:
      raise
    yield FileBlock([name], [-1], [""])
    return
  try:
    # A link may lead back up: to follow it would never end.
    status = os.fstat(handle)
    here = (status.st_dev, status.st_ino)
    if here in inside:
      yield FileBlock([name], [-1], [""])
      return
    # Where each of some folders has two links to the next one, the names double
    # from one to the next: they would never end.
    if is_linked:
      visits[here] += 1
    if visits[here] > _MOST_WAYS:
      raise InputError(
        f"{escaped(name)[:80]!r}: links lead to one folder in more than"
        f" {_MOST_WAYS} ways: remove some of them."
      )
    prefix = f"{name}/" if name else ""
    # What is in a folder sorts by a name that goes on with a slash.
    entry_of = _entries_by_name(handle)
    before: list[os.DirEntry[str]] = []
    for key in sorted(entry_of):
      entry = entry_of[key]
      if not key.endswith("/"):
        before.append(entry)
        continue
      yield from _blocks_of(before, prefix)
      before = []
      below = os.path.join(folder, entry.name)
      yield from _walk(
        below,
        prefix + entry.name,
        (*inside, here),
        visits,
        is_linked=entry.is_symlink(),
      )
    yield from _blocks_of(before, prefix)
  finally:
    os.close(handle)


def _entries_by_name(handle: int) -> dict[str, os.DirEntry[str]]:
  """What is in an open folder; names of folders have a slash at the end.

  Each entry asks for its size by its name in the handle, which must stay open:
  the whole path would be looked up for each of millions of files.
  """
  entry_of: dict[str, os.DirEntry[str]] = {}
  for entry in os.scandir(handle):
    name = entry.name
    # A link to itself is no folder: `is_dir` raises an error of it.
    try:
      if entry.is_dir():
        name += "/"
    except OSError:
      name = entry.name
    entry_of[name] = entry
  return entry_of


def _blocks_of(
  entries: Sequence[os.DirEntry[str]], prefix: str
) -> Iterator[FileBlock]:
  """What is in a folder beside other folders, as `walk` yields it.

  One loop without a call for each file, which would cost a tenth more.
  """
  for start in range(0, len(entries), _BLOCK_FILES):
    block = FileBlock([], [], [])
    for entry in entries[start : start + _BLOCK_FILES]:
      size = -1
      version = ""
      try:
        if entry.is_file():
          status = entry.stat()
          size = status.st_size
          version = str(status.st_mtime_ns)
      except FileNotFoundError:  # it has just gone
        continue
      except OSError:  # a link to itself, say
        pass
      block.names.append(prefix + entry.name)
      block.sizes.append(size)
      block.versions.append(version)
    yield block


def write_once(path: str | os.PathLike, data: bytes | Iterable[bytes]) -> bool:
  """Writes a file of mode 0600 unless there is one of its name.

  It has no name, or one that nobody looks for, until it is whole and on the
  disk, and it never takes the place of another file.

  Args:
    path: of the file; its folder is made if it is missing, of mode 0700.
    data: its bytes, which may come in parts.

  Returns:
    Whether it was written.

  Raises:
    RunError: the disk refuses.
  """
  final = pathlib.Path(path)
  parts = [data] if isinstance(data, bytes) else data
  with disk_errors(final):
    final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = _open_unnamed(final)
    try:
      # On the disk before it has a name: whoever finds the file finds all of
      # it, also after a power cut.
      with os.fdopen(handle, "wb", closefd=False) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(handle)
      # A link fails where the name is taken, which a rename does not. (With a
      # src_dir_fd, which is not used, Python does follow the link of /proc.)
      source = temporary or f"/proc/self/fd/{handle}"
      os.link(source, final, src_dir_fd=handle, follow_symlinks=True)
    except FileExistsError:
      return False
    finally:
      os.close(handle)
      if temporary is not None:
        os.unlink(temporary)
    # The name is an entry of the folder, and is on the disk only with that.
    sync(final.parent)
  return True


def replace(path: str | os.PathLike, data: bytes, mode: int = 0o600) -> None:
  """Writes a file whole, in place of one that may be there.

  It is written beside its place first, so that nobody sees half of it.

  Args:
    path: of the file; its folder is made if it is missing.
    data: its content.
    mode: which it has.

  Raises:
    RunError: the disk refuses.
  """
  final = pathlib.Path(path)
  unfinished = final.with_name(f".{final.name}.new")
  with disk_errors(final):
    unfinished.unlink(missing_ok=True)  # of a command that was killed
    try:
      write_once(unfinished, data)
      unfinished.chmod(mode)
      os.replace(unfinished, final)
    finally:
      unfinished.unlink(missing_ok=True)


def check_creatable(path: str | os.PathLike) -> None:
  """Tries whether a file could be written; nothing is left of it.

  Args:
    path: of the file; its folder may be missing.

  Raises:
    RunError: the disk or the permissions refuse.
  """
  folder = pathlib.Path(path).absolute().parent
  while not folder.exists():
    folder = folder.parent
  with disk_errors(path):
    handle, temporary = _open_unnamed(folder / "try")
    os.close(handle)
    if temporary is not None:
      os.unlink(temporary)


def _open_unnamed(final: pathlib.Path) -> tuple[int, str | None]:
  """Opens a new file beside `final`: its handle, and its name if it needs one.

  A file without a name is gone when its process ends: a kill leaves nothing
  behind. Linux has such files, on most file systems.
  """
  if hasattr(os, "O_TMPFILE"):
    flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
    with contextlib.suppress(OSError):  # a file system without them
      return os.open(final.parent, flags, 0o600), None
  return tempfile.mkstemp(f".{final.name}.tmp", ".", final.parent)


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


def sync_tree(folder: str | os.PathLike) -> None:
  """Waits until a folder is on the disk, with all that is in it."""
  # From the bottom up, files before the list of their names, so that after a
  # rename a power cut finds all of it or nothing.
  for parent, _, names in os.walk(folder, topdown=False):
    for name in names:
      sync(os.path.join(parent, name))
    sync(parent)


@contextlib.contextmanager
def disk_errors(path: str | os.PathLike) -> Iterator[None]:
  """Says in one line that the disk refuses to write `path`, as a RunError."""
  try:
    yield
  except OSError as e:
    raise RunError(
      f"{escaped(os.fspath(path))} cannot be written: {e.strerror or e}; fix"
      " the disk or the permissions."
    ) from e


def disable_core_dumps() -> None:
  """Makes a crash of this process leave nothing of its memory behind.

  The commands of `oneshot-dp` do so by themselves; in a notebook or a program,
  call it before private rows are in memory. It cannot be undone where the
  system forbids to raise a limit, and other processes of the same user cannot
  attach a debugger from then on. Processes that this one starts have the limit
  on files alone.
  """
  # The limit is for core files. Where core_pattern is a pipe, Linux ignores a
  # limit of 0 and gives all memory to a program such as systemd-coredump,
  # unless the process is marked as one that is not to be dumped.
  _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
  resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))
  libc = ctypes.CDLL(None)
  if hasattr(libc, "prctl"):  # other systems than Linux have none
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
