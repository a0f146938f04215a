"""Files that are compared with their SHA-256 while they are read."""

import collections
import concurrent.futures
import contextlib
import hashlib
import io
import os
import pathlib
from collections.abc import Generator, Sequence
from typing import NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.store import Store

# SHA-256 takes longer than reading, and lets go of Python's lock.
_THREADS = 4


class Listed(NamedTuple):
  """A file's name, and what must be in it."""

  name: str
  size: int
  sha256: str


def checked_files(
  store: Store, files: Sequence[Listed], seen: set[tuple]
) -> Generator[pathlib.Path, None, None]:
  """Yields a local path of each file in turn, good until the next.

  Formal guarantee: who comes to the iterator's end without an error was given
  files of these SHA-256, and no others.

  `seen` remembers what was hashed: it need not be again until it is touched.
  InputError: a file is missing or another one; at the end at the latest.
  """
  waiting: collections.deque[tuple[str, concurrent.futures.Future[bool]]]
  waiting = collections.deque()

  def compare(all_but: int) -> None:
    while len(waiting) > all_but:
      name, is_same = waiting.popleft()
      if not is_same.result():
        raise InputError(f"{store.path / name}: its SHA-256 is another{_FIX}")

  paths = store.local_files([(file.name, file.size) for file in files])
  with (
    contextlib.closing(paths),
    concurrent.futures.ThreadPoolExecutor(_THREADS, "sha256") as pool,
  ):
    for file in files:
      try:
        path = next(paths)
        content = path.open("rb")  # The path may be gone when its turn comes.
      except FileNotFoundError as e:
        raise InputError(f"{store.path / file.name}: missing{_FIX}") from e
      waiting.append((file.name, pool.submit(_is_same, content, file, seen)))
      yield path
      compare(all_but=_THREADS)
    compare(all_but=0)


_FIX = "; restore it or extract the cache again."


def _is_same(
  content: io.BufferedReader, file: Listed, seen: set[tuple]
) -> bool:
  with content:
    stat = os.fstat(content.fileno())
    version = (file, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
    if version not in seen:
      if hashlib.file_digest(content, "sha256").hexdigest() != file.sha256:
        return False
      seen.add(version)
  return True
