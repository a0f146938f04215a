"""Files of a source, on a disk or in an object store: listed, and read later.

A file that was listed is known again by its size and version, so that a job
never mixes the photographs of two days. Hidden files (.name), what archives
leave behind (`__MACOSX`) and the wastebaskets of disks are ignored. Links are
followed. A link that leads nowhere or into a folder that contains it, a pipe, a
socket and a device are listed with a size of -1: whoever lists a folder refuses
or reports them.
"""

import contextlib
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.extract import storage
from oneshot_dp.extract.file_table import (
  File,
  FileColumns,
  FileTable,
  make_table,
)
from oneshot_dp.extract.files import FileBlock
from oneshot_dp.extract.sources.limits import MAX_IMAGE_BYTES
from oneshot_dp.extract.storage import Store

_IGNORED_NAMES = frozenset(
  (
    *("__MACOSX", "lost+found", "$RECYCLE.BIN", "System Volume Information"),
    *("@eaDir", "#recycle", "#snapshot", "@Recycle", "@Recently-Snapshot"),
  )
)
_MOST_NAMES = 20


def is_ignored(path: str) -> bool:
  """Whether a file is passed over, because of a name in its path."""
  if path.startswith(".") or "/." in path:
    return True
  # Asked of each file that is listed: a path is taken apart only if it has such
  # a name somewhere.
  for name in _IGNORED_NAMES:
    if name in path and name in path.split("/"):
      return True
  return False


def files_in(folder: str) -> FileTable:
  """All files of a folder at any depth, sorted by their relative paths.

  There are none where `folder` is a file or does not exist.
  """
  return make_table(_listed(folder))


def _listed(folder: str) -> Iterator[FileColumns]:
  for block in storage.iterate_blocks(storage.store_at(folder)):
    kept = block
    # A file is ignored for one name in its path, so all paths of a block are
    # looked at as one. Mostly nothing in it is ignored.
    if is_ignored("/".join(block.names)):
      kept = _without_ignored(block)
    versions = [_version_number(version) for version in kept.versions]
    yield FileColumns(kept.names, kept.sizes, versions)


def _without_ignored(block: FileBlock) -> FileBlock:
  kept = FileBlock([], [], [])
  for name, size, version in zip(*block, strict=True):
    if not is_ignored(name):
      kept.names.append(name)
      kept.sizes.append(size)
      kept.versions.append(version)
  return kept


def folders_in(folder: str, files: FileTable) -> list[str]:
  """Sorted names of the folders directly in a folder, empty ones included.

  (A store has no empty folders. One whose only keys are odd, and passed over,
  is a folder of it all the same.)

  Args:
    folder: a path or a URL.
    files: of `files_in(folder)`.

  Raises:
    InputError, RunError: a store refuses, or does not answer.
    OSError: a folder on a disk cannot be read.
  """
  # Files alone do not show a folder that is empty. It may be a class of no
  # image, and whether it is one must not depend on the images.
  names = set(files.folders())
  if storage.is_url(folder):
    candidates = storage.folder_names(storage.store_at(folder))
  else:
    candidates = [entry.name for entry in os.scandir(folder) if entry.is_dir()]
  for name in candidates:
    if not is_ignored(name):
      names.add(name)
  return sorted(names)


def join_folder(folder: str, file: File) -> File:
  """Returns a file of `files_in(folder)` with its whole path.

  Args:
    folder: a path or a URL.
    file: with its path relative to the folder.
  """
  return file._replace(path=os.path.join(folder, file.path))


def refuse_broken(folder: str, files: FileTable) -> None:
  """Raises InputError that names what was listed but cannot be read.

  Args:
    folder: for the message.
    files: of `files_in(folder)`; those of -1 bytes are broken.
  """
  broken = list(files.select(files.sizes < 0).paths())
  if broken:
    raise InputError(
      f"{folder!r} has links that lead nowhere or back into themselves, what"
      f" may not be read, or what is not a file: {format_names(broken)}; fix or"
      " remove them."
    )


def file_at(path: str) -> File:
  """One file as it is now; InputError: it does not exist, or is not a file."""
  try:
    size, version = storage.state(*_store_and_name(path))
  except FileNotFoundError as error:
    raise InputError(f"{path!r} does not exist.") from error
  return _file(path, size, version)


