"""What is drawn of a run: accuracy, and noise against signal."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.report.lettering import (
  MOST_NAMED,
  is_wide,
  name_lines,
  write_title,
)
from oneshot_dp.pipeline.report.noise_and_signal import NoiseAndSignal
from oneshot_dp.pipeline.report.pictures import FILL, MUTED, RULE, WARN, Draw
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.runs import accuracy_plot


def accuracy(run: RunRecord, epsilon: float) -> Draw:
  """Accuracy against epsilon, over draws, and without noise."""

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
    write_title(figure, alone, f"Private heads on {run.dataset}")
    if not is_wide(figure):
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
      ncols=3 if is_wide(figure) else 1,
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
      name_lines(figure, places, [names[i] for i in order])
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
      if is_wide(figure) or is_chosen:
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
    write_title(figure, alone, "Noise against signal of each class\n")
    figure.legend(loc="outside lower left", frameon=False, alignment="left")

  return draw
