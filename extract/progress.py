"""How far a long step is: bars on a terminal, in a log a line now and then."""

import contextlib
import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

from oneshot_dp.configs.errors import InputError, RunError

_POLL_SECONDS = 0.3
_POLL_SHARE = 0.05
"""Share of the time, at most: to see what workers elsewhere did takes some."""
_LOG_SECONDS = 30
"""Between two lines of a step where there is no terminal."""
_SIGNAL = signal.SIGUSR2
"""Reaches the main thread whatever it waits for, in the background too."""


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
  return _bar(
    total=total, desc=what, unit=unit, unit_scale=True, leave=False, **more
  )


class _Log(io.TextIOBase):
  """Where a bar that is drawn all the time is a line now and then."""

  def __init__(self):
    self._stream, self._next = sys.stderr, time.monotonic() + _LOG_SECONDS

  def write(self, text: str) -> int:
    if time.monotonic() >= self._next and (line := text.strip()):
      self._next = time.monotonic() + _LOG_SECONDS
      self._stream.write(f"{line}\n")
    return len(text)


def _bar(**more: Any) -> tqdm:
  """A bar; in a log nothing tells the number of rows, which may be private."""
  if sys.stderr.isatty():
    return tqdm(**more)
  line = "{desc}: {percentage:.0f} % in {elapsed}, {remaining} left"
  if more["unit"] == "row":
    line = "{desc}: {elapsed} so far"
  return tqdm(**more, file=_Log(), position=0, bar_format=line)


class _Stop(BaseException):
  """Passes through what would catch and retry an Exception."""


@contextlib.contextmanager
def progress_bar(
  total: int,
  initial: int,
  done: Callable[[], int],
  description: str,
  watch: Callable[[int], None] = lambda count: None,
) -> Iterator[None]:
  """Shows images/s and the time left while the block runs, and stays.

  Another thread polls `done`, which says how many images are finished,
  wherever, and hands that to `watch`. An error that `watch` raises ends the
  block, whatever it waits for; only the main thread can be ended so. What
  `done` cannot say is taken for no progress.
  """
  waiting = threading.current_thread() is threading.main_thread()
  watch = watch if waiting else lambda count: None
  problem: list[Exception] = []
  stop = threading.Event()

  def poll() -> None:
    pause, count = _POLL_SECONDS, initial
    while not stop.wait(pause):
      start = time.monotonic()
      # A store that does not answer now may do so the next time.
      with contextlib.suppress(InputError, RunError, OSError):
        count = done()
      bar.update(max(0, count - bar.n))
      pause = max(_POLL_SECONDS, (time.monotonic() - start) / _POLL_SHARE)
      try:
        watch(count)
      except Exception as error:
        problem.append(error)
        signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
        return

  def end_the_block(*_: object) -> None:
    if waiting:
      raise _Stop

  before = signal.signal(_SIGNAL, end_the_block) if waiting else None
  thread = threading.Thread(target=poll, name="progress", daemon=True)
  with _bar(
    total=total, initial=initial, desc=description, unit="img", smoothing=0.1
  ) as bar:
    thread.start()
    try:
      try:
        yield
      finally:
        waiting = False
      bar.update(max(0, done() - bar.n))
    except BaseException as error:  # (Beam wraps a worker's in its own.)
      if problem:
        raise problem[0] from error
      raise
    finally:
      stop.set()
      thread.join()
      if before is not None:
        signal.signal(_SIGNAL, before)


def counted(number: int, noun: str) -> str:
  """A number of things, for people.

  >>> counted(1, "shard"), counted(2048, "row")
  ('1 shard', '2,048 rows')
  """
  return f"{number:,} {noun}{'s' * (number != 1)}"
