"""The command `oneshot-dp`.

Errors are one line on standard error: exit status 2 for what was asked, 1 for
a run that failed, 130 after Ctrl-C. A traceback is a bug.
"""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from configs.errors import InputError, RunError

_PROG = "oneshot-dp"
_INTERRUPTED = (
  "interrupted; an extraction resumes when the same command is run again (what"
  " was charged to a ledger stays charged)"
)


def main(argv: Sequence[str] | None = None) -> int:
  """Runs one command; returns the exit status."""
  status = _run(sys.argv[1:] if argv is None else argv)
  if status and argv is None:
    # Beam's threads may still be busy in C++, and the interpreter's orderly
    # end would abort there.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  return status


def _run(argv: Sequence[str]) -> int:
  # TFDS and Beam announce missing optional packages through the root logger.
  logging.basicConfig(level=logging.ERROR, format="%(message)s")
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  warnings.formatwarning = _warning_line
  try:
    # Imported here, so that Ctrl-C finds us ready for it from the start, and so
    # that `--help` need not wait for JAX, TFDS and Beam.
    from pipeline.parser import parse

    request = parse(argv)
    from pipeline import commands

    commands.run(request)
    sys.stdout.flush()
  except InputError as error:
    return _fail(error, 2)
  except RunError as error:
    return _fail(error, 1)
  except KeyboardInterrupt as stop:
    # Whoever knows what is left of the work has said so in it.
    return _fail(str(stop) or _INTERRUPTED, 130)
  except BrokenPipeError:
    # The reader of our output has gone (`| head`); nothing is left to say.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
  return 0


def _warning_line(message: Warning | str, *_: Any, **__: Any) -> str:
  return f"warning: {' '.join(str(message).split())}\n"


def _fail(error: object, status: int) -> int:
  print(f"{_PROG}: error: {' '.join(str(error).split())}", file=sys.stderr)
  return status


if __name__ == "__main__":
  sys.exit(main())
