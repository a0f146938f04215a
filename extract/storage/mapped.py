"""Bytes that lie in a file, and are in memory only while they are read."""

import mmap
import pathlib
import tempfile
from collections.abc import Iterable

from oneshot_dp.extract.storage.durable_files import disk_errors
from oneshot_dp.extract.storage.fetch_ahead import Buffer


def mapped(parts: Iterable[Buffer]) -> memoryview:
  """The parts after one another, of which one at a time need be in memory.

  They lie in a nameless temporary file, which is gone with the last view.
  RunError: the disk does not take them.
  """
  place = pathlib.Path(tempfile.gettempdir())
  with disk_errors(place), tempfile.TemporaryFile() as file:
    for part in parts:
      file.write(part)
    file.flush()
    if not file.tell():
      return memoryview(b"")  # Nothing cannot be mapped.
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
