"""The place that a run has reserved, and what it keeps there if it fails."""

import contextlib
import dataclasses
import os
import shutil
import sys
from pathlib import Path

from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  sync,
  take_room,
)
from oneshot_dp.pipeline.training.record import kept


@dataclasses.dataclass(eq=False, kw_only=True)
class Reserved:
  """A place for results that nobody else can take.

  Attributes:
    path: where they will be, without links.
    work: where they are until then.
  """

  path: Path
  work: Path
  is_delivered: bool = False

  def make_room(self, size: int) -> None:
    """Takes bytes of the disk, for heads and as many for all else."""
    with disk_errors(self.path):
      take_room(self._room, 2 * size)

  def give_room(self) -> None:
    """Gives it back, to be written to."""
    self._room.unlink(missing_ok=True)

  @property
  def record(self) -> Path:
    """Where a run keeps its record."""
    return self.work / "steps"

  @property
  def left(self) -> str:
    """What was paid for and is here, and how to have it; "" if nothing is."""
    if not (found := kept(self.record)):
      return ""
    return f"{found}, and the same command goes on without a new charge"

  def note_delivery(self, directory: Path) -> None:
    """Notes which directory it is that is renamed to `path` next."""
    self._delivery.write_text(_identity(directory))

  def has_delivered(self) -> bool:
    """Whether what is at `path` was put there from here."""
    delivery = self._delivery
    return delivery.exists() and delivery.read_text() == _identity(self.path)

  def remove(self) -> None:
    """All that is not delivered; says so where something stays."""
    with contextlib.suppress(OSError):
      # At once: what is half removed is not gone on with.
      self.record.rename(self.record.with_suffix(".part"))
    shutil.rmtree(self.work, ignore_errors=True)
    if self.work.exists():
      print(
        f"warning: {self.work} could not be removed; it may hold heads, and is"
        " needed no more.",
        file=sys.stderr,
      )

  @property
  def _room(self) -> Path:
    return self.work / "room"

  @property
  def _delivery(self) -> Path:
    return self.work / "delivery"


def sync_all(directory: Path) -> None:
  """Puts a directory and all that is in it on the disk."""
  for folder, _, names in os.walk(directory, topdown=False):
    for name in names:
      sync(Path(folder, name))
    sync(Path(folder))


def _identity(directory: Path) -> str:
  """What a directory keeps when it is renamed."""
  status = directory.stat()
  return f"{status.st_dev}:{status.st_ino}"
