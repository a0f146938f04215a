"""What is drawn of the answers: right ones by class, and wrong ones."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from oneshot_dp.pipeline.report.lettering import (
  MOST_NAMED,
  is_wide,
  name_lines,
  short,
  write_title,
)
from oneshot_dp.pipeline.report.pictures import FILL, INK, ON_FILL, RULE, Draw

_MOST_NUMBERED = 12
_SHORT = 2
_PALE = 0.65
"""Cells darker than this need light numbers, in both sets of colours."""


def class_accuracy(
  shares: Float[np.ndarray, "heads K"], names: Sequence[str], title: str
) -> Draw:
  """How often each class is named right, and the spread over draws."""
  known = np.flatnonzero(np.isfinite(shares).all(axis=0))
  named = [names[i] for i in known.tolist()]
  percent = 100 * shares[:, known]
  mean = percent.mean(axis=0)
  order = np.argsort(mean, kind="stable")

  def draw(figure: Figure, alone: bool) -> None:
    axes = figure.subplots()
    places = np.arange(len(order))
    if len(order) <= MOST_NAMED:
      low, high = percent.min(axis=0)[order], percent.max(axis=0)[order]
      axes.hlines(places, 0, mean[order], color=RULE, linewidth=3)
      axes.hlines(places, low, high, color=FILL, linewidth=2)
      axes.plot(mean[order], places, "o", color=FILL)
      name_lines(figure, places, [named[i] for i in order])
      axes.set_xlim(0, 103)
      axes.xaxis.set_major_formatter(PercentFormatter(decimals=0))
      axes.set_xlabel("named right")
      axes.grid(axis="x")
    else:
      axes.plot(places, mean[order], color=FILL, linewidth=2)
      axes.set_ylim(0, 103)
      axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
      axes.set_xlabel("classes, weakest first")
      axes.set_ylabel("named right")
      axes.grid(axis="y")
    axes.set_axisbelow(True)
    write_title(figure, alone, title)

  return draw


def confusion(
  shares: Float[np.ndarray, "K K"], names: Sequence[str], title: str
) -> Draw:
  """Which classes are taken for which; a line is a class and comes to 100 %."""

  def draw(figure: Figure, alone: bool) -> None:
    axes = figure.subplots()
    places = np.arange(len(names))
    cells = [
      (int(label), int(answer), float(shares[label, answer]))
      for label, answer in np.argwhere(shares > 0)
    ]
    axes.add_collection(
      PolyCollection(
        [_cell(answer, label) for label, answer, _ in cells],
        facecolors=[to_rgba(FILL, share) for *_, share in cells],
        linewidths=0,
      )
    )
    for label, answer, share in cells if len(names) <= _MOST_NUMBERED else []:
      if (percent := f"{100 * share:.0f}") != "0":
        axes.text(
          answer,
          label,
          percent,
          color=ON_FILL if share > _PALE else INK,
          ha="center",
          va="center",
          size=9 if is_wide(figure) else 7.5,
        )
    axes.set_aspect("equal")
    name_lines(figure, places, names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    upright = max(map(len, names)) <= _SHORT
    axes.set_xticks(
      places,
      [short(name) for name in names],
      rotation=0 if upright else 90,
    )
    axes.tick_params(length=0)
    axes.set_xlabel("answer")
    axes.set_ylabel("label")
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(RULE)
    write_title(figure, alone, title)

  return draw


def _cell(x: int, y: int) -> list[tuple[float, float]]:
  half = 0.47
  return [
    (x + a, y + b)
    for a, b in ((-half, -half), (half, -half), (half, half), (-half, half))
  ]
