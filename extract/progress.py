"""How far a long step is: bars on a terminal, none in a pipe."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from tqdm import tqdm

_POLL_SECONDS = 0.3


class RowCounter:
  """Counts examples done by this process; any thread may add."""

  def __init__(self):
    self._lock = threading.Lock()
    self._value = 0

  def add(self, count: int) -> None:
    with self._lock:
      self._value += count

  @property
  def value(self) -> int:
    return self._value


examples_done = RowCounter()
"""Examples that this process's Beam workers have embedded."""


def step_bar(what: str, unit: str, total: int | None = None) -> tqdm:
  """Rate and time left of a step; a context, gone when it ends.

  Args:
    what: the step's name, before the bar.
    unit: the name of what `update` counts.
    total: how many there are.
  """
  return tqdm(
    total=total,
    desc=what,
    unit=unit,
    unit_scale=True,
    disable=None,
    leave=False,
  )


@contextlib.contextmanager
def progress_bar(
  total: int, initial: int, done: Callable[[], int], description: str
) -> Iterator[None]:
  """Shows images/s and the time left while the block runs, and stays.

  Args:
    total: images in the split.
    initial: images that an earlier run had finished.
    done: images finished so far, wherever; polled from another thread.
    description: what stands before the bar.
  """
  with tqdm(
    total=total,
    initial=initial,
    desc=description,
    unit="img",
    disable=None,
    smoothing=0.1,
  ) as bar:
    stop = threading.Event()

    def poll() -> None:
      while not stop.wait(_POLL_SECONDS):
        bar.update(max(0, done() - bar.n))

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
      yield
      bar.update(max(0, done() - bar.n))
    finally:
      stop.set()
      thread.join()
