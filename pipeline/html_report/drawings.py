"""What is drawn in each picture of the page; see `pictures`."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from linear_dp.accounting import printable
from linear_dp.plan import NOT_PRIVATE
from pipeline import accuracy_plot
from pipeline.html_report.noise_and_signal import NoiseAndSignal
from pipeline.html_report.pictures import (
  FILL,
  INK,
  MUTED,
  ON_FILL,
  RULE,
  WARN,
  WIDE,
  Draw,
)
from pipeline.html_report.run_record import RunRecord

MOST_NAMED = 30
"""Classes that can have a line each; more are drawn as a curve."""
_MOST_NUMBERED = 12
_LONGEST_NAME = 18
_SHORT = 2
_PALE = 0.65
"""Cells darker than this need light numbers, in both sets of colours."""


def accuracy(run: RunRecord, epsilon: float) -> Draw:
  """Accuracy against epsilon, over seeds, and without noise."""

  def draw(figure: Figure, alone: bool) -> None:
    axes = figure.subplots()
    accuracy_plot.draw_accuracy(axes, run.rows, run.dataset)
    axes.axvline(epsilon, color=RULE, linewidth=6, zorder=0)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1), min(high, 101))
    axes.grid(alpha=1)
    axes.set_axisbelow(True)
    for ceiling in axes.lines:
      if NOT_PRIVATE in str(ceiling.get_label()):
        ceiling.set_color(WARN)
    axes.set_title("")
    _title(figure, alone, f"Private heads on {run.dataset}")
    if not _is_wide(figure):
      axes.set_ylabel("top-1 accuracy, %")
    handles, labels = axes.get_legend_handles_labels()
    # What is private first; matplotlib puts lines with bars last.
    order = sorted(
      range(len(labels)), key=lambda i: (NOT_PRIVATE in labels[i], i)
    )
    figure.legend(
      [handles[i] for i in order],
      [labels[i] for i in order],
      loc="outside lower left",
      frameon=False,
      ncols=3 if _is_wide(figure) else 1,
      title=accuracy_plot.spread(run.rows),
      alignment="left",
    )

  return draw


def not_private(draw: Draw) -> Draw:
  """The same, marked: its noise comes from a seed."""

  def marked(figure: Figure, alone: bool) -> None:
    draw(figure, alone)
    (axes,) = figure.axes
    mark = f"{NOT_PRIVATE}: the noise comes from a seed"
    title = axes.get_title(loc="left")
    axes.set_title(f"{mark}\n{title}" if title else mark, color=WARN)

  return marked


def noise_and_signal(
  compared: NoiseAndSignal, names: Sequence[str], epsilon: float
) -> Draw:
  """How far each class stands out of the noise."""

  def draw(figure: Figure, alone: bool) -> None:
    axes = figure.subplots()
    order = np.argsort(compared.apart)
    places = np.arange(len(order))
    has_names = len(order) <= MOST_NAMED
    if has_names:
      axes.hlines(
        places, compared.apart[order], compared.signal[order], color=RULE
      )
      _name(figure, places, [names[i] for i in order])
    else:
      axes.set_ylabel("classes, weakest first")
    axes.plot(
      compared.signal[order],
      places,
      color=MUTED,
      linestyle="none",
      marker="o",
      markerfacecolor="none",
      markersize=6 if has_names else 2,
      label="the class's whole sum",
    )
    axes.plot(
      compared.apart[order],
      places,
      color=FILL,
      linestyle="none" if has_names else "-",
      linewidth=2,
      marker="o" if has_names else "none",
      label="what sets it apart from the average class",
    )
    _, top = axes.get_ylim()
    for each, noise in compared.noise.items():
      is_chosen = each == epsilon
      axes.axvline(
        noise,
        color=WARN,
        linewidth=2.2 if is_chosen else 0.7,
        linestyle="-" if is_chosen else "--",
        label=f"noise at epsilon {printable(each)}" if is_chosen else None,
        zorder=0,
      )
      if _is_wide(figure) or is_chosen:
        axes.text(
          noise,
          top,
          f"ε {printable(each)}",
          color=WARN,
          ha="center",
          va="bottom",
          size=8.5,
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length of the sum, in clipped rows")
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    _title(figure, alone, "Noise against signal of each class\n")
    figure.legend(loc="outside lower left", frameon=False, alignment="left")

  return draw


def class_accuracy(
  shares: Float[np.ndarray, "heads K"], names: Sequence[str], title: str
) -> Draw:
  """How often each class is named right, and the spread over seeds."""
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
      _name(figure, places, [named[i] for i in order])
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
    _title(figure, alone, title)

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
          size=9 if _is_wide(figure) else 7.5,
        )
    axes.set_aspect("equal")
    _name(figure, places, names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    upright = max(map(len, names)) <= _SHORT
    axes.set_xticks(
      places,
      [_short(name) for name in names],
      rotation=0 if upright else 90,
    )
    axes.tick_params(length=0)
    axes.set_xlabel("answer")
    axes.set_ylabel("label")
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(RULE)
    _title(figure, alone, title)

  return draw


def _cell(x: int, y: int) -> list[tuple[float, float]]:
  half = 0.47
  return [
    (x + a, y + b)
    for a, b in ((-half, -half), (half, -half), (half, half), (-half, half))
  ]


def _name(figure: Figure, places: np.ndarray, names: Sequence[str]) -> None:
  """Writes classes at the left."""
  (axes,) = figure.axes
  axes.set_yticks(places, [_short(name) for name in names])
  axes.set_ylim(-0.6, len(places) - 0.4)
  axes.tick_params(axis="y", length=0)


def _short(name: str) -> str:
  if len(name) <= _LONGEST_NAME:
    return name
  return name[: _LONGEST_NAME - 1] + "…"


def _title(figure: Figure, alone: bool, title: str) -> None:
  """Pictures on the page have a heading there."""
  if alone:
    figure.axes[0].set_title(title)


def _is_wide(figure: Figure) -> bool:
  return bool(figure.get_figwidth() >= WIDE)
