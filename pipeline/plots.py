"""The pictures that runs leave behind, where matplotlib is installed.

It is in the extra `plots`: without it a run writes everything else, and says on
standard error what the pictures need.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.ablation_table import AblationRow
from pipeline.published import Published
from pipeline.results import SweepRow

INSTALL = "pip install 'oneshot-dp[plots]'"
"""What brings matplotlib, and jinja2 for reports."""


def plot_accuracy(
  rows: Sequence[SweepRow], dataset: str, directory: Path
) -> None:
  """Draws a sweep or a comparison; see `accuracy_plot`."""
  if _can_plot():
    from pipeline import accuracy_plot

    accuracy_plot.plot_accuracy(rows, dataset, directory)


def plot_figures(
  rows: Sequence[SweepRow],
  real_rows: Sequence[SweepRow],
  references: Sequence[Published],
  dataset: str,
  directory: Path,
) -> None:
  """Draws the paper's figures; see `figure_plots`."""
  if _can_plot():
    from pipeline import figure_plots

    figure_plots.plot_figures(rows, real_rows, references, dataset, directory)


def plot_ablation(
  rows: Sequence[AblationRow], dataset: str, directory: Path
) -> None:
  """Draws an ablation; see `ablation_plot`."""
  if _can_plot():
    from pipeline import ablation_plot

    ablation_plot.plot_ablation(rows, dataset, directory)


def delta_name(delta: float) -> str:
  """What the files of a delta are called: all digits, so that no two collide.

  >>> delta_name(8e-7)
  'delta-8e-07'
  """
  return f"delta-{delta}"


def _can_plot() -> bool:
  """Whether matplotlib is there; says so where it is not."""
  try:
    import matplotlib  # noqa: F401
  except ImportError:
    print(
      f"no pictures: matplotlib is not installed; {INSTALL}", file=sys.stderr
    )
    return False
  return True
