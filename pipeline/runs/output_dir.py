"""Directories of results: reserved before anything is paid for, then whole.

A run works in `.NAME.unfinished` beside its --out, which is its owner's alone
and locked while the run lives. That it can be renamed, and that there is room,
is tried first. What is charged and released is kept in it until it is
delivered, so that a failure costs nothing: the same command goes on.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.storage.durable_files import (
  check_on_disk,
  disk_errors,
  sync,
)
from oneshot_dp.pipeline.runs.reserved import Reserved, sync_all

_ELSEWHERE = "name another place"
_MOVE = "move it away, and the same command goes on with what is paid for"

_held: dict[Path, Reserved] = {}


def held(path: Path) -> Reserved | None:
  """The place that this process has reserved, if it has."""
  return _held.get(resolved(path))


def left_of(path: Path) -> str:
  """What a run into `path` paid for before it stopped; see `Reserved.left`."""
  with contextlib.suppress(OSError, InputError):  # another's, or no such place
    place = resolved(path)
    return Reserved(path=place, work=_work(place)).left
  return ""


def resolved(path: Path) -> Path:
  """The place that a path means, through all links."""
  check_on_disk(path)
  try:
    place = path.resolve()
    place.exists()
  except (OSError, RuntimeError) as error:
    raise InputError(
      f"{path} is no place for results ({getattr(error, 'strerror', error)});"
      " name another."
    ) from error
  if not place.name:
    raise InputError(f"{path} is the root of all files; {_ELSEWHERE}.")
  return place


def check_absent(path: Path) -> None:
  """Refuses to write over earlier results, before any budget is spent."""
  place = resolved(path)
  with disk_errors(path):
    if (earlier := _work(place) / "released").exists():
      raise InputError(
        f"{earlier} has heads that an earlier version released and paid for:"
        " move it away first; each folder in it is a whole head."
      )
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
      instead = _MOVE if _clean_up(place) else _ELSEWHERE
      raise InputError(f"{path} already holds something; {instead}.")
    if place.exists() and place.samefile("."):  # it would be, under our feet
      raise InputError(f"{path} cannot be renamed to; {_ELSEWHERE}.")
  parent = next(p for p in place.parents if p.exists())
  if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
    raise RunError(f"{path} cannot be made: {parent} is not writable.")


@contextlib.contextmanager
def reserved(path: Path, *, goes_on: bool = False) -> Iterator[Reserved]:
  """Makes sure, before anything is charged, that `path` can be written.

  Args:
    path: where results will be; not there yet, or an empty folder.
    goes_on: whether to go on with what a failed run has paid for.

  Raises:
    InputError: something is there, or another run has it, or a failed one left
      what was paid for.
    RunError: it cannot be written.
  """
  place = resolved(path)
  here = Reserved(path=place, work=_work(place))
  check_absent(path)
  missing = [p for p in place.parents if not p.exists()]
  with disk_errors(path):
    place.parent.mkdir(parents=True, exist_ok=True)
    for parent in missing:
      sync(parent.parent)  # what is paid for is not lost with its folder
    lock = _locked(here.work, path)
  try:
    if here.left and not goes_on:
      raise InputError(
        f"a run into {path} was charged and not finished: {here.left}; or"
        f" {_ELSEWHERE}."
      )
    try:
      with disk_errors(path):
        kept = {"lock", here.record.name if here.left else ""}
        for old in here.work.iterdir():  # what a killed run left
          if old.name not in kept:
            (shutil.rmtree if old.is_dir() else os.unlink)(old)
        _try_to_rename(here)
      _held[place] = here
      yield here
    except BaseException as error:
      if here.is_delivered or not here.left or str(here.record) in str(error):
        raise
      what = f"{path} was not finished: {here.left}"
      if isinstance(error, InputError | RunError):
        raise type(error)(f"{error} {what}.") from error
      if isinstance(error, KeyboardInterrupt):
        raise KeyboardInterrupt(what) from error
      print(f"warning: {what}", file=sys.stderr)
      raise
    finally:
      _held.pop(place, None)
      if here.is_delivered or not here.left:
        here.remove()
        for parent in missing:
          with contextlib.suppress(OSError):
            parent.rmdir()  # if it is empty
  finally:
    _unlock(lock)


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
  """Yields a directory that nobody else sees, renamed to `path` at the end.

  Modes stay as the block leaves them; of what it does not touch, as the umask
  says. If the block raises, nothing is left behind but a run's record.

  Raises:
    RunError: the disk is full or the place is not writable.
  """
  with contextlib.ExitStack() as stack:
    here = held(path) or stack.enter_context(reserved(path))
    with disk_errors(path):
      here.give_room()
      directory = here.work / "whole"
      shutil.rmtree(directory, ignore_errors=True)
      # Within a directory of mode 0700, so that it can have its final mode.
      directory.mkdir()
      yield directory
      sync_all(directory)
      here.note_delivery(directory)
      os.rename(directory, here.path)
      here.is_delivered = True
      with contextlib.suppress(OSError):  # it is there, if not for a power cut
        sync(here.path.parent)


def _work(place: Path) -> Path:
  name = f".{place.name}.unfinished"
  if len(os.fsencode(name)) > 200:
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:24]
    name = f".{name}.unfinished"
  return place.with_name(name)


def _locked(work: Path, path: Path) -> int:
  """Makes the folder, and a lock of it that is there while it is open."""
  while True:
    work.mkdir(mode=0o700, exist_ok=True)
    if work.is_symlink() or work.stat().st_uid != os.geteuid():
      raise InputError(f"{work} is somebody else's; {_ELSEWHERE}.")
    file = work / "lock"
    lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if file.exists() and os.path.samestat(os.fstat(lock), file.stat()):
        return lock
    except OSError as error:
      _unlock(lock)
      if not isinstance(error, BlockingIOError):
        raise
      raise InputError(
        f"another run is writing {path}; wait for it, or {_ELSEWHERE}."
      ) from error
    _unlock(lock)  # it was removed meanwhile


def _unlock(lock: int) -> None:
  with contextlib.suppress(OSError):  # it is closed all the same
    os.close(lock)


def _clean_up(place: Path) -> str:
  """Removes what a run left that had delivered; says if one had not."""
  here = Reserved(path=place, work=_work(place))
  if here.work.is_dir():
    with contextlib.suppress(OSError, InputError):
      lock = _locked(here.work, place)
      if here.has_delivered() or not here.left:
        here.remove()
      _unlock(lock)
  return here.left


def _try_to_rename(here: Reserved) -> None:
  """Now, as it will be at the end: over an empty folder, too."""
  probe = here.work / "probe"
  probe.mkdir()
  existed = here.path.exists()
  os.rename(probe, here.path)
  if not existed:
    here.path.rmdir()
