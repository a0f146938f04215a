"""`map` on threads, in order, so far ahead of who consumes it."""

import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_S = TypeVar("_S")
_T = TypeVar("_T")


def ahead(
  make: Callable[[_S], _T],
  items: Sequence[_S],
  most: int,
  threads: int,
  at_once: int = 1,
) -> Iterator[_T]:
  """What is made of each item, about `most` items before the consumer.

  A task of a thread has `at_once` items: a task costs what a tiny image does.
  """
  waiting = collections.deque()
  with ThreadPoolExecutor(threads, "ahead") as pool:
    try:
      for start in range(0, len(items), at_once):
        some = items[start : start + at_once]
        waiting.append(pool.submit(lambda some: [*map(make, some)], some))
        if len(waiting) * at_once >= most:
          yield from waiting.popleft().result()
      while waiting:
        yield from waiting.popleft().result()
    finally:
      pool.shutdown(wait=False, cancel_futures=True)
