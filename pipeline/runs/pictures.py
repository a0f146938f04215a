"""The pictures that runs leave behind, where matplotlib is installed.

It is in the extra `plots`: without it a run writes everything else, and says on
standard error what the pictures need. Nor does a picture that fails take with
it the heads that were paid for.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.paper.published import Published
from oneshot_dp.pipeline.runs.results import SweepRow

INSTALL = "pip install 'oneshot-dp[plots]'"
"""What brings matplotlib, and jinja2 for reports."""
_P = ParamSpec("_P")


def _beside_the_results(draw: Callable[_P, None]) -> Callable[_P, None]:
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


@_beside_the_results
def plot_accuracy(
  rows: Sequence[SweepRow], dataset: str, directory: Path
) -> None:
  """Draws a sweep or a comparison; see `accuracy_plot`."""
  from oneshot_dp.pipeline.runs import accuracy_plot

  accuracy_plot.plot_accuracy(rows, dataset, directory)


@_beside_the_results
def plot_figures(
  rows: Sequence[SweepRow],
  real_rows: Sequence[SweepRow],
  references: Sequence[Published],
  dataset: str,
  directory: Path,
) -> None:
  """Draws the paper's figures; see `figure_plots`."""
  from oneshot_dp.pipeline.paper import figure_plots

  figure_plots.plot_figures(rows, real_rows, references, dataset, directory)


@_beside_the_results
def plot_ablation(
  rows: Sequence[AblationRow], dataset: str, directory: Path
) -> None:
  """Draws an ablation; see `ablation_plot`."""
  from oneshot_dp.pipeline.paper import ablation_plot

  ablation_plot.plot_ablation(rows, dataset, directory)


def delta_name(delta: float) -> str:
  """What the files of a delta are called: all digits, so that no two collide.

  >>> delta_name(8e-7)
  'delta-8e-07'
  """
  return f"delta-{delta}"
