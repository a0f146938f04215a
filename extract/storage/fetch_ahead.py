"""Files from afar, fetched ahead in ranges through a bounded buffer."""

import collections
import concurrent.futures
import os
import pathlib
import tempfile
from collections.abc import Callable, Generator, Sequence
from typing import IO, Any, NamedTuple

from oneshot_dp.extract.storage.durable_files import disk_errors

_RANGE_BYTES = 8 << 20
_CONNECTIONS = 8
# Beside the file in use. Of a larger file all is fetched, before it is read.
_AHEAD_BYTES = 96 << 20

Buffer = Any
"""Bytes, by Python's buffer protocol (which has a name since 3.12)."""


class _Fetched(NamedTuple):
  """A file on its way: nameless, and whole once its parts are done."""

  file: IO[bytes]
  size: int
  parts: list[concurrent.futures.Future[None]]


def fetched_ahead(
  get_range: Callable[[str, int, int], Buffer],
  files: Sequence[tuple[str, int]],
) -> Generator[pathlib.Path, None, None]:
  """Yields a local path of each file in turn, good until the next.

  ArrayRecord reads nothing but local files. These have no name, so that none
  is left behind, however the process ends.

  Args:
    get_range: from a name, a start and an end, the bytes between them.
    files: names and sizes.
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
