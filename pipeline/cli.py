"""The command `oneshot-dp`.

Errors are one line on standard error: exit status 2 for what was asked, 1 for
a run that failed, 130 after Ctrl-C. A traceback is a bug.
"""

import contextlib
import gc
import io
import logging
import os
import resource
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError, check_text, escaped

_PROG = "oneshot-dp"
_ADDRESS_SPACE = 4 << 30
_FIRST_FILE = 3
"""Descriptors below it are standard input, output and error."""
_LIMITS = "can't start new thread", "RESOURCE_EXHAUSTED"
"""What Python and XLA say in a RuntimeError where the machine has no more."""
_NOTHING_DONE = "interrupted; nothing was charged or written"
_STAYS = (
  "interrupted; what was charged to a ledger stays charged (`oneshot-dp budget`"
  " tells it)"
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  status = _run(sys.argv[1:] if argv is None else argv)
  if argv is None and _raises_interrupts():
    # All is done. A Ctrl-C while libraries shut down ends them without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
  if status and argv is None:
    # Beam's threads may still be busy in C++, and the interpreter's orderly
    # end would abort there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  return status


def _run(argv: Sequence[str]) -> int:
  # Every 700 objects, Python's way, takes a third of reading a long ledger.
  gc.set_threshold(10_000)
  # TFDS and Beam announce missing optional packages through the root logger.
  logging.basicConfig(level=logging.ERROR, format="%(message)s")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  warnings.formatwarning = _warning_line
  # Where one was closed, the next file would be opened in its place.
  while (descriptor := os.open(os.devnull, os.O_RDWR)) < _FIRST_FILE:
    pass
  os.close(descriptor)
  sys.stdout, sys.stderr = (
    stream or open(os.devnull, "w")  # noqa: SIM115  (as long as we live)
    for stream in (sys.stdout, sys.stderr)
  )
  for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
      # A locale may have no ε: results are there, and are told all the same.
      stream.reconfigure(errors="backslashreplace")
  what_is_left = _NOTHING_DONE
  with _noted_interrupts() as interrupts:
    try:
      # Imported here, so that Ctrl-C finds us ready for it from the start, and
      # so that `--help` need not wait for JAX, TFDS and Beam.
      from oneshot_dp.pipeline.commands.registry import COMMANDS
      from oneshot_dp.pipeline.shell import many_hosts, parser, terminal

      for word in argv:
        check_text("a word of the command line", word)
      request = parser.parse(argv, COMMANDS)
      what_is_left = getattr(request.command, "IF_INTERRUPTED", _STAYS)
      if (asked := getattr(request.flags, "hosts", None)) is not None:
        many_hosts.place_of(asked)  # what it refuses
        many_hosts.say_one_line()
      if getattr(request.command, "USES_JAX", True):
        _check_address_space()
      with terminal.as_asked(request.output):
        answer = request.answer()
      if said := answer.json() if request.output.json else answer.text:
        _tell(escaped(said))
      for fault in answer.faults:
        print(escaped(fault), file=sys.stderr)
      if answer.failure is not None:
        raise answer.failure
    except KeyboardInterrupt as stop:
      # Whoever knows what is left of the work has said so in it.
      return _fail(str(stop) or what_is_left, 130)
    except InputError as error:
      return _fail(error, 2)
    except RunError as error:
      return _fail(error, 1)
    except BrokenPipeError:
      # The reader of our output has gone (`| head`); nothing is left to say.
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
      return 1
    except (OSError, MemoryError, RecursionError, UnicodeError) as error:
      # What a disk, a limit or a damaged file may do anywhere.
      if interrupts:
        return _fail(what_is_left, 130)
      place = getattr(error, "filename", None) or "the run ended"
      reason = getattr(error, "strerror", None) or str(error)
      return _fail(f"{place}: {type(error).__name__}: {reason}", 1)
    except Exception as error:
      # NumPy makes an ImportError of a Ctrl-C while it is imported.
      if interrupts:
        return _fail(what_is_left, 130)
      if any(limit in str(error) for limit in _LIMITS):
        return _fail(f"the run ended: {error}", 1)
      raise
    if interrupts:
      # A library's callback took it for an error of its own, and went on.
      return _fail("interrupted, when all was done already", 130)
  return 0


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
  """Lists the Ctrl-Cs of the block, which are raised as ever."""
  noted: list[int] = []
  main_thread = threading.current_thread() is threading.main_thread()
  if not (main_thread and _raises_interrupts()):
    yield noted
    return

  def note(number: int, frame: types.FrameType | None) -> None:
    noted.append(number)
    signal.default_int_handler(number, frame)

  signal.signal(signal.SIGINT, note)
  try:
    yield noted
  finally:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _check_address_space() -> None:
  """Refuses a limit in which XLA would abort, or hang, without a word."""
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  if 0 <= limit < _ADDRESS_SPACE:
    raise RunError(
      f"the address space is limited to {limit / 2**30:.1f} GB (ulimit -v), and"
      f" JAX asks for {_ADDRESS_SPACE >> 30} GB, most of which it never uses;"
      " raise the limit."
    )


def _raises_interrupts() -> bool:
  """Whether Ctrl-C is KeyboardInterrupt; in the background it is nothing."""
  return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _tell(text: str) -> None:
  try:
    print(text, flush=True)
  except BrokenPipeError:
    raise
  except OSError as error:
    raise RunError(
      f"all is done, but standard output cannot be written: {error.strerror}."
    ) from error


def _warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
  return f"warning: {' '.join(str(message).split())}\n"


def _fail(error: object, status: int) -> int:
  said = escaped(" ".join(str(error).split()))
  print(f"{_PROG}: error: {said}", file=sys.stderr)
  return status


if __name__ == "__main__":
  sys.exit(main())
