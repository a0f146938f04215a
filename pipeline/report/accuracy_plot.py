"""The picture of a run: top-1 accuracy against epsilon, a line for each head.

It is drawn twice: with Matplotlib's letters as accuracy.png and accuracy.pdf,
and as SVG that takes the letters and colors of the page around it.
"""

import html
import io
import math
import re
import statistics
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from oneshot_dp.pipeline.report.results import (
  NOT_PRIVATE,
  EvaluationSet,
  HeadRow,
  accuracy_interval_95,
  group_draws,
)

# Colors that stay apart for people who confuse some (Okabe & Ito, "Color
# Universal Design", 2008). `report.html.j2` has one variable for each. Lines
# and markers repeat after other numbers of heads than colors do, so that the
# first 42 heads all look different, and in black and white the first 28.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LINE_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_MIN_RANGE = 5.0
"""Percentage points that the vertical axis spans at least."""
_CHART_WIDTHS = {"wide": 640, "narrow": 350}
"""Pixels of a chart on a page and on a phone."""
_PIXELS_PER_INCH = 72
_INCHES = (6.4, 4.2)
"""Size of accuracy.png, with a legend of one line."""
_LEGEND_LINE = 0.25
"""Inches that each further line of the legend takes."""


class _Series(NamedTuple):
  """The heads of one kind: points against epsilon, and perhaps a baseline.

  Attributes:
    label: what the legend calls them.
    draws: top-1 accuracies in %, of all draws of each ε.
    baseline: top-1 accuracy in % without noise, if there is such a head.
  """

  label: str
  draws: dict[float, list[float]]
  baseline: float | None


def pictures_of(
  rows: Sequence[HeadRow],
  dataset: str,
  how: str,
  test: EvaluationSet,
) -> dict[str, bytes]:
  """Draws accuracy.png and accuracy.pdf; the same rows give the same bytes.

  Points are means over draws, bars are 95 % intervals of the test set, and
  horizontal lines are heads without noise.

  Args:
    rows: the heads of the run.
    dataset: its name, for the title.
    how: how accuracies were measured, in words, for the vertical axis.
    test: what they were scored on.

  Returns:
    The content of each file by its name.
  """
  figure = _draw(rows, test, _INCHES, f"\n({how})")
  seeded = any(math.isfinite(row.epsilon) and not row.private for row in rows)
  title = f"Private heads on {dataset}"
  if seeded:
    title += f" (seeded noise: {NOT_PRIVATE})"
  # A name may have a $, which Matplotlib would take for a formula.
  figure.axes[0].set_title(title, parse_math=False)
  # Without its date, which Matplotlib would write into a PDF.
  metadata = {"png": {}, "pdf": {"CreationDate": None}}
  files = {}
  for suffix in metadata:
    file = io.BytesIO()
    with warnings.catch_warnings():
      # A data set may be named in letters that Matplotlib's font lacks: it
      # draws boxes for them, and warns of each.
      warnings.filterwarnings("ignore", "Glyph .* missing from font")
      figure.savefig(file, format=suffix, metadata=metadata[suffix])
    files[f"accuracy.{suffix}"] = file.getvalue()
  return files


def charts_of(rows: Sequence[HeadRow], test: EvaluationSet) -> list[str]:
  """Draws the same as SVG elements, one for a desk and one for a phone.

  Each is as wide as it is shown, so that its letters have the page's size.

  Args:
    rows: the heads of the run.
    test: what they were scored on.

  Returns:
    SVG elements to be put into an HTML page, the wide one first. They have
    classes and variables for colors in place of styles of their own.
  """
  label = html.escape(f"Top-1 accuracy: {_in_words(rows)}.")
  charts = []
  for name, width in _CHART_WIDTHS.items():
    inches = (width / _PIXELS_PER_INCH, (width / 2 + 110) / _PIXELS_PER_INCH)
    figure = _draw(rows, test, inches, "")
    height = round(figure.get_figheight() * _PIXELS_PER_INCH)
    charts.append(
      f'<svg class="chart {name}" viewBox="0 0 {width} {height}" role="img"'
      f' aria-label="{label}">{_svg_content(figure, name)}'
    )
  return charts


def _in_words(rows: Sequence[HeadRow]) -> str:
  """Describes the picture for people who cannot see it."""
  phrases = []
  for (head, epsilon), draws in group_draws(rows).items():
    mean = 100 * statistics.mean(row.top1 for row in draws)
    at = f"at ε {epsilon:g}"
    if math.isinf(epsilon):
      at = f"without noise ({NOT_PRIVATE})"
    phrases.append(f"{head} {mean:.1f} % {at}")
  return ", ".join(phrases)


def _svg_content(figure: Figure, salt: str) -> str:
  """The figure as SVG without its outermost tag, in the page's own style."""
  file = io.StringIO()
  no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
  # A salt of its own, so that ids differ between the charts of a page.
  with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
    figure.savefig(file, format="svg", metadata=no_metadata, transparent=True)
  # The chart becomes a part of the page, so it may not bring rules of its own,
  # which would hold for the whole page.
  text = re.sub(r"<style.*?</style>", "", file.getvalue(), flags=re.DOTALL)
  text = text.partition("<svg")[2].partition(">")[2]
  # The page's letters, and its colors, which may be light on dark.
  text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
  for i, color in enumerate(COLORS):
    text = text.replace(color, f"var(--c{i})")
  text = text.replace("#000000", "var(--ink)")
  return text.replace("xlink:href", "href")


