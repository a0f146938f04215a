"""How far a job is, and whether it is to stop, for whoever waits and works."""

import io
import sys
import threading
import time

from tqdm import tqdm

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import storage

_LOG_SECONDS = 30
_LOOK_SECONDS = 2.0
_looked: dict[str, tuple[float, bool]] = {}
_lock = threading.Lock()
_done = 0


class _Log(io.TextIOBase):
  """Where a bar that is drawn all the time is a line now and then."""

  def __init__(self):
    self._stream, self._next = sys.stderr, time.monotonic() + _LOG_SECONDS

  def write(self, text: str) -> int:
    if time.monotonic() >= self._next and (line := text.strip()):
      self._next = time.monotonic() + _LOG_SECONDS
      self._stream.write(f"{line}\n")
    return len(text)


def progress_bar(what: str, total: int, unit: str = "image") -> tqdm:
  """Rate and time left of a step of so many units; `update(count)` moves it."""
  bar = {"total": total, "desc": what, "unit": unit, "smoothing": 0.1}
  if sys.stderr.isatty():
    return tqdm(**bar)
  line = "{desc}: {percentage:.0f} % in {elapsed}, {rate_fmt}, {remaining} left"
  return tqdm(**bar, file=_Log(), position=0, bar_format=line)


def images_done(more: int = 0) -> int:
  """Adds to the images that this process has embedded, in any thread."""
  global _done
  with _lock:
    _done += more
    return _done


class Stopped(RunError):
  """The launcher of the job has told its workers to stop."""


def stop_file(run: str) -> str:
  """Where a launch says that its workers are to stop."""
  return f"stop.{run}"


def check_stopped(out: str, run: str) -> None:
  """Raises Stopped where a launch says so; looks now and then."""
  at, told = _looked.get(run, (0.0, False))
  if run and not told and time.monotonic() - at > _LOOK_SECONDS:
    told = storage.read(storage.store_at(out), stop_file(run)) is not None
    _looked[run] = time.monotonic(), told
  if told:
    raise Stopped("the job was told to stop")
