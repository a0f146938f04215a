"""What is more than memory holds, in nameless files, gone with the process."""

import contextlib
import mmap
import pathlib
import tempfile
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64

from oneshot_dp.extract.storage.durable_files import disk_errors
from oneshot_dp.extract.storage.fetch_ahead import Buffer

_SORTED_AT_ONCE = 1 << 23
_WRITTEN_AT_ONCE = 1 << 18
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mapped(parts: Iterable[Buffer]) -> memoryview:
  """The parts after one another, of which one at a time need be in memory.

  They lie in a temporary file until the last view is gone. RunError: the disk
  does not take them.
  """
  place = pathlib.Path(tempfile.gettempdir())
  with disk_errors(place), tempfile.TemporaryFile() as file:
    for part in parts:
      file.write(part)
    file.flush()
    if not file.tell():
      return memoryview(b"")  # Nothing cannot be mapped.
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class Repeated(contextlib.ExitStack):
  """Looks for numbers that come again: in some 0.1 GB, and 8 B each on disk.

  A context. Every number goes to the one of several nameless files that its
  hash chooses, and each of those is sorted in memory.
  """

  def __init__(self, expected: int):
    """Takes about how many numbers will come."""
    super().__init__()
    self._place = pathlib.Path(tempfile.gettempdir())
    with disk_errors(self._place):
      self._files = [
        self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        for _ in range(1 + expected // _SORTED_AT_ONCE)
      ]
    self._waiting: list[Int64[np.ndarray, " _"]] = []
    self._num_waiting = 0

  def add(self, numbers: Int64[np.ndarray, " _"]) -> None:
    """Takes some more numbers."""
    self._waiting.append(numbers)
    self._num_waiting += len(numbers)
    if self._num_waiting >= _WRITTEN_AT_ONCE:
      self._write()

  def found(self) -> Int64[np.ndarray, " repeated"]:
    """Those that came more than once so far, sorted."""
    self._write()
    again = []
    for file in self._files:
      file.seek(0)
      part = np.fromfile(file, np.int64)
      part.sort()
      again.append(np.unique(part[1:][part[1:] == part[:-1]]))
    return np.sort(np.concatenate(again))

  def _write(self) -> None:
    if not self._waiting:
      return
    numbers = np.concatenate(self._waiting).astype(np.int64, copy=False)
    self._waiting, self._num_waiting = [], 0
    # Of the high bits, so that numbers in steps go everywhere alike.
    mixed = (numbers.view(np.uint64) * _GOLDEN) >> np.uint64(32)
    which = (mixed % np.uint64(len(self._files))).astype(np.uint16)
    counts = np.bincount(which, minlength=len(self._files))
    parts = np.split(
      numbers[np.argsort(which, kind="stable")], np.cumsum(counts)[:-1]
    )
    with disk_errors(self._place):
      for file, part in zip(self._files, parts, strict=True):
        file.write(part.data)
