"""Outputs that one process writes, and that are shown only when whole.

The files are written into a hidden folder first. That folder belongs to its
owner alone (mode 0700), and is locked while its process lives: a second process
with the same output is refused, and a killed process leaves nothing in view.
On a disk the folder is `.NAME.unfinished/whole` beside the place where the
output is to be seen, and one rename shows it.
"""

import abc
import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.files import disk_errors, sync, sync_tree
from oneshot_dp.extract.storage import is_url


class StagedOutput(abc.ABC):
  """A place, and the hidden folder where what it shows is written first.

      with output_at(out) as output:
        output.staging.mkdir()
        ...  # write into output.staging
        output.publish()

  What was staged and not published is removed when the block ends, or kept for
  the next process with the same output if it is resumable.

  Attributes:
    path: the place of the output; known once locked.
    staging: where it is written before; known once locked.
    is_half_shown: whether some of what is staged was in view when it was
      locked; a process that was killed has shown it.
  """

  path: Path
  staging: Path
  is_half_shown: bool = False

  def __init__(self, *, resumable: bool):
    """Begins unlocked; nothing is touched before `lock`.

    Args:
      resumable: whether what is staged is kept for the next process.
    """
    self._resumable = resumable
    self._lock_handle: int | None = None

  @abc.abstractmethod
  def lock(self) -> None:
    """Takes the place, or refuses."""

  @abc.abstractmethod
  def publish(self) -> None:
    """Shows what was staged."""

  def unlock(self) -> None:
    """Gives the place back; what is staged is removed, or kept to resume."""
    if self._lock_handle is None:
      return
    # With the lock still in hand: once it is given back, the folder may be
    # another process's.
    if not (self._resumable and self.staging.exists()):
      shutil.rmtree(self.staging.parent, ignore_errors=True)
    os.close(self._lock_handle)
    self._lock_handle = None

  def __enter__(self) -> Self:
    self.lock()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.unlock()


class DiskOutput(StagedOutput):
  """An output on a disk, shown by one rename: all of it or nothing."""

  def __init__(self, out: Path, *, resumable: bool = False):
    """Names the place; nothing is touched before `lock`.

    Args:
      out: the place as the user names it; messages have it so. `path` is
        absolute, with links resolved.
      resumable: whether what is staged is kept for the next process.
    """
    super().__init__(resumable=resumable)
    self._out = out
    self._new_parents: list[Path] = []

  def lock(self) -> None:
    """Takes the place, or refuses.

    Raises:
      InputError: the output cannot be a folder of this machine; another
        process writes it; the folder beside it is another user's; or something
        is at `path` already.
      RunError: the disk refuses.
    """
    # Links are resolved once: the lock, the staging folder and the rename are
    # then about the same place, and in one file system.
    self.path = resolve_output(self._out)
    work_folder = work_folder_beside(self.path)
    self.staging = work_folder / "whole"
    with disk_errors(self._out):
      for folder in self.path.parents:
        if not folder.exists():
          self._new_parents.append(folder)
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._lock_handle = lock_folder(work_folder, self._out)
    # A run that was killed after its rename has left a folder to clear, so
    # this is checked with the lock held.
    if os.path.lexists(self.path):
      self.unlock()
      raise InputError(f"{self._out} already exists; choose another place.")
    if not self._resumable:
      shutil.rmtree(self.staging, ignore_errors=True)  # of a killed process

  def publish(self) -> None:
    """Shows what was staged, at once.

    Raises:
      RunError: the disk refuses, or the place was taken meanwhile.
    """
    with disk_errors(self._out):
      sync_tree(self.staging)
      self.staging.rename(self.path)
    # The files are in view already: a power cut could undo the rename, and no
    # more than that.
    with contextlib.suppress(OSError):
      sync(self.path.parent)

  def unlock(self) -> None:
    """Gives the place back, and removes folders that were made for nothing."""
    if self._lock_handle is None:
      return
    super().unlock()
    # Folders that were made for this output go again, the innermost first, if
    # nothing came to lie in them.
    for folder in self._new_parents:
      with contextlib.suppress(OSError):
        folder.rmdir()


def resolve_output(out: Path) -> Path:
  """The absolute path of an output on a disk, links resolved.

  InputError: there can be none.
  """
  path = None
  # A loop of links is an OSError, or a RuntimeError of older Pythons.
  with contextlib.suppress(OSError, RuntimeError):
    path = out.resolve()
  # `BucketOutput` takes URLs. A pathlib.Path of one would be a folder `s3:`.
  if path is None or not path.name or is_url(str(out)):
    raise InputError(f"{out} is not a place on a disk; choose another.")
  return path


def work_folder_beside(path: Path) -> Path:
  """The hidden folder in which a folder is made that is shown at a path."""
  return path.with_name(f".{path.name}.unfinished")


def lock_folder(folder: Path, out: Path) -> int:
  """Makes a folder, sets its mode to 0700, and locks it.

  The lock is held while the handle is open, and no longer than its process
  lives.

  Args:
    folder: the folder, whose parent exists.
    out: the output that is made in it, for messages.

  Returns:
    The handle of the open lock.

  Raises:
    InputError: another process holds it, or it is another user's.
  """
  while True:
    # In a shared folder somebody else may have made it first, and could read
    # what is staged in it.
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
      raise InputError(
        f"{folder} belongs to another user; choose another place."
      )
    # One that was copied, or opened to a group by hand, is closed again before
    # anything is drawn.
    folder.chmod(0o700)
    # The holder before removes the folder as its last act, so what was locked
    # may be a file that is no longer there: then begin again.
    with (
      contextlib.suppress(FileNotFoundError),
      open(folder / "lock", "ab") as file,
    ):
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise InputError(
          f"another run is writing {out}; wait for it, or choose another place."
        ) from None
      if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
        # The lock belongs to the open file, not to the handle that is closed
        # here: the duplicate keeps it.
        return os.dup(file.fileno())
