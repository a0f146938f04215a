"""A folder on a disk."""

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  read_bytes,
  sync,
  temporary_file,
  write_bytes,
)


class LocalStore:
  """Files of mode 0600 in folders of mode 0700, each renamed into place."""

  def __init__(self, path: pathlib.Path):
    self.path = path

  def sizes(self, folder: str = "") -> dict[str, int]:
    try:
      with os.scandir(self.path / folder) as entries:
        return {
          e.name + "/" * e.is_dir(): 0 if e.is_dir() else e.stat().st_size
          for e in entries
        }
    except FileNotFoundError:
      return {}
    except NotADirectoryError as e:
      raise InputError(f"{self.path / folder}: not a directory.") from e
    except OSError as e:
      raise InputError(
        f"{self.path / folder}: cannot be read: {e.strerror}."
      ) from e

  def read(self, name: str, most: int = sys.maxsize) -> bytes:
    try:
      return read_bytes(self.path / name, most)
    except (FileNotFoundError, NotADirectoryError) as e:
      raise FileNotFoundError(*e.args) from e
    except OSError as e:
      raise InputError(
        f"{self.path / name}: cannot be read: {e.strerror}."
      ) from e

  def put(self, name: str, data: bytes, *, create: bool = False) -> bool:
    final = self._place(name)
    if not create:
      write_bytes(final, data)
      return True
    with (
      temporary_file(final.parent, final.name) as temporary,
      disk_errors(final),
    ):
      temporary.write_bytes(data)
      sync(temporary)
      try:
        # Unlike a rename it fails where the name is taken.
        os.link(temporary, final)
      except FileExistsError:
        return final.read_bytes() == data
      except OSError:  # Some file systems have no second names.
        if final.exists():
          return final.read_bytes() == data
        os.replace(temporary, final)
      sync(final.parent)
    return True

  @contextlib.contextmanager
  def scratch(self, name: str) -> Iterator[pathlib.Path]:
    path = self._place(name)
    try:
      with disk_errors(path):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
      yield path
      with disk_errors(path):
        sync(path)
        sync(path.parent)
    except BaseException:
      with contextlib.suppress(OSError):
        path.unlink()
      raise

  def move(self, name: str, to: str) -> None:
    final = self.path / to
    with disk_errors(final), contextlib.suppress(FileNotFoundError):
      os.replace(self.path / name, final)
      sync(final.parent)
    if not final.is_file():
      raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)

  def remove(self, names: Iterable[str]) -> None:
    for name in names:
      if name.endswith("/"):
        shutil.rmtree(self.path / name, ignore_errors=True)
      else:
        with contextlib.suppress(OSError):
          (self.path / name).unlink()

  def local_files(
    self, files: Sequence[tuple[str, int]]
  ) -> Generator[pathlib.Path, None, None]:
    return (self.path / name for name, _ in files)

  @contextlib.contextmanager
  def lock(self, name: str) -> Iterator[None]:
    path = self._place(name)
    with disk_errors(path):
      handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
      try:
        # Gone with the process, however that ends.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError as e:
        raise InputError(
          f"{self.path}: another job is writing there; let it end, or choose"
          " another --out."
        ) from e
      yield
    finally:
      with contextlib.suppress(OSError):  # nothing was written through it
        os.close(handle)

  def _place(self, name: str) -> pathlib.Path:
    """The path of a file that is to be written, in a folder that is there."""
    path = self.path / name
    with disk_errors(self.path):
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self.path.mkdir(mode=0o700, exist_ok=True)
      path.parent.mkdir(mode=0o700, exist_ok=True)
    return path
