"""Ends a command that is told to stop: by Ctrl-C, SIGTERM or SIGHUP.

People press Ctrl-C; SLURM, Kubernetes and systemd send SIGTERM; a terminal that
is closed sends SIGHUP. All three mean the same: KeyboardInterrupt is raised in
the main thread, so that locks, jobs on engines and unfinished files are given
back, and the command ends with one line and status 130.
"""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any, Self

from oneshot_dp.configs.stop_signals import (
  STOP_SIGNALS,
  STOPPED_STATUS,
  exit_before_begin,
)

MESSAGE = (
  "interrupted; what was charged stays charged, and extract, train and sweep"
  " resume without a new charge when the same command is run again"
)
_REPLACED = (signal.SIG_DFL, signal.default_int_handler, exit_before_begin)
"""Handlers of Python's own, and of this command before it began."""


_LOOK_SECONDS = 0.05


class Interrupts:
  """Turns signals into KeyboardInterrupt within a `with` block.

  A library may swallow the exception, or not return to Python for long. So a
  thread watches as well: it raises the exception again where Python itself
  dropped it, and what still runs `stop_seconds` after the signal is ended by
  force.

  Attributes:
    received: whether a signal arrived.
    stop_seconds: how long an orderly end may take.
  """

  def __init__(self) -> None:
    self.received = False
    self.stop_seconds = 2.0
    self._block_ended = threading.Event()
    self._previous_handlers: dict[int, object] = {}
    self._previous_wakeup = -1
    self._previous_hook = sys.unraisablehook
    self._was_dropped = threading.Event()
    # Python writes a byte into it at once when a signal arrives, even while
    # the main thread is busy in C and cannot run a handler.
    self._wakeup_writer = -1

  def __enter__(self) -> Self:
    if threading.current_thread() is not threading.main_thread():
      return self  # only the main thread may set handlers
    for number in STOP_SIGNALS:
      handler = signal.getsignal(number)
      # A handler of the caller's own stays, and so does a signal that is
      # ignored: that is what `nohup` and a shell's background do.
      if handler in _REPLACED:
        self._previous_handlers[number] = handler
    if not self._previous_handlers:
      return self
    # The thread waits for a byte in this pipe. It is a daemon: a command that
    # ends by itself does not wait for it.
    reader, self._wakeup_writer = os.pipe()
    os.set_blocking(self._wakeup_writer, False)
    threading.Thread(target=self._watch, args=(reader,), daemon=True).start()
    self._previous_wakeup = signal.set_wakeup_fd(
      self._wakeup_writer, warn_on_full_buffer=False
    )
    self._previous_hook = sys.unraisablehook
    sys.unraisablehook = self._note_dropped
    for number in self._previous_handlers:
      signal.signal(number, self._raise_interrupt)
    return self

  def __exit__(self, *exception: object) -> None:
    self._block_ended.set()
    if self._wakeup_writer < 0:
      return
    signal.set_wakeup_fd(self._previous_wakeup)
    for number, handler in self._previous_handlers.items():
      signal.signal(number, handler)  # pyrefly: ignore[bad-argument-type]
    sys.unraisablehook = self._previous_hook
    os.close(self._wakeup_writer)

  def _raise_interrupt(self, number: int, frame: FrameType | None) -> None:
    self.received = True
    raise KeyboardInterrupt

  def _note_dropped(self, details: Any) -> None:
    """Notes that Python drops an interrupt, and does not print it.

    It does so within destructors, and within callbacks of its garbage
    collector, of which JAX has one: the command would go on.
    """
    if details.exc_type is KeyboardInterrupt:
      self._was_dropped.set()
    else:
      self._previous_hook(details)

  def _watch(self, reader: int) -> None:
    """Waits for a signal; after it, for the end of the block, but not long."""
    while True:
      numbers = os.read(reader, 1)
      if not numbers:  # the block has ended without a signal
        os.close(reader)
        return
      if numbers[0] in self._previous_handlers:
        break
    end = time.monotonic() + self.stop_seconds
    while time.monotonic() < end:
      if self._block_ended.wait(_LOOK_SECONDS):
        return
      if self._was_dropped.is_set():
        self._was_dropped.clear()
        _thread.interrupt_main(signal.Signals(numbers[0]))
    if not self._block_ended.is_set():
      # (Not descriptor 2: among hosts only sys.stderr is heard.)
      with contextlib.suppress(OSError, ValueError):
        print(f"oneshot-dp: error: {MESSAGE}", file=sys.stderr, flush=True)
      os._exit(STOPPED_STATUS)
