"""How far a job is, and whether it is to stop, for whoever waits and works."""

import sys
import threading
import time
from typing import Any

from tqdm import tqdm

from oneshot_dp.configs.errors import RunError
from oneshot_dp.extract import storage

_LOG_SECONDS = 30
_LOOK_SECONDS = 2.0
_looked: dict[str, tuple[float, bool]] = {}
_lock = threading.Lock()
_done = 0


def progress_bar(what: str, total: int) -> tqdm:
  """Rate and time left of so many images; `update(count)` moves it.

  In a log it is a line now and then.
  """
  bar: Any = {"total": total, "desc": what, "unit": "image", "smoothing": 0.1}
  if not sys.stderr.isatty():
    line = "{desc}: {percentage:.0f} %, {rate_fmt}, {remaining} left\n"
    bar |= {"bar_format": line, "mininterval": _LOG_SECONDS}
  return tqdm(**bar)


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
