"""Pictures beside results, where matplotlib is installed."""

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from matplotlib.figure import Figure

INSTALL = "pip install 'oneshot-dp[plots]'"
"""What brings matplotlib, and jinja2 for reports."""


def draw(plot: Callable[[Path], object], folder: Path) -> None:
  """Draws into a folder, or says on standard error why it cannot.

  A picture that fails does not take with it the heads that were paid for.
  """
  try:
    import matplotlib
  except ImportError:
    print(
      f"no pictures: matplotlib is not installed; {INSTALL}", file=sys.stderr
    )
    return
  try:
    # A data set may be called "price$\frac$".
    with matplotlib.rc_context({"text.parse_math": False}):
      plot(folder)
  except OSError:  # a full disk: the rest cannot be written either
    raise
  except Exception as error:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"warning: no pictures: {reason}", file=sys.stderr)


def save_figure(figure: "Figure", path: Path, **options: Any) -> None:
  """Writes a figure in the format that the name says; see `Figure.savefig`.

  By way of memory: of a PDF that fails half-way matplotlib raises anything, and
  leaves the half.
  """
  drawn = io.BytesIO()
  figure.savefig(drawn, format=path.suffix[1:], **options)
  path.write_bytes(drawn.getvalue())
