"""Files of a source: found, known again, and read by any number of threads.

On a disk, or as gs:// or s3:// URLs. Links are followed. What is hidden (.name)
or an archive's litter (`__MACOSX`) is passed over. Broken are links that lead
nowhere or into a folder that they are in, and pipes, sockets and devices: who
lists a folder refuses or reports them.
"""

import bisect
import dataclasses
import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from oneshot_dp.configs.errors import InputError, RunError, escaped
from oneshot_dp.extract import files, storage
from oneshot_dp.extract.storage import is_url

IMAGES = (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".bmp", ".gif")
TABLES = (".parquet", ".tar")
_LITTER = frozenset(("__MACOSX", "@eaDir", "lost+found"))
_MOST_FILES = 1_000_000
"""That one pattern x{0..9} may stand for."""


class File(NamedTuple):
  """A file: where it has another size or `version`, it is another.

  The version is the time of its last change (ns); of an object there is none.
  """

  path: str
  size: int
  version: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
  """What is in a folder, at any depth, by relative path, in order."""

  files: Sequence[File]
  folders: Sequence[str]
  broken: Sequence[str]

  def inside(self, folder: str) -> "Found":
    """What is in one of its folders."""
    prefix = f"{folder}/"

    def cut(paths: Sequence[str]) -> list[str]:
      return [p[len(prefix) :] for p in paths if p.startswith(prefix)]

    first = bisect.bisect_left(self.files, (prefix,))
    last = bisect.bisect_left(self.files, (f"{folder}0",))  # "0" is next to "/"
    files = [
      f._replace(path=f.path[len(prefix) :]) for f in self.files[first:last]
    ]
    return Found(
      files=files, folders=cut(self.folders), broken=cut(self.broken)
    )


def is_folder(path: str) -> bool:
  """Whether a folder is there; in a store, if anything is in it."""
  return bool(_objects(path)) if is_url(path) else os.path.isdir(path)


def is_image(path: str) -> bool:
  """Whether a file is named as an image."""
  return path.lower().endswith(IMAGES)


def expanded(location: Sequence[str]) -> list[str]:
  """The paths that words stand for: x{00..12}.tar, *.tar, ~ and paths.

  Raises:
    InputError: nothing is there.
  """
  paths = []
  for word in location:
    for path in map(os.path.expanduser, _counted(word)):
      folder, _, pattern = path.rpartition("/")
      if is_url(path) and "*" in pattern:
        some = fnmatch.filter(_objects(folder), pattern)
        some = [f"{folder}/{name}" for name in sorted(some) if "/" not in name]
      elif is_url(path) or os.path.lexists(path):
        some = [path.rstrip("/") or "/"]
      else:
        some = sorted(glob.glob(path, recursive=True))
      if not some:
        raise InputError(f"{path!r} is not there: give a file, folder or URL.")
      paths += some
  return paths


def _counted(word: str) -> list[str]:
  """What a shell makes of x{00..12}."""
  if not (found := re.search(r"\{(\d{1,9})\.\.(\d{1,9})\}", word)):
    return [word]
  first, last = map(int, found.groups())
  if not 0 <= last - first < _MOST_FILES:
    raise InputError(f"{word!r} stands for no files, or for too many.")
  head, tail = word[: found.start()], word[found.end() :]
  return [
    f"{head}{number:0{len(found[1])}}{rest}"
    for number in range(first, last + 1)
    for rest in _counted(tail)
  ]


def found_in(folder: str) -> Found:
  """Lists a folder, at any depth.

  Raises:
    InputError: it, or a folder in it, cannot be read.
  """
  listed, folders, broken = [], set(), []
  if is_url(folder):
    for path, size in _objects(folder).items():
      if not any(map(is_litter, path.split("/"))):
        listed.append(File(path, size, 0))
        folders |= {path[: at.start()] for at in re.finditer("/", path)}
  else:
    for path, status in _below(folder, "", frozenset()):
      if status is None or not (_is_dir(status) or _is_file(status)):
        broken.append(path)
      elif _is_dir(status):
        folders.add(path)
      else:
        listed.append(File(path, status.st_size, status.st_mtime_ns))
  return Found(
    files=sorted(listed), folders=sorted(folders), broken=sorted(broken)
  )


def _below(
  folder: str, prefix: str, parents: frozenset[tuple[int, int]]
) -> Iterator[tuple[str, os.stat_result | None]]:
  """Yields all below a folder; no status of a link that leads nowhere."""
  try:
    status = os.stat(folder)
    identity = status.st_dev, status.st_ino
    if identity in parents:
      yield prefix[:-1], None
      return
    with os.scandir(folder) as entries:
      names = [e.name for e in entries if not is_litter(e.name)]
  except OSError as error:
    raise InputError(f"{folder!r} cannot be read: {error.strerror}.") from error
  for name in names:
    path = f"{folder}/{name}"
    try:
      status = os.stat(path)
    except OSError:
      yield prefix + name, None
      continue
    if not _is_dir(status):
      yield prefix + name, status
      continue
    inner = list(_below(path, f"{prefix}{name}/", parents | {identity}))
    if inner != [(prefix + name, None)]:
      yield prefix + name, status
    yield from inner


def _is_dir(status: os.stat_result) -> bool:
  return stat.S_ISDIR(status.st_mode)


def _is_file(status: os.stat_result) -> bool:
  return stat.S_ISREG(status.st_mode)


def is_litter(name: str) -> bool:
  """Whether a file or folder is passed over, and all that is in it."""
  return name.startswith(".") or name in _LITTER


def file_at(path: str) -> File:
  """One file, as it is now.

  Raises:
    InputError: it is no file.
  """
  if not is_url(path):
    with files.open_regular(path) as opened:
      return _state(path, opened)
  with storage.seekable(*path.rsplit("/", 1)) as opened:
    return File(path, opened.seek(0, os.SEEK_END), 0)


def _state(path: str, opened: BinaryIO) -> File:
  status = os.fstat(opened.fileno())
  return File(path, status.st_size, status.st_mtime_ns)


def read(file: File, start: int = 0, size: int | None = None) -> bytes:
  """All of a file, or so many bytes from a place on.

  Raises:
    RunError: it cannot be read, or is not what was listed.
  """
  size = file.size if size is None else size
  try:
    if url := storage.URL.fullmatch(file.path):
      bucket = storage.store_at(f"{url[1]}://{url[2]}")  # its connections
      data, _ = storage.read_range(bucket, url[3], start, size)
    else:
      with seekable(file) as opened:
        opened.seek(start)
        data = opened.read(size)
    if len(data) != size:
      raise OSError(0, f"it has {len(data)} of {size} bytes that were listed")
  except (OSError, InputError) as error:
    reason = getattr(error, "strerror", None) or str(error)
    raise RunError(
      f"{file.path!r} was there when the files were listed, and cannot be read:"
      f" {escaped(reason)}."
    ) from error
  return data


def seekable(file: File) -> BinaryIO:
  """A file, of which a library reads the parts that it needs.

  Raises:
    InputError: it cannot be read.
    OSError: it is not what was listed.
  """
  if is_url(file.path):
    return storage.seekable(*file.path.rsplit("/", 1))
  opened = files.open_regular(file.path)
  if _state(file.path, opened) != file:
    opened.close()
    raise OSError(0, "it was changed")
  return opened


def _objects(url: str) -> dict[str, int]:
  return storage.sizes(storage.store_at(url))
