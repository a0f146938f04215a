"""Work on threads: `map` in order, and memory that all of them share."""

import collections
import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

_S = TypeVar("_S")
_T = TypeVar("_T")


def prefetch_map(
  function: Callable[[_S], _T],
  items: Sequence[_S],
  max_ahead: int,
  threads: int,
  items_per_task: int = 1,
) -> Iterator[_T]:
  """Maps a function over items on threads, before the results are asked for.

  Args:
    function: called once for each item, on any of the threads.
    items: its arguments.
    max_ahead: about how many items may be under way or wait to be consumed;
      it bounds the memory that results take.
    threads: how many threads call the function.
    items_per_task: consecutive items that one task of a thread maps. To hand a
      task to a thread costs about as much as to decode a tiny image.

  Yields:
    The results, in the order of the items.
  """

  def map_chunk(chunk: Sequence[_S]) -> list[_T]:
    return [function(item) for item in chunk]

  pending: collections.deque[Future[list[_T]]] = collections.deque()
  with ThreadPoolExecutor(threads, "prefetch") as pool:
    try:
      # A task is handed out whenever one is consumed, so at most `max_ahead`
      # items are under way: decoded images are far larger than their files.
      for start in range(0, len(items), items_per_task):
        chunk = items[start : start + items_per_task]
        pending.append(pool.submit(map_chunk, chunk))
        if len(pending) * items_per_task >= max_ahead:
          yield from pending.popleft().result()
      while pending:
        yield from pending.popleft().result()
    finally:
      # A consumer that stops, or a call that failed, ends what has not begun.
      pool.shutdown(wait=False, cancel_futures=True)


class MemoryBudget:
  """A bound on the memory of all threads, which take bytes before use."""

  def __init__(self, total: int):
    self._total = total
    self._free = total
    self._changed = threading.Condition()

  @contextlib.contextmanager
  def take(self, size: int) -> Iterator[None]:
    """Waits until so many bytes are free; they are taken while the body runs.

    A request for more than the total waits until it is alone.
    """
    size = min(size, self._total)
    with self._changed:
      self._changed.wait_for(lambda: self._free >= size)
      self._free -= size
    try:
      yield
    finally:
      with self._changed:
        self._free += size
        self._changed.notify_all()


class ByteCache(Generic[_T]):
  """A cache of the values that were read last, bounded by their bytes.

  The newest value is kept whatever its size: threads read near one another.
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
