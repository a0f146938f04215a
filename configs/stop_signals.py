"""Signals that tell a command to stop, and what they do before it has begun."""

import os
import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; what SLURM, Kubernetes and systemd send; a closed terminal."""
STOPPED_STATUS = 130
"""Exit status of a command that was stopped by any of them."""


def exit_on_stop_signals() -> None:
  """Makes a signal to stop end this process in one line, from now on.

  It is for the time in which a command imports what it consists of: there is
  nothing to give back. Signals that are ignored, or that the caller handles,
  stay as they are.
  """
  for number in STOP_SIGNALS:
    if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
      signal.signal(number, exit_before_begin)


def exit_before_begin(number: int, frame: FrameType | None) -> None:
  """The handler that `exit_on_stop_signals` sets."""
  # Not by KeyboardInterrupt: within an import it may come out as another error,
  # or be swallowed. And not by `print`, which a signal may have interrupted.
  del number, frame
  try:
    os.write(2, b"oneshot-dp: error: interrupted before anything was begun\n")
  finally:  # standard error may be closed
    os._exit(STOPPED_STATUS)
