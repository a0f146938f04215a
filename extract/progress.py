"""How far a long step is: bars on a terminal, none in a pipe."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

_POLL_SECONDS = 0.3


class RowCounter:
  """Counts examples done by this process; any thread may add."""

  def __init__(self):
    self._lock = threading.Lock()
    self.value = 0

  def add(self, count: int) -> None:
    with self._lock:
      self.value += count


examples_done = RowCounter()
"""Examples that this process's Beam workers have embedded."""


def step_bar(
  what: str, unit: str, total: int | None = None, **more: Any
) -> tqdm:
  """Rate and time left of a step in `unit`s; a context, gone when it ends."""
  return tqdm(
    total=total,
    desc=what,
    unit=unit,
    unit_scale=True,
    disable=None,
    leave=False,
    **more,
  )


@contextlib.contextmanager
def progress_bar(
  total: int, initial: int, done: Callable[[], int], description: str
) -> Iterator[None]:
  """Shows images/s and the time left while the block runs, and stays.

  `done` says how many images are finished, wherever; another thread polls it.
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
