"""What is put on the disk, in which order."""

import os
import pathlib

import pytest


def noted_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
  """From now on: the name of all that is synced, and "replace" for a rename."""
  noted: list[str] = []
  fsync, replace = os.fsync, os.replace

  def note_sync(descriptor: int) -> None:
    place = pathlib.Path(f"/proc/self/fd/{descriptor}").readlink()
    noted.append(place.name)
    fsync(descriptor)

  def note_replace(old: pathlib.Path, new: pathlib.Path) -> None:
    noted.append("replace")
    replace(old, new)

  monkeypatch.setattr(os, "fsync", note_sync)
  monkeypatch.setattr(os, "replace", note_replace)
  return noted
