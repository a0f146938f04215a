"""What threads made last, kept while there is room for it."""

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_V = TypeVar("_V")
_GROUP_BYTES = 1 << 30


class Recent(Generic[_V]):
  """Values by key, each made by one thread; the oldest go, but for two.

  An engine may work on several shards in one process, each at another place: as
  much as they use at once should fit.
  """

  def __init__(
    self, limit: int, size: Callable[[_V], int] = lambda _: 1
  ) -> None:
    """Keeps values whose sizes together are at most `limit`."""
    self._limit, self._size = limit, size
    self._lock = threading.Lock()
    self._values: dict[Hashable, _V] = {}

  def get(self, key: Hashable, make: Callable[[], _V]) -> _V:
    """Returns the value of a key, which is made if it is not there."""
    with self._lock:
      if key not in self._values:
        self._values[key] = make()
        while (
          len(self._values) > 2
          and sum(map(self._size, self._values.values())) > self._limit
        ):
          del self._values[next(iter(self._values))]
      return self._values[key]


def row_groups() -> Recent[Any]:
  """For row groups of any number of Parquet files, which share the room."""
  return Recent(_GROUP_BYTES, lambda group: group.nbytes)
