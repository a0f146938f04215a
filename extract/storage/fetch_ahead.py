"""What is read ahead of its use: files from afar, in ranges, and blocks."""

import collections
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, Any, NamedTuple, TypeVar

from oneshot_dp.extract.storage.durable_files import disk_errors

_RANGE_BYTES = 8 << 20
_CONNECTIONS = 8
# Beside the file in use. Of a larger file all is fetched, before it is read.
_AHEAD_BYTES = 96 << 20

_T = TypeVar("_T")
Buffer = Any
"""Bytes, by Python's buffer protocol (which has a name since 3.12)."""


class _Fetched(NamedTuple):
  """A file on its way: nameless, and whole once its parts are done."""

  file: IO[bytes]
  size: int
  parts: list[concurrent.futures.Future[None]]


def fetched_ahead(
  get_range: Callable[[str, int, int], Buffer], files: Sequence[tuple[str, int]]
) -> Generator[pathlib.Path, None, None]:
  """Yields a local path of each file in turn, good until the next.

  ArrayRecord reads nothing but local files. These have no name, so that none
  is left behind, however the process ends.

  `get_range` takes a name, a start and an end; `files` are names and sizes.
  """
  waiting = iter(files)
  ready: collections.deque[_Fetched] = collections.deque()
  ahead = 0
  pool = concurrent.futures.ThreadPoolExecutor(_CONNECTIONS, "fetch")

  def start(name: str, size: int) -> _Fetched:
    file = tempfile.TemporaryFile()  # noqa: SIM115  (closed below)

    def fetch(at: int) -> None:
      part = get_range(name, at, min(at + _RANGE_BYTES, size))
      with disk_errors(pathlib.Path(tempfile.gettempdir())):
        os.pwrite(file.fileno(), part, at)

    starts = range(0, size, _RANGE_BYTES)
    return _Fetched(file, size, [pool.submit(fetch, at) for at in starts])

  try:
    while True:
      while ahead < _AHEAD_BYTES and (file := next(waiting, None)):
        ready.append(start(*file))
        ahead += ready[-1].size
      if not ready:
        return
      for part in ready[0].parts:
        part.result()
      yield pathlib.Path(f"/dev/fd/{ready[0].file.fileno()}")
      ahead -= ready[0].size
      ready.popleft().file.close()
  finally:
    # Before any file is closed that a thread might still write to.
    pool.shutdown(cancel_futures=True)
    for fetched in ready:
      fetched.file.close()


def read_ahead(items: Generator[_T, None, None], most: int) -> Iterator[_T]:
  """Yields items that a thread makes ahead, so many at most.

  Two C queues, one of items and one of tickets to make one, cost less per
  item than a bounded `queue.Queue`, whose locks are taken in Python.
  """
  ready: queue.SimpleQueue[_T | BaseException | None] = queue.SimpleQueue()
  tickets: queue.SimpleQueue[bool] = queue.SimpleQueue()
  for _ in range(most - 1):  # and the thread has one in its hands
    tickets.put(True)

  def make() -> None:
    try:
      with contextlib.closing(items):
        for item in items:
          if not tickets.get():
            return
          ready.put(item)
          del item
      ready.put(None)
    except BaseException as e:
      ready.put(e)

  thread = threading.Thread(
    target=make, name="feature-cache-reader", daemon=True
  )
  thread.start()
  try:
    while True:
      tickets.put(True)
      item = ready.get()
      if item is None:
        return
      if isinstance(item, BaseException):
        raise item
      yield item
  finally:
    tickets.put(False)
    thread.join()
