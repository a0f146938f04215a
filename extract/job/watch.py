"""Notices what a runner does not: a worker that died, a job that hangs."""

import re
import threading
import time
from collections.abc import Callable
from typing import Self

from oneshot_dp.configs.errors import RunError

_AGAIN = "run the same command again (finished shards are kept)"
_EXIT = re.compile(r"Worker subprocess exited with return code (-?\d+)")
_BY_CTRL_C = (-2, 130)


class Watch:
  """Looks after a job while it runs: `watch(count)` raises what is wrong.

  Beam's own worker processes are started by a thread each, which ends with an
  error when the process does, and Beam goes on waiting for it for ever. Of
  other workers it can be seen only that nothing more gets finished.
  """

  def __init__(self, stall_seconds: int, missing: Callable[[], str]):
    """Takes the longest time without progress, and what is still missing."""
    self._stall_seconds = stall_seconds
    self._missing = missing
    self._count = -1
    self._since = time.monotonic()
    self._lost: list[str] = []

  def __enter__(self) -> Self:
    self._hook = threading.excepthook
    threading.excepthook = self._thread_ended
    return self

  def __exit__(self, *_: object) -> None:
    threading.excepthook = self._hook

  def _thread_ended(self, ended: threading.ExceptHookArgs) -> None:
    exit_ = _EXIT.search(str(ended.exc_value))
    if not exit_:
      self._hook(ended)
    elif int(exit_[1]) not in _BY_CTRL_C:
      self._lost.append(exit_[1])

  def __call__(self, count: int) -> None:
    """Takes the number of examples that are finished by now.

    Raises:
      RunError: a worker process is gone, or the number has long not changed.
    """
    now = time.monotonic()
    if count != self._count:
      self._count, self._since = count, now
    if self._lost:
      raise RunError(
        f"a worker process ended with status {self._lost[0]} (killed, or out of"
        f" memory?); missing are {self._missing()}: {_AGAIN}."
      )
    if now - self._since > self._stall_seconds:
      raise RunError(
        f"the runner has finished nothing for {self._stall_seconds} s;"
        f" missing are {self._missing()}: see its logs, then {_AGAIN}, with a"
        " larger --stall-seconds if it was only slow."
      )
