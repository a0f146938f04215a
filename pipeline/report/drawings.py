"""The pictures of a page: what is drawn, and what is to be seen in them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from oneshot_dp.configs.head_config import called
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.report.pictures import (
  FILL,
  INK,
  MOST_NAMED,
  MUTED,
  ON_FILL,
  RULE,
  WARN,
  Plan,
  is_wide,
  name_lines,
  short,
)
from oneshot_dp.pipeline.runs import accuracy_plot
from oneshot_dp.pipeline.runs.results import grouped, mean_top1

_MOST_NUMBERED = 12
_SHORT = 2
_PALE = 0.65
"""Cells darker than this need light numbers, in both sets of colours."""
_SQUARE = 0.47 * np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])


def accuracy(findings: Findings) -> Plan:
  """Accuracy against epsilon, over draws, and without noise."""
  run, chosen = findings.run, findings.chosen[0]
  groups = grouped(grouped(run.noisy, "head")[chosen.head], "epsilon")
  points = ", ".join(
    f"{100 * mean_top1(groups[epsilon]):.1f} % at epsilon {printable(epsilon)}"
    for epsilon in sorted(groups)
  )
  noisy = "" if run.labels_are_public else " (noisy counts)"
  alt = f"Top-1 accuracy of {called(chosen.head)}{noisy}: {points}"
  if run.ceiling is not None:
    alt += f"; without noise ({NOT_PRIVATE}) {100 * run.ceiling.top1:.1f} %"

  def draw(figure: Figure) -> None:
    axes = figure.subplots()
    accuracy_plot.draw_accuracy(axes, run.rows, run.dataset)
    axes.axvline(chosen.epsilon, color=RULE, linewidth=6, zorder=0)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -1), min(high, 101))
    axes.grid(alpha=1)
    for ceiling in axes.lines:
      if NOT_PRIVATE in str(ceiling.get_label()):
        ceiling.set_color(WARN)
    if not is_wide(figure):
      axes.set_ylabel("top-1 accuracy, %")
    accuracy_plot.put_legend(
      figure,
      run.rows,
      # What is private first; matplotlib puts lines with bars last.
      last=lambda _, label: NOT_PRIVATE in label,
      loc="outside lower left",
      ncols=3 if is_wide(figure) else 1,
    )

  return Plan(
    alt=f"{alt}.",
    title=f"Private heads on {run.dataset}",
    heights=(3.9, 3.9 + 0.2 * len(grouped(run.rows, "head"))),
    draw=draw,
  )


def noise_and_signal(findings: Findings) -> Plan | None:
  """How far each class stands out of the noise."""
  compared, names = findings.compared, findings.run.class_names
  if isinstance(compared, str):
    return None
  epsilon, apart = findings.chosen[0].epsilon, compared.apart
  noise = compared.noise[epsilon]
  order = np.argsort(apart)
  weakest = int(order[0])

  def draw(figure: Figure) -> None:
    axes = figure.subplots()
    places = np.arange(len(order))
    has_names = len(order) <= MOST_NAMED
    if has_names:
      axes.hlines(places, apart[order], compared.signal[order], color=RULE)
      name_lines(axes, [names[i] for i in order])
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
      apart[order],
      places,
      color=FILL,
      linestyle="none" if has_names else "-",
      linewidth=2,
      marker="o" if has_names else "none",
      label="what sets it apart from the average class",
    )
    _, top = axes.get_ylim()
    for each, norm in compared.noise.items():
      is_chosen = each == epsilon
      axes.axvline(
        norm,
        color=WARN,
        linewidth=2.2 if is_chosen else 0.7,
        linestyle="-" if is_chosen else "--",
        label=f"noise at epsilon {printable(each)}" if is_chosen else None,
        zorder=0,
      )
      if is_wide(figure) or is_chosen:
        words = f"ε {printable(each)}"
        style = {"color": WARN, "ha": "center", "va": "bottom", "size": 8.5}
        axes.text(norm, top, words, style)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("length of the sum, in clipped rows")
    axes.grid(axis="x")
    figure.legend(loc="outside lower left", frameon=False, alignment="left")

  height = _height(len(names)) + 0.8
  return Plan(
    alt=f"Of {len(names)} classes, {int((apart > noise).sum())} stand out of"
    f" the noise of epsilon {printable(epsilon)} by themselves; the weakest is"
    f" {names[weakest]}, {apart[weakest] / noise:.2g} times the noise.",
    title="Noise against signal of each class\n",
    heights=(height, height),
    draw=draw,
  )


def class_accuracy(findings: Findings) -> Plan | None:
  """How often each class is named right, and the spread over draws."""
  answers, names = findings.answers, findings.run.class_names
  if isinstance(answers, str):
    return None
  percent = 100 * answers.class_accuracy()
  mean = percent.mean(axis=0)
  best, worst = int(np.nanargmax(mean)), int(np.nanargmin(mean))
  # The weakest first; without classes that no test image is of, which are NaN
  # and last.
  order = np.argsort(mean, kind="stable")[: int(np.isfinite(mean).sum())]

  def draw(figure: Figure) -> None:
    axes = figure.subplots()
    places = np.arange(len(order))
    if len(order) <= MOST_NAMED:
      low, high = percent.min(axis=0)[order], percent.max(axis=0)[order]
      axes.hlines(places, 0, mean[order], color=RULE, linewidth=3)
      axes.hlines(places, low, high, color=FILL, linewidth=2)
      axes.plot(mean[order], places, "o", color=FILL)
      name_lines(axes, [names[i] for i in order])
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

  height = _height(len(names))
  return Plan(
    alt=f"Best: {names[best]}, {mean[best]:.1f} %; worst: {names[worst]},"
    f" {mean[worst]:.1f} %.",
    title=f"Accuracy of each class ({_of_head(findings)})",
    heights=(height, height),
    draw=draw,
  )


def confusion(findings: Findings) -> Plan | None:
  """Which classes are taken for which; a line is a class and comes to 100 %."""
  answers, names = findings.answers, findings.run.class_names
  if isinstance(answers, str) or len(names) > MOST_NAMED:
    return None
  shares = answers.confusion.toarray()

  def draw(figure: Figure) -> None:
    axes = figure.subplots()
    cells = np.argwhere(shares > 0)[:, None, ::-1]
    squares = PolyCollection(
      list(cells + _SQUARE),
      facecolors=[to_rgba(FILL, share) for share in shares[shares > 0]],
      linewidths=0,
    )
    axes.add_collection(squares)
    if len(names) <= _MOST_NUMBERED:
      _number_cells(axes, shares, 9.0 if is_wide(figure) else 7.5)
    axes.set_aspect("equal")
    name_lines(axes, names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks(
      range(len(names)),
      [short(name) for name in names],
      rotation=0 if max(map(len, names)) <= _SHORT else 90,
    )
    axes.tick_params(length=0)
    axes.set_xlabel("answer")
    axes.set_ylabel("label")
    axes.spines[:].set(visible=True, color=RULE)

  return Plan(
    alt="Lines are labels, columns are answers; the table of the most confused"
    " pairs says the same in words.",
    title=f"Answers to each class, % ({_of_head(findings)})",
    heights=(6.2, 4.1),
    draw=draw,
  )


def _number_cells(axes: Axes, shares: np.ndarray, size: float) -> None:
  for (label, answer), share in np.ndenumerate(shares):
    percent = f"{100 * share:.0f}"
    if percent != "0":
      color = ON_FILL if share > _PALE else INK
      style = {"color": color, "ha": "center", "va": "center", "size": size}
      axes.text(answer, label, percent, style)


PICTURES = {
  "accuracy": accuracy,
  "noise-and-signal": noise_and_signal,
  "class-accuracy": class_accuracy,
  "confusion": confusion,
}
"""All that a page may have; the page itself says where each goes."""


def _height(classes: int) -> float:
  """Inches of a picture with a line for each class."""
  return 1.3 + 0.22 * classes if classes <= MOST_NAMED else 3.4


def _of_head(findings: Findings) -> str:
  row = findings.chosen[0]
  return f"{called(row.head)}, epsilon {printable(row.epsilon)}"
