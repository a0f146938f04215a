"""The pictures of `figures`: accuracy against epsilon at several deltas.

accuracy-vs-epsilon   a line for each delta, beside published numbers (in the
                      manner of the paper's figure 1b)
delta-1e-06 …         one delta, every draw a dot (figure 3)
real-accuracy         the same heads by ImageNet-ReaL labels (figure 4)
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
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
  """Writes all of them, each as PNG and PDF.

  `rows` are heads of one method at several deltas; `real_rows` the same by ReaL
  labels, without which there is no such picture.
  """
  by_delta = grouped(with_noise(rows), "delta")
  baselines = [row for row in rows if math.isinf(row.epsilon)]
  published = list(zip(references, itertools.cycle(_MARKERS), strict=False))
  place = directory / "accuracy-vs-epsilon"
  with _picture(rows, dataset, place, published) as axes:
    _draw_lines(axes, {_at(g): g for g in by_delta.values()})
    accuracy_plot.draw_without_noise(axes, baselines)
  for delta, group in by_delta.items():
    place = directory / f"delta-{delta}"  # with all digits
    at_delta = [each for each in published if each[0].delta == delta]
    with _picture(group, dataset, place, at_delta) as axes:
      axes.set_xlabel(f"{axes.get_xlabel()} (delta = {printable(delta)})")
      _draw_lines(axes, {group[0].head: group})
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
  if not real_rows:
    return
  with _picture(real_rows, dataset, directory / "real-accuracy") as axes:
    lines = {
      f"{labels} labels, {_at(group)}": group
      for labels, of_labels in (("ReaL", real_rows), ("original", rows))
      for group in grouped(with_noise(of_labels), "delta").values()
    }
    _draw_lines(axes, lines)
    accuracy_plot.draw_without_noise(axes, real_rows, note=", ReaL labels")


@contextlib.contextmanager
def _picture(
  rows: Sequence[SweepRow],
  dataset: str,
  place: Path,
  published: Sequence[tuple[Published, str]] = (),
) -> Iterator[Axes]:
  """Axes to draw rows in; written, with published numbers, when it is done."""
  figure = Figure(figsize=(6.4, 5.4), dpi=150, layout="constrained")
  axes = figure.subplots()
  axes.set_xlabel("epsilon of each head")
  axes.set_ylabel("top-1 accuracy, %")
  yield axes
  _draw_published(axes, published)
  more_epsilons = [epsilon for each, _ in published for epsilon in each.top1]
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
  accuracy_plot.save(figure, place.parent, place.name)


def _at(group: Sequence[SweepRow]) -> str:
  return f"{group[0].head}, delta = {printable(group[0].delta)}"


def _draw_lines(axes: Axes, lines: dict[str, list[SweepRow]]) -> None:
  for i, (label, group) in enumerate(lines.items()):
    accuracy_plot.draw_line(axes, group, label, i, len(lines))


def _draw_published(
  axes: Axes, published: Sequence[tuple[Published, str]]
) -> None:
  """Dashed; markers are what was published, lines only join them."""
  for reference, marker in published:
    where = " for the whole range" if reference.is_range else ""
    axes.plot(
      list(reference.top1),
      [100 * top1 for top1 in reference.top1.values()],
      color=accuracy_plot.GREY,
      linestyle="--",
      linewidth=1,
      marker="|" if reference.is_range else marker,
      markersize=9,
      label=f"{reference.authors}: {reference.setting}; {reference.method};\n"
      f"delta = {printable(reference.delta)}{where} ({reference.source})",
    )
  if published:
    axes.set_xlabel(
      f"{axes.get_xlabel()}\ndashed, with markers: published, on ImageNet,"
      " of other backbones and data"
    )
