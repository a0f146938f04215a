"""What of all that a command says reaches the terminal.

Progress bars show themselves where standard error is a terminal; in a pipe, and
with --json, they are a line every half minute. On standard error a line that
begins with "warning: " is to be read, and with --quiet only such lines get
through.
"""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Iterator
from typing import TextIO

from tyro.conf import FlagCreatePairsOff

WARNING = "warning: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
  """How a command says what it found; the same flags for all of them."""

  json: FlagCreatePairsOff[bool] = False
  """One JSON object on standard output and nothing else there; notes and
  warnings are on standard error."""
  quiet: FlagCreatePairsOff[bool] = False
  """No progress and no notes: results, warnings and errors only."""


class _NoTerminal(io.TextIOBase):
  """A stream that no progress bar takes for a terminal."""

  def __init__(self, stream: TextIO | io.TextIOBase, *, warnings_only: bool):
    self._stream = stream
    self._warnings_only = warnings_only
    self._line = ""

  def isatty(self) -> bool:
    return False

  def writable(self) -> bool:
    return True

  def write(self, text: str) -> int:
    *whole, self._line = (self._line + text).split("\n")
    for line in whole:
      if not self._warnings_only or line.startswith(WARNING):
        self._stream.write(f"{line}\n")
    return len(text)

  def flush(self) -> None:
    self._stream.flush()

  def close(self) -> None:
    """Writes what has no line break yet; the stream itself stays open."""
    if self._line:
      self.write("\n")
    super().close()


@contextlib.contextmanager
def as_asked(output: Output) -> Iterator[None]:
  """Lets through what --json and --quiet leave of what the block says.

  Standard output is for the answer alone: whatever else is printed there
  meanwhile, by a library or a user's own code, goes to standard error.
  """
  if not (output.json or output.quiet):
    with contextlib.redirect_stdout(sys.stderr):
      yield
    return
  calm = _NoTerminal(sys.stderr, warnings_only=output.quiet)
  with (
    contextlib.closing(calm),
    contextlib.redirect_stderr(calm),
    contextlib.redirect_stdout(calm),
  ):
    yield
