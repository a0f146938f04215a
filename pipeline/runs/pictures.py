"""Pictures beside results, where matplotlib (the extra `plots`) is installed.

Without it a run writes everything else, and says on standard error what the
pictures need. Nor does a picture that fails take with it the heads that were
paid for.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

from oneshot_dp.pipeline.runs.results import SweepRow

INSTALL = "pip install 'oneshot-dp[plots]'"
"""What brings matplotlib, and jinja2 for reports."""
_P = ParamSpec("_P")


def beside_the_results(draw: Callable[_P, None]) -> Callable[_P, None]:
  """Draws if it can be, and says why where it cannot."""

  @functools.wraps(draw)
  def drawn(*args: _P.args, **kwargs: _P.kwargs) -> None:
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
        draw(*args, **kwargs)
    except OSError:  # a full disk: the rest cannot be written either
      raise
    except Exception as error:
      reason = " ".join(f"{type(error).__name__}: {error}".split())
      print(f"warning: no pictures: {reason}", file=sys.stderr)

  return drawn


@beside_the_results
def plot_accuracy(rows: Sequence[SweepRow], dataset: str, folder: Path) -> None:
  """Draws a sweep or a comparison."""
  from oneshot_dp.pipeline.runs import accuracy_plot

  accuracy_plot.plot_accuracy(rows, dataset, folder)
