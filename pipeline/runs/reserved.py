"""The place that a run has reserved, and what it keeps there if it fails."""

import contextlib
import dataclasses
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  sync,
  take_room,
)
from oneshot_dp.pipeline.training.record import kept_steps

_ROOMS = ("room for heads", "room for the rest")


@dataclasses.dataclass(eq=False, kw_only=True)
class Reserved:
  """A place for results that nobody else can take.

  Attributes:
    path: where they will be, without links.
    shown: the same as it was asked for.
    work: where they are until then.
    spare: for what is released when `work` cannot be written any more.
  """

  path: Path
  shown: Path
  work: Path
  spare: Path | None = None
  is_delivered: bool = False
  _number: int = 0

  def make_room(self, size: int) -> None:
    """Takes bytes of the disk, for heads and as many for all else."""
    with disk_errors(self.path):
      for name in _ROOMS:
        take_room(self.work / name, size)

  def make_room_for_the_rest(self) -> None:
    """Gives back what `make_room` took beside that for heads."""
    (self.work / _ROOMS[1]).unlink(missing_ok=True)

  def keep(self, write: Callable[[Path], object]) -> None:
    """Puts what was paid for on the disk, in a folder that outlives the run."""
    reason: object = ""
    with contextlib.suppress(OSError):
      (self.work / _ROOMS[0]).unlink(missing_ok=True)
    folders = [f for f in (self.released, self.spare) if f]
    # No two have one name, so that `recover` can put them side by side. One
    # that is there is of the run that this one goes on with.
    name = f"{self._number:06}"
    self._number += 1
    if any((folder / name).exists() for folder in folders):
      return
    for folder in folders:
      try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = folder / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        sync_all(part)
        part.rename(folder / name)
      except OSError as error:
        reason = error.strerror or error
        continue
      with contextlib.suppress(OSError):  # it is there, if not for a power cut
        for each in (folder, folder.parent, folder.parent.parent):
          sync(each)
      return
    raise RunError(
      f"what was released can be written nowhere ({reason}), and its charge"
      " stays; mend the disk."
    )

  @property
  def steps(self) -> Path:
    """Where a training of many steps keeps these."""
    return self.work / "steps"

  @property
  def left(self) -> str:
    """What was paid for and is here, and how to have it; "" if nothing is."""
    if steps := kept_steps(self.steps):
      return (
        f"{steps} are kept, and the same command goes on with them without a"
        " new charge"
      )
    if not self.kept:
      return ""
    return (
      f"what was released is kept, and `oneshot-dp recover {self.shown}`"
      " delivers it without a new charge"
    )

  @property
  def released(self) -> Path:
    """Where `keep` puts it first."""
    return self.work / "released"

  @property
  def kept(self) -> list[Path]:
    """All folders that `keep` wrote, whole."""
    return [
      path
      for folder in filter(None, (self.released, self.spare))
      if folder.is_dir()
      for path in sorted(folder.iterdir())
      if path.suffix != ".part"
    ]

  def remove(self) -> None:
    """All that is not delivered; says so where something stays."""
    for folder in filter(None, (self.spare, self.released, self.work)):
      doomed = folder
      if folder != self.work:
        with contextlib.suppress(OSError):
          # At once: what is half removed is not for `kept` to find.
          doomed = folder.rename(folder.with_suffix(".part"))
      shutil.rmtree(doomed, ignore_errors=True)
      if folder != self.released and doomed.exists():
        print(
          f"warning: {doomed} could not be removed; it may hold heads, and is"
          " needed no more.",
          file=sys.stderr,
        )
    if self.spare:
      with contextlib.suppress(OSError):
        self.spare.parent.rmdir()  # if it is empty

  def is_all_delivered(self) -> bool:
    """Whether each file that is kept is among those at `path`."""
    kept = set[bytes]().union(*map(_contents, self.kept))
    return not kept or kept <= _contents(self.path)


def sync_all(directory: Path) -> None:
  """Puts a directory and all that is in it on the disk."""
  for folder, _, names in os.walk(directory, topdown=False):
    for name in names:
      sync(Path(folder, name))
    sync(Path(folder))


def _contents(directory: Path) -> set[bytes]:
  return {p.read_bytes() for p in directory.rglob("*") if p.is_file()}
