"""How far a long step is: the bars of both stages.

A bar shows itself where standard error is a terminal, so in no pipe, and is
gone when its step is done. Of an extraction it counts what is done wherever the
workers run, and stays.
"""

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
  """Rate and time left of a step that may take long; use it in a `with`.

  Args:
    what: is done, to stand before the bar.
    unit: of what is counted by `update`.
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
  """Shows images/s and the time left while the block runs; silent in a pipe.

  Args:
    total: images in the split.
    initial: images that an earlier run had finished.
    done: images finished so far, polled from another thread.
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
