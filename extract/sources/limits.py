"""How much of a file is ever in memory: one rule for all readers.

What a file unfolds to is bounded before it is unfolded. A file of a few
kilobytes may claim, or really have, gigabytes of zeros, or a single cell that a
thousand rows refer to; memory that runs out ends the whole machine, and not
only one job.
"""

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from oneshot_dp.configs.errors import InputError

_T = TypeVar("_T")

MAX_ROWS = 1 << 23
"""Rows of one file: each takes about 100 bytes while the file is listed."""
MAX_COLUMN_BYTES = 1 << 28
"""Labels, or units, of one file, before they are unfolded to Python's."""
MAX_WORD_BYTES = 1 << 16
"""The name of a class, or of an owner, in a table."""
MAX_IMAGE_BYTES = 1 << 28
"""One image before it is decoded: a file, a member of a tar, a cell."""
MAX_ARRAY_BYTES = 1 << 30
"""Images of one file that are in memory together."""
_MOST_UNFOLDING = 1000
"""How many times its bytes on the disk a part of a file may unfold to."""


def check_rows(path: str, rows: int) -> None:
  """Raises InputError where a file states more rows than a file may have.

  Args:
    path: of the file, for the message.
    rows: how many it states, before any of them is read.
  """
  if not 0 <= rows <= MAX_ROWS:
    raise InputError(
      f"{path!r} states {rows:,} rows, and a file may have {MAX_ROWS:,}: write"
      " it as several files."
    )


def check_bytes(path: str, what: str, size: int, most: int) -> None:
  """Raises InputError where a part of a file unfolds to too many bytes.

  Args:
    path: of the file, for the message.
    what: the part, for the message ("column 'label'").
    size: bytes that it states for the part, before it is unfolded.
    most: how many are allowed.
  """
  if not 0 <= size <= most:
    raise InputError(
      f"{path!r}: {what} unfolds to {size:,} bytes, and may have {most:,}: make"
      " it smaller, or write it as several files."
    )


def check_unfolding(
  path: str, what: str, size: int, stored: int, most: int
) -> None:
  """Raises InputError where few bytes unfold to many: no real data do.

  A column of Parquet may be a few runs of one value, or rows that all refer to
  one cell: its footer does not say what it unfolds to.

  Args:
    path: of the file.
    what: the part of it, for the message.
    size: bytes that it unfolds to.
    stored: bytes that it takes in the file.
    most: bytes that any part may unfold to.
  """
  if size > most and size > _MOST_UNFOLDING * stored:
    raise InputError(
      f"{path!r}: {what} unfolds from {stored:,} bytes to {size:,}, more than"
      f" {_MOST_UNFOLDING:,} times as many: write the file anew without it."
    )


class ByteCache(Generic[_T]):
  """What threads read last, as long as it fits in so many bytes.

  One value is kept in any case, as the threads of a job read side by side.
  """

  def __init__(self, max_bytes: int, size_of: Callable[[_T], int]):
    self._max_bytes = max_bytes
    self._size_of = size_of
    self._lock = threading.Lock()
    self._values: collections.OrderedDict[Hashable, _T] = (
      collections.OrderedDict()
    )
    self._bytes = 0

  def get(self, key: Hashable, read: Callable[[], _T]) -> _T:
    """The value of a key, which one thread reads while the others wait.

    Args:
      key: what is asked for, such as a file and the name of an array in it.
      read: makes the value; not called while the value is kept. An error of it
        is raised here, and nothing is kept.
    """
    # The lock is held while a value is read: threads that want the same one at
    # the same time would else hold it in memory once each.
    with self._lock:
      if key not in self._values:
        value = read()
        self._values[key] = value
        self._bytes += self._size_of(value)
        self._remove_oldest()
      self._values.move_to_end(key)
      return self._values[key]

  def clear(self) -> None:
    """Forgets all values."""
    with self._lock:
      self._values.clear()
      self._bytes = 0

  def _remove_oldest(self) -> None:
    # The newest stays even if it alone is too large: somebody waits for it.
    while self._bytes > self._max_bytes and len(self._values) > 1:
      _, oldest = self._values.popitem(last=False)
      self._bytes -= self._size_of(oldest)
