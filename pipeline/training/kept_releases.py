"""The releases that a run has made, in files that no other process may change.

Each is whole and on the disk before anything is made of it, and no file is ever
written over.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy
from jaxtyping import Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.durable_files import (
  TEMPORARY_SUFFIX,
  disk_errors,
  take_room,
)
from oneshot_dp.extract.storage.local import LocalStore
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import disk_of

_ROOM = "room"
_DIGEST = 32


class KeptReleases:
  """All that a run let out, in order: made once, and given again.

  Args:
    folder: of the files: each a SHA-256 of it and all before, and its values.
    name: of the run, which their digests begin with.

  Attributes:
    why_no_more: once it is set, only what is kept is given.
  """

  def __init__(self, folder: Path, name: str):
    self._folder = folder
    self._kept = releases_in(folder)
    self._next = 0
    self._digest = _chained(b"", name.encode())
    self.why_no_more = ""

  def make_room(self, size: int) -> None:
    """Takes so many bytes of the disk."""
    with disk_errors(self._folder, OverflowError):  # absurdly many steps
      take_room(self._folder / _ROOM, size)

  def check_all_given(self, ledger: Path) -> None:
    """Refuses to charge a ledger while what came after it is kept."""
    if self._next < len(self._kept):
      raise InputError(
        f"{ledger} was not charged for all that is in {self._folder}; say where"
        " the ledger is with --ledger-dir, or remove the folder and pay anew."
      )

  def once(
    self,
    name: str,
    source: NoiseSource,
    make: Callable[[], Shaped[np.ndarray, "..."]],
  ) -> Shaped[np.ndarray, "..."]:
    """The next release: what is kept of it, or made now and then kept.

    Raises:
      InputError: what is kept was changed, or no more may be made.
      RunError: it cannot be written, and nothing was made of it.
    """
    file = f"{self._next:09}-{name.replace(' ', '-')}"
    self._next += 1
    if self._next <= len(self._kept):
      return self._read(file, source)
    if self.why_no_more:
      raise InputError(self.why_no_more)
    value = make()
    # How much was drawn may tell how many units there are.
    drawn = 0 if source.is_private else source.drawn
    body = safetensors.numpy.save(
      {"value": np.ascontiguousarray(value)}, {"drawn": str(drawn)}
    )
    self._digest = _chained(self._digest, body)
    room = self._folder / _ROOM
    with disk_errors(room):
      left = room.stat().st_size - disk_of(1, value.size)
      os.truncate(room, max(0, left))
    if not LocalStore(self._folder).put(file, self._digest + body, create=True):
      raise changed(self._folder / file)
    return value

  def _read(self, file: str, source: NoiseSource) -> Shaped[np.ndarray, "..."]:
    path = self._folder / file
    if path != self._kept[self._next - 1]:
      raise changed(self._kept[self._next - 1])
    content = path.read_bytes()
    digest, body = content[:_DIGEST], content[_DIGEST:]
    self._digest = _chained(self._digest, body)
    if digest != self._digest:
      raise changed(path)
    size = int.from_bytes(body[:8], "little")
    drawn = json.loads(body[8 : 8 + size])["__metadata__"]["drawn"]
    source.skip_to(int(drawn))
    return safetensors.numpy.load(body)["value"]


class KeptNoise(NoiseSource):
  """Noise of which every release is kept."""

  def __init__(self, seed: int | None, kept: KeptReleases):
    super().__init__(seed)
    self._kept = kept

  def once(
    self, name: str, make: Callable[[], Shaped[np.ndarray, "..."]]
  ) -> Shaped[np.ndarray, "..."]:
    """See `NoiseSource`."""
    return self._kept.once(name, self, make)


def changed(path: Path) -> InputError:
  """The complaint of a file that is not what it was."""
  return InputError(
    f"{path} is not what was released there: it, or one before it, was changed"
    " or is missing. Restore the folder, or remove it and pay anew."
  )


def releases_in(folder: Path) -> list[Path]:
  """The files of all, in order."""
  return sorted(
    path
    for path in folder.glob("[0-9]" * 9 + "-*")
    if path.suffix != TEMPORARY_SUFFIX
  )


def _chained(before: bytes, body: bytes) -> bytes:
  return hashlib.sha256(before + body).digest()
