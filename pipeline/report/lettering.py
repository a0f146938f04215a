"""Names of classes and titles, as the pictures of a page have them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from oneshot_dp.pipeline.report.pictures import WIDE

MOST_NAMED = 30
"""Classes that can have a line each; more are drawn as a curve."""
_LONGEST_NAME = 18


def name_lines(
  figure: Figure, places: np.ndarray, names: Sequence[str]
) -> None:
  """Writes classes at the left, a line each."""
  (axes,) = figure.axes
  axes.set_yticks(places, [short(name) for name in names])
  axes.set_ylim(-0.6, len(places) - 0.4)
  axes.tick_params(axis="y", length=0)


def short(name: str) -> str:
  """A name cut to what fits a picture."""
  if len(name) <= _LONGEST_NAME:
    return name
  return name[: _LONGEST_NAME - 1] + "…"


def write_title(figure: Figure, alone: bool, title: str) -> None:
  """Only where it stands alone: on the page there is a heading."""
  if alone:
    figure.axes[0].set_title(title)


def is_wide(figure: Figure) -> bool:
  """Whether it is for a page, and not for a phone."""
  return bool(figure.get_figwidth() >= WIDE)
