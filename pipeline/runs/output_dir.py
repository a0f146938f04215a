"""Directories of results that are either whole or not there."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from oneshot_dp.configs.errors import InputError, RunError


def check_absent(path: Path) -> None:
  """Refuses to write over earlier results, before any budget is spent.

  Raises:
    InputError: something is there already.
    RunError: the place cannot be written.
  """
  if path.exists() and not (path.is_dir() and not any(path.iterdir())):
    raise InputError(
      f"{path} already holds something; name another place with --out."
    )
  parent = _existing_parent(path)
  if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
    raise RunError(f"{path} cannot be made: {parent} is not writable.")


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
  """Yields a directory that nobody else sees, renamed to `path` at the end.

  Modes stay as the block leaves them; of what it does not touch, as the umask
  says. If the block raises, nothing is left behind.

  Raises:
    RunError: the disk is full or the place is not writable.
  """
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
      # Within a directory of mode 0700, so that it can have its final mode.
      directory = temporary / path.name
      directory.mkdir()
      yield directory
      if path.exists():
        path.rmdir()
      directory.rename(path)
    finally:
      shutil.rmtree(temporary, ignore_errors=True)
  except OSError as error:
    raise RunError(
      f"{path} cannot be written: {error.strerror or error}."
    ) from error


def keep_from_others(directory: Path) -> None:
  """Gives a directory that nobody else sees yet mode 0700, and its files 0600.

  For what shows a result that is NOT PRIVATE: an accuracy, a picture or a page
  made of exact sums is a function of these. Folders in it see to themselves.
  """
  directory.chmod(0o700)
  for path in directory.iterdir():
    if path.is_file():
      path.chmod(0o600)


def _existing_parent(path: Path) -> Path:
  return next(p for p in path.absolute().parents if p.exists())
