"""The picture of a run: accuracy against epsilon, a line for each head."""

import html
import io
import math
import re
import statistics
from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from oneshot_dp.pipeline.report.results import NOT_PRIVATE, HeadRow, grouped

# Told apart without colours, and the colours by whoever confuses some: those of
# Okabe and Ito, 2008.
_COLORS = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
_LINES, _MARKERS = ("-", "--", "-.", ":"), "os^D"
_LEAST_RANGE = 5.0
"""Percentage points that the vertical axis shows at least."""
_WIDTHS = {"wide": 640, "narrow": 350}
"""Pixels of a picture on a page and on a phone."""


def pictures_of(
  rows: Sequence[HeadRow], dataset: str, how: str
) -> dict[str, bytes]:
  """accuracy.png and accuracy.pdf: top-1 against epsilon of all heads.

  Lines are means, their bars one standard deviation over draws; lines right
  across are heads without noise. The same rows give the same bytes.
  """
  figure = _drawn(rows, (6.4, 4.2), f"\n({how})")
  seeded = any(math.isfinite(r.epsilon) and not r.private for r in rows)
  mark = f" (seeded noise: {NOT_PRIVATE})" if seeded else ""
  title = f"Private heads on {dataset}{mark}"
  figure.axes[0].set_title(title, parse_math=False)
  files = {}
  for suffix, metadata in ("png", {}), ("pdf", {"CreationDate": None}):
    file = io.BytesIO()
    figure.savefig(file, format=suffix, metadata=metadata)
    files[f"accuracy.{suffix}"] = file.getvalue()
  return files


def charts_of(rows: Sequence[HeadRow]) -> list[str]:
  """The same as SVG in a page's colours, as wide as it is shown there."""
  said = ", ".join(
    f"{head} {100 * statistics.mean(r.top1 for r in draws):.1f} % "
    + (f"without noise ({NOT_PRIVATE})" if math.isinf(e) else f"at ε {e:g}")
    for (head, e), draws in grouped(rows).items()
  )
  label, charts = html.escape(f"Top-1 accuracy: {said}."), []
  for name, width in _WIDTHS.items():
    height, file = width // 2 + 110, io.StringIO()
    figure = _drawn(rows, (width / 72, height / 72), "")
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
      figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    text = re.sub(r"<style.*?</style>", "", file.getvalue(), flags=re.DOTALL)
    text = text.partition("<svg")[2].partition(">")[2]
    # The page's own letters and colours, which may be light on dark.
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for i, color in enumerate(_COLORS):
      text = text.replace(color, f"var(--c{i})")
    text = text.replace("#000000", "var(--ink)").replace("xlink:href", "href")
    charts.append(
      f'<svg class="chart {name}" viewBox="0 0 {width} {height}" role="img"'
      f' aria-label="{label}">{text}'
    )
  return charts


def _drawn(
  rows: Sequence[HeadRow], inches: tuple[float, float], how: str
) -> Figure:
  figure = Figure(figsize=inches, dpi=150, layout="constrained")
  axes = figure.subplots()
  draws = 1 + max(row.draw for row in rows)
  heads = list(dict.fromkeys(row.head for row in rows))
  for i, head in enumerate(heads):
    groups = grouped(row for row in rows if row.head == head)
    points = {e: [100 * r.top1 for r in g] for (_, e), g in groups.items()}
    if without := points.pop(math.inf, None):
      label = f"{head} without noise ({NOT_PRIVATE})"
      axes.axhline(without[0], color=_COLORS[i], linestyle=":", label=label)
    if points:
      aside = 1.02 ** (i - (len(heads) - 1) / 2)  # so that no bar hides another
      spread = [statistics.stdev(v) for v in points.values() if draws > 1]
      axes.errorbar(
        [epsilon * aside for epsilon in points],
        [statistics.mean(values) for values in points.values()],
        yerr=spread or None,
        color=_COLORS[i],
        linestyle=_LINES[i],
        marker=_MARKERS[i],
        markersize=5,
        capsize=3,
        label=f"{head} (one step)" if head == "lamb" else head,
      )
  epsilons = sorted({r.epsilon for r in rows if math.isfinite(r.epsilon)})
  axes.set_xscale("log", base=2)
  axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
  axes.minorticks_off()
  axes.set_xlabel(f"epsilon of each head (delta = {rows[0].delta:g})")
  axes.set_ylabel(f"top-1 accuracy, %{how}")
  low, high = axes.get_ylim()
  missing = max(0.0, _LEAST_RANGE - (high - low)) / 2
  axes.set_ylim(low - missing, high + missing)
  axes.grid(alpha=0.25)
  bars = f"mean ± sd of {draws} draws" if draws > 1 else None
  columns, place = 2 if inches[0] > 6 else 1, "outside lower center"
  figure.legend(loc=place, title=bars, ncols=columns, frameon=False)
  return figure