def read(file: File, start: int = 0, size: int | None = None) -> bytes:
  """Reads a file, or `size` bytes of it.

  Args:
    file: as it was listed, by its whole path.
    start: the first byte, counted from 0.
    size: how many bytes; None is as many as the file had when it was listed.

  Returns:
    Exactly so many bytes, of the very file that was listed.

  Raises:
    InputError: it has more bytes than any image has.
    RunError: it cannot be read any more, or is not the file that was listed.
  """
  # Asked for exactly as many bytes as were listed, and compared with the
  # version that was listed: an image that was exchanged meanwhile is an error,
  # and not another row.
  size = file.size if size is None else size
  if size > MAX_IMAGE_BYTES:
    raise InputError(
      f"{file.path!r}: {size:,} bytes are more than an image may have"
      f" ({MAX_IMAGE_BYTES:,}); remove it."
    )
  try:
    data, version = storage.read_range(*_store_and_name(file.path), start, size)
    if _file(file.path, file.size, version) != file or len(data) != size:
      raise OSError("it was changed")
  except FileNotFoundError as error:
    raise RunError(
      f"{file.path!r} was there when the files were listed, and cannot be read:"
      " it is gone; put it back."
    ) from error
  except (OSError, InputError) as error:
    raise RunError(
      f"{file.path!r} was there when the files were listed, and cannot be read:"
      f" {one_line(error)}."
    ) from error
  return data


@contextlib.contextmanager
def opened(file: File, kind: str) -> Iterator[BinaryIO]:
  """Opens a file for a library that reads the parts that it needs.

  Args:
    file: as it was listed.
    kind: what it should be, for messages ("Parquet file").

  Raises:
    InputError: it is not the file that was listed, or the library in the body
      finds it damaged or of another kind.
  """
  if file_at(file.path) != file:
    raise InputError(f"{file.path!r} was changed since it was listed.")
  with (
    readable_as(file.path, kind),
    storage.seekable(*_store_and_name(file.path), file.size) as content,
  ):
    yield content


@contextlib.contextmanager
def readable_as(path: str, kind: str) -> Iterator[None]:
  """Turns whatever a library raises for a damaged file into an InputError.

  Args:
    path: of the file, for the message.
    kind: what it should be, for the message ("Parquet file").

  Raises:
    InputError: the body raised an error, of whatever kind; errors of ours pass
      as they are.
  """
  try:
    yield
  except (InputError, RunError, MemoryError):
    raise  # memory is this machine's trouble, not the file's
  # What libraries make of damaged bytes is of no one kind.
  except Exception as error:
    raise InputError(
      f"{path!r} is not a readable {kind}: {one_line(error)}."
    ) from error


@contextlib.contextmanager
def reopened(file: File, kind: str) -> Iterator[BinaryIO]:
  """Opens a listed file while a job reads, as `opened` does.

  Args:
    file: as it was listed.
    kind: what it should be, for messages.

  Raises:
    RunError: whatever is wrong now, as the file was sound when it was listed.
  """
  try:
    with opened(file, kind) as content:
      yield content
  except InputError as error:
    raise RunError(f"cannot be read any more: {error}") from error


def format_names(names: Sequence[str]) -> str:
  """The first twenty names, quoted, for messages."""
  shown = ", ".join(map(repr, names[:_MOST_NAMES]))
  if len(names) > _MOST_NAMES:
    shown += f", … ({len(names):,} in all)"
  return shown


def _file(path: str, size: int, version: str) -> File:
  return File(path, size, _version_number(version))


def _version_number(version: str) -> int:
  return zlib.crc32(version.encode())


def _store_and_name(path: str) -> tuple[Store, str]:
  """The store that has a file, and its name there.

  Of a URL it is the store of the bucket, so that one set of connections serves
  all files of the bucket.
  """
  url = storage.URL.fullmatch(path)
  if url:
    scheme, bucket, name = url.groups()
    return storage.store_at(f"{scheme}://{bucket}"), name
  folder, name = os.path.split(path)
  return storage.store_at(folder), name