def _draw(
  rows: Sequence[HeadRow],
  test: EvaluationSet,
  inches: tuple[float, float],
  how: str,
) -> Figure:
  """Draws the figure, taller by what the lines of its legend need."""
  all_series = _series_of(rows)
  is_wide = inches[0] > _INCHES[0] / 1.1
  columns = 2 if is_wide else 1
  # The legend is below the axes and takes a line or more: the figure grows by
  # that, and the axes keep their size.
  entries = sum(
    bool(series.draws) + (series.baseline is not None) for series in all_series
  )
  legend_lines = math.ceil(entries / columns)
  height = inches[1] + _LEGEND_LINE * (legend_lines - 1)
  figure = Figure(figsize=(inches[0], height), dpi=150, layout="constrained")
  axes = figure.subplots()
  for index, series in enumerate(all_series):
    # Shifted a little, so that no bar hides another.
    aside = 1.02 ** (index - (len(all_series) - 1) / 2)
    _draw_series(axes, series, index, aside, test)
  epsilons = sorted({r.epsilon for r in rows if math.isfinite(r.epsilon)})
  # Budgets are compared by their ratio, and only those that were trained are
  # labeled.
  axes.set_xscale("log", base=2)
  axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
  axes.minorticks_off()
  axes.set_xlabel(f"epsilon of each head (delta = {rows[0].delta:g})")
  _set_accuracy_axis(axes, how)
  axes.grid(alpha=0.25)
  draws = 1 + max(row.draw for row in rows)
  figure.legend(
    loc="outside lower center",
    title=_explanation(draws, is_wide),
    ncols=columns,
    frameon=False,
  )
  return figure


def _series_of(rows: Sequence[HeadRow]) -> list[_Series]:
  """Gathers the rows of each kind of head, in order of appearance."""
  all_series = []
  for head in dict.fromkeys(row.head for row in rows):
    draws: dict[float, list[float]] = {}
    baseline = None
    for row in rows:
      if row.head == head and math.isinf(row.epsilon):
        baseline = 100 * row.top1
      elif row.head == head:
        draws.setdefault(row.epsilon, []).append(100 * row.top1)
    label = f"{head} (one step)" if head == "lamb" else head
    all_series.append(_Series(label, draws, baseline))
  return all_series


def _draw_series(
  axes: Axes,
  series: _Series,
  index: int,
  aside: float,
  test: EvaluationSet,
) -> None:
  color = COLORS[index % len(COLORS)]
  if series.baseline is not None:
    label = f"{series.label} without noise ({NOT_PRIVATE})"
    axes.axhline(series.baseline, color=color, linestyle=":", label=label)
  if not series.draws:
    return
  # The line goes through the means. A bar is about the test set, which all
  # draws share, so it does not shrink with more draws.
  means = [statistics.mean(values) for values in series.draws.values()]
  axes.errorbar(
    [epsilon * aside for epsilon in series.draws],
    means,
    yerr=_bars(means, test),
    color=color,
    linestyle=_LINE_STYLES[index % len(_LINE_STYLES)],
    marker=_MARKERS[index % len(_MARKERS)],
    markersize=5,
    capsize=3,
    label=series.label,
  )
  # Single draws, beside the means: how much the noise of training matters.
  for epsilon, values in series.draws.items():
    if len(values) > 1:
      axes.plot(
        [epsilon * aside] * len(values),
        values,
        color=color,
        linestyle="",
        marker="_",
        markersize=9,
        alpha=0.6,
      )


def _bars(means: Sequence[float], test: EvaluationSet) -> list[list[float]]:
  """How far each 95 % interval reaches below and above its mean, in %."""
  below = []
  above = []
  for mean in means:
    low, high = accuracy_interval_95(mean / 100, test)
    below.append(max(0.0, mean - 100 * low))
    above.append(max(0.0, 100 * high - mean))
  return [below, above]


def _set_accuracy_axis(axes: Axes, how: str) -> None:
  """Spans enough percentage points, and says where the axis begins."""
  # An axis that spans half a point would make noise look like a difference.
  low, high = axes.get_ylim()
  missing = max(0.0, _MIN_RANGE - (high - low)) / 2
  low = max(0, math.floor(low - missing))
  high = min(100.5, high + missing)
  axes.set_ylim(low, high)
  begins = ""
  if low > 0:
    begins = f", axis from {low} %"
  axes.set_ylabel(f"top-1 accuracy, %{begins}{how}")


def _explanation(draws: int, is_wide: bool) -> str:
  """Explains points and bars, for the legend's title."""
  bars = "bars: 95 % intervals of the test set"
  if draws == 1:
    return bars
  separator = "; " if is_wide else "\n"
  return f"points: means of {draws} draws, each a dash{separator}{bars}"
