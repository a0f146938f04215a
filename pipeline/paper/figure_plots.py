"""The pictures of `figures`: accuracy against epsilon at several deltas.

accuracy-vs-epsilon   a line for each delta, beside published numbers (in the
                      manner of the paper's figure 1b)
delta-1e-06 …         one delta, every draw a dot (figure 3)
real-accuracy         the same heads by ImageNet-ReaL labels (figure 4)

Each is a png and a pdf.
"""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.paper.published import Published
from oneshot_dp.pipeline.runs import accuracy_plot
from oneshot_dp.pipeline.runs.results import SweepRow, grouped, with_noise

_MARKERS = "*XP^v"
_ASIDE = 1.06
"""Where draws are drawn, so as not to be under the mean of them."""


def plot_figures(
  rows: Sequence[SweepRow],
  real_rows: Sequence[SweepRow],
  references: Sequence[Published],
  dataset: str,
  directory: Path,
) -> None:
  """Writes all of them.

  Args:
    rows: heads of one method at several deltas, by the data set's own labels.
    real_rows: the same by ReaL labels; none, no such picture.
    references: published numbers, drawn where the delta is theirs.
    dataset: public name, for the titles.
    directory: where the files go.
  """
  by_delta = grouped(with_noise(rows), "delta")
  figure, axes = _picture("epsilon of each head")
  for i, (delta, group) in enumerate(by_delta.items()):
    accuracy_plot.draw_line(axes, group, _at(delta, group), i, len(by_delta))
  accuracy_plot.draw_without_noise(axes, rows)
  published = _draw_references(axes, references)
  _finish(figure, axes, rows, dataset, published)
  accuracy_plot.save(figure, directory, "accuracy-vs-epsilon")
  baselines = [row for row in rows if math.isinf(row.epsilon)]
  for delta, group in by_delta.items():
    figure, axes = _picture(
      f"epsilon of each head (delta = {printable(delta)})"
    )
    accuracy_plot.draw_line(axes, group, group[0].head, 0, 1)
    axes.plot(
      [_ASIDE * row.epsilon for row in group],
      [100 * row.top1 for row in group],
      linestyle="none",
      marker=".",
      markersize=4,
      color="#000000",
      alpha=0.6,
      label="each draw",
    )
    accuracy_plot.draw_without_noise(axes, baselines)
    published = _draw_references(axes, references, only_delta=delta)
    _finish(figure, axes, group, dataset, published)
    accuracy_plot.save(figure, directory, f"delta-{delta}")  # with all digits
  if not real_rows:
    return
  figure, axes = _picture("epsilon of each head")
  lines = [
    (f"{labels} labels, {_at(delta, group)}", group)
    for labels, of_labels in (("ReaL", real_rows), ("original", rows))
    for delta, group in grouped(with_noise(of_labels), "delta").items()
  ]
  for i, (label, group) in enumerate(lines):
    accuracy_plot.draw_line(axes, group, label, i, len(lines))
  accuracy_plot.draw_without_noise(axes, real_rows, note=", ReaL labels")
  _finish(figure, axes, real_rows, dataset)
  accuracy_plot.save(figure, directory, "real-accuracy")


def _at(delta: float, group: Sequence[SweepRow]) -> str:
  return f"{group[0].head}, delta = {printable(delta)}"


def _picture(xlabel: str) -> tuple[Figure, Axes]:
  figure = Figure(figsize=(6.4, 5.4), dpi=150, layout="constrained")
  axes = figure.subplots()
  axes.set_xlabel(xlabel)
  axes.set_ylabel("top-1 accuracy, %")
  return figure, axes


def _draw_references(
  axes: Axes,
  references: Sequence[Published],
  only_delta: float | None = None,
) -> list[float]:
  """Dashed; markers are what was published, lines only join them.

  Returns:
    The epsilons of the markers.
  """
  chosen = [
    (each, marker)
    for each, marker in zip(references, itertools.cycle(_MARKERS), strict=False)
    if only_delta in (None, each.delta)
  ]
  for reference, marker in chosen:
    axes.plot(
      list(reference.top1),
      [100 * top1 for top1 in reference.top1.values()],
      color=accuracy_plot.GREY,
      linestyle="--",
      linewidth=1,
      marker="|" if reference.is_range else marker,
      markersize=9,
      label=_in_words(reference),
    )
  if chosen:
    axes.set_xlabel(
      f"{axes.get_xlabel()}\ndashed, with markers: published, on ImageNet,"
      " of other backbones and data"
    )
  return [epsilon for each, _ in chosen for epsilon in each.top1]


def _in_words(reference: Published) -> str:
  where = " for the whole range" if reference.is_range else ""
  return (
    f"{reference.authors}: {reference.setting}; {reference.method};\n"
    f"delta = {printable(reference.delta)}{where} ({reference.source})"
  )


def _finish(
  figure: Figure,
  axes: Axes,
  rows: Sequence[SweepRow],
  dataset: str,
  more_epsilons: Sequence[float] = (),
) -> None:
  accuracy_plot.set_out(axes, rows, dataset, more_epsilons=more_epsilons)
  accuracy_plot.put_legend(
    figure,
    rows,
    # Ours first: those with bars, which matplotlib puts last.
    last=lambda handle, _: not isinstance(handle, ErrorbarContainer),
    loc="outside lower center",
    fontsize="small",
    title_fontsize="small",
  )
