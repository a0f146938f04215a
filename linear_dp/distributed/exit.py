"""How the process of one host ends when it loses the others.

JAX notices a lost host in a thread of its C++ runtime, which writes pages of
log and calls `abort()`. A person should read one line instead, and see exit
status 1. So the process of a host does two things before it joins the others:

1. Python's stdout and stderr move to file descriptors of their own, and the
   original descriptors, which the C++ runtime writes to, lead nowhere.
2. `abort()` prints the current `message` and exits.

The message is set again at each stage of a run, because what a lost host means
(the hosts never met, they met but cannot reach each other, a host died in the
middle) depends on the stage.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
from typing import NoReturn, TextIO

from oneshot_dp.configs.errors import RunError


class LostHostExit:
  """Ends the process with one line when another host is lost.

  Attributes:
    message: the line that is printed if another host is lost from now on.
  """

  def __init__(self):
    self.message = "another host of this run was lost."
    # The first thread that ends the process keeps this lock for ever, so that
    # no other thread prints a second line. It may come back: an error that is
    # raised together within another is met with twice.
    self._ending = threading.RLock()
    # ctypes does not keep the callback alive for C: this reference does.
    self._abort_handler: object = None

  def install(self) -> None:
    """Silences all but Python's own output; `abort()` prints one line."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    sys.stdout = _moved_stream(sys.stdout, devnull)
    sys.stderr = _moved_stream(sys.stderr, devnull)
    stderr_descriptor = sys.stderr.fileno()

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def print_message_and_exit(_: int) -> None:
      self._ending.acquire()
      line = f"oneshot-dp: error: {self.message}\n"
      os.write(stderr_descriptor, line.encode())
      os._exit(1)

    # Python runs the handlers of `signal.signal` only between two bytecodes,
    # and abort() would not wait for that: the C function `signal` is called.
    c_library = ctypes.CDLL(None)
    c_library.signal(ctypes.c_int(signal.SIGABRT), print_message_and_exit)
    self._abort_handler = print_message_and_exit

  def raise_lost(self, cause: Exception) -> NoReturn:
    """Raises the message; nothing that JAX says afterwards is printed."""
    # Kept for ever: from here on JAX's threads may find the loss as well, and
    # call abort(), while this thread unwinds and prints its own line.
    self._ending.acquire()
    atexit.register(_exit_now)
    raise RunError(self.message) from cause


def _moved_stream(stream: TextIO, devnull: int) -> TextIO:
  """Returns the stream on a new descriptor; its old one leads to /dev/null."""
  stream.flush()
  moved = os.fdopen(
    os.dup(stream.fileno()), "w", buffering=1, encoding=stream.encoding
  )
  os.dup2(devnull, stream.fileno())
  return moved


def _exit_now() -> None:
  """Leaves without the other exit handlers, JAX's among them."""
  sys.stderr.flush()
  os._exit(1)
