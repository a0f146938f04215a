"""Processes that run `oneshot-dp` with a fault in it, and outlive what it does.

JAX's threads outlive no fork, so whoever forks here has imported everything and
computed nothing. A worker is warm after its first command, and runs many; one
that is to be killed is a process of its own.
"""

import contextlib
import ctypes
import dataclasses
import gc
import io
import multiprocessing
import os
import pathlib
import traceback
from typing import Any

import pytest

TIMEOUT = 60.0
"""Seconds, after which a command counts as hung."""
KILL_BEFORE, KILL_HALFWAY, STOP_BEFORE, STOP_HALFWAY = -1, -2, -3, -4
"""Faults beside errnos; see failing_calls.c."""
_FORK = multiprocessing.get_context("fork")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
  """An errno, or a kill, at the Nth counted call (from 1; 0 is never).

  `lasts`: at all calls after it, too, that make a file grow.
  """

  at: int = 0
  number: int = 0
  lasts: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
  """What a command did: status is negative by a signal, None of a hang.

  `calls` were counted, by name and path; `left_open` are files below the folder
  that it forgot to close.
  """

  status: int | None
  said: str
  calls: list[str]
  left_open: list[str]


def run(folder: pathlib.Path, line: str, fault: Fault) -> Outcome:
  """Runs a command in this process, where counted calls are below `folder`."""
  from oneshot_dp.pipeline.cli import main

  library = ctypes.CDLL(None)
  os.chdir(folder)
  said, status = io.StringIO(), 70
  before = _open_below(folder)
  log = os.memfd_create("calls")
  try:
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
      place = os.fsencode(folder)
      library.faults_arm(
        place, ctypes.c_long(fault.at), fault.number, fault.lasts, log
      )
      try:
        status = main(line.split())
      except BaseException:
        traceback.print_exc()
      finally:
        if fault.number <= STOP_BEFORE:
          gc.collect()  # what a file still buffers would be written later
        library.faults_disarm()
    os.lseek(log, 0, os.SEEK_SET)
    with os.fdopen(os.dup(log), "r", errors="replace") as file:
      calls = file.read().splitlines()
  finally:
    os.close(log)
  return Outcome(
    status=status,
    said=said.getvalue(),
    calls=calls,
    left_open=_open_below(folder)[len(before) :],
  )


def _open_below(folder: pathlib.Path) -> list[str]:
  found = []
  for descriptor in os.listdir("/proc/self/fd"):
    with contextlib.suppress(OSError):
      found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
  return [path for path in found if path.startswith(f"{folder}/")]


class Worker:
  """A process that runs commands one after another, and is replaced if lost."""

  def __init__(self):
    self._process = None

  def run(
    self, folder: pathlib.Path, line: str, fault: Fault | None = None
  ) -> Outcome:
    """Runs a command there, within `TIMEOUT`."""
    if self._process is None:
      self._ours, theirs = _FORK.Pipe()
      self._process = _FORK.Process(target=_serve, args=(theirs,), daemon=True)
      self._process.start()
      theirs.close()
    self._ours.send((folder, line, fault or Fault()))
    try:
      if self._ours.poll(TIMEOUT):
        return self._ours.recv()
      status = None
    except (EOFError, ConnectionError):
      self._process.join()
      status = self._process.exitcode
    self.close()
    return Outcome(status=status, said="", calls=[], left_open=[])

  def close(self) -> None:
    """Ends the process."""
    if self._process:
      self._process.kill()
      self._process.join()
      self._process.close()
      self._ours.close()
      self._process = None


def _serve(pipe) -> None:
  with contextlib.suppress(EOFError):
    while True:
      pipe.send(run(*pipe.recv()))


def import_all() -> None:
  """Imports what commands import, and computes nothing."""
  import importlib
  import pkgutil

  import oneshot_dp

  for module in pkgutil.walk_packages(oneshot_dp.__path__, "oneshot_dp."):
    if not module.name.endswith("__main__"):
      with contextlib.suppress(ImportError):
        importlib.import_module(module.name)
  draw_once(pytest.MonkeyPatch())
  gc.freeze()


def draw_once(patch: pytest.MonkeyPatch) -> None:
  """Draws one picture of a format, into memory, and repeats its bytes.

  To draw is half of a run, and calls nothing that could fail.
  """
  from matplotlib.figure import Figure

  draw, drawn = Figure.savefig, {}

  def repeat(figure: Figure, file: Any, *, format: str, **options):
    if format not in drawn:
      draw(figure, file, format=format, **options)
      drawn[format] = file.getvalue()
    file.seek(0)
    file.write(drawn[format])

  patch.setattr(Figure, "savefig", repeat)
