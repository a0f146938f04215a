"""Files of a source, on a disk or in an object store: found and known again.

What is hidden (.name) or an archive's litter (`__MACOSX`) is passed over. Links
are followed; those that lead nowhere or into a folder that they are in, pipes,
sockets and devices have a size of -1: who lists a folder refuses or reports it.
"""

import contextlib
import glob
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from oneshot_dp.configs.errors import InputError, RunError, one_line
from oneshot_dp.extract import storage
from oneshot_dp.extract.files import MOST_BYTES

IMAGES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif")
ROWS = (".npz", ".parquet", ".tar")
_LITTER = frozenset(("__MACOSX", "@eaDir", "lost+found"))


class File(NamedTuple):
  """A file: where size or version (CRC-32 of what tells) differs, another."""

  path: str
  size: int
  version: int


def is_image(path: str) -> bool:
  """Whether a file is named as an image."""
  return path.lower().endswith(IMAGES)


def is_table(path: str) -> bool:
  """Whether a file is named as one that has images in rows."""
  return path.lower().endswith(ROWS)


def is_ignored(path: str) -> bool:
  """Whether a file is passed over, for a name in its path."""
  return any(p[:1] == "." or p in _LITTER for p in path.split("/"))


def expanded(location: Sequence[str]) -> list[str]:
  """The paths that words stand for: x{00..12}.tar, *.tar, ~ and paths."""
  paths, words = [], list(location)[::-1]
  while words:
    path = os.path.expanduser(words.pop())
    if found := re.search(r"\{(\d{1,6})\.\.(\d{1,6})\}", path):
      first, last = found.groups()
      numbers = [f"{i:0{len(first)}}" for i in range(int(first), int(last) + 1)]
      some = [path.replace(found[0], number, 1) for number in numbers]
      words += reversed(some)
    elif storage.is_url(path) or os.path.lexists(path):
      paths += (some := [path.rstrip("/") or "/"])
    else:
      paths += (some := sorted(glob.glob(path, recursive=True)))
    if not some:
      raise InputError(f"{path!r} is not there: give a file, folder or URL.")
  return paths


def files_in(folder: str) -> list[File]:
  """All files of a folder, at any depth, by relative path, in order.

  None are in a file.
  """
  found = storage.list_files(storage.store_at(folder)).items()
  return [_file(p, size, v) for p, (size, v) in found if not is_ignored(p)]


def folders_in(folder: str, files: Sequence[File]) -> list[str]:
  """Names of the folders right in one, empty ones too where there are such."""
  names = {f.path.partition("/")[0] for f in files if "/" in f.path}
  if not storage.is_url(folder):
    inner = {e.name for e in os.scandir(folder) if e.is_dir()}
    names |= {name for name in inner if not is_ignored(name)}
  return sorted(names)


def below(folder: str, file: File) -> File:
  """A file of `files_in`, by its whole path."""
  return file._replace(path=os.path.join(folder, file.path))


def refuse_broken(folder: str, files: Sequence[File]) -> None:
  """InputError: some are no files; names them."""
  if broken := [file.path for file in files if file.size < 0]:
    raise InputError(
      f"{folder!r} has links that lead nowhere or back into themselves, or what"
      f" is no file: {format_names(broken)}; mend or remove them."
    )


def file_at(path: str) -> File:
  """One file, as it is now; InputError: it is none."""
  try:
    return _file(path, *storage.state(*_place(path)))
  except FileNotFoundError as error:
    raise InputError(f"{path!r} is not there.") from error


def read(file: File, start: int = 0, size: int | None = None) -> bytes:
  """A file, or so many bytes of it; RunError: it is not what was listed."""
  size = file.size if size is None else size
  if size > MOST_BYTES:
    raise InputError(f"{file.path!r}: {size:,} bytes are no image; remove it.")
  try:
    data, version = storage.read_range(*_place(file.path), start, size)
    if _file(file.path, file.size, version) != file or len(data) != size:
      raise OSError("it was changed")
  except (OSError, InputError) as error:
    raise RunError(
      f"{file.path!r} was there when the files were listed, and cannot be read:"
      f" {one_line(error)}."
    ) from error
  return data


@contextlib.contextmanager
def opened(file: File, kind: str) -> Iterator[BinaryIO]:
  """A file of rows, for a library that reads the parts that it needs.

  InputError: it is not what was listed, or the library finds it damaged, or of
  another kind.
  """
  if file_at(file.path) != file:
    raise InputError(f"{file.path!r} was changed since it was listed.")
  try:
    with storage.seekable(*_place(file.path), file.size) as found:
      yield found
  except (InputError, RunError):
    raise
  except Exception as error:  # whatever libraries make of damaged bytes
    raise InputError(
      f"{file.path!r} is not a readable {kind}: {one_line(error)}."
    ) from error


def format_names(names: Sequence[str]) -> str:
  """The first twenty names, for people."""
  more = f", … ({len(names):,} in all)" if len(names) > 20 else ""
  return ", ".join(map(repr, names[:20])) + more


def _file(path: str, size: int, version: str) -> File:
  return File(path, size, zlib.crc32(version.encode()))


def _place(path: str) -> tuple[Any, str]:
  """The store of a folder; of a URL its bucket, whose connections are kept."""
  url = storage.URL.fullmatch(path)
  folder, name = os.path.split(path)
  folder, name = (f"{url[1]}://{url[2]}", url[3]) if url else (folder, name)
  return storage.store_at(folder), name
