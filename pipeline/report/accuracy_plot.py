"""The picture of a run: accuracy against epsilon, a line for each head."""

import io
import math
import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from oneshot_dp.pipeline.report.results import NOT_PRIVATE, HeadRow, grouped

# Told apart without colours, and the colours by whoever confuses some: those of
# Okabe and Ito, 2008.
_COLORS = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
_LINES, _MARKERS = ("-", "--", "-.", ":"), "os^D"
_LEAST_RANGE = 5.0
"""Percentage points that the vertical axis shows at least."""


def pictures_of(
  rows: Sequence[HeadRow], dataset: str, how: str
) -> dict[str, bytes]:
  """accuracy.png and accuracy.pdf: top-1 against epsilon of all heads.

  Lines are means, their bars one standard deviation over draws; lines right
  across are heads without noise. The same rows give the same bytes.
  """
  figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
  axes = figure.subplots()
  draws = 1 + max(row.draw for row in rows)
  heads = list(dict.fromkeys(row.head for row in rows))
  for i, head in enumerate(heads):
    groups = grouped(row for row in rows if row.head == head)
    points = {e: [100 * r.top1 for r in g] for (_, e), g in groups.items()}
    if without := points.pop(math.inf, None):
      label = f"{head}, no noise ({NOT_PRIVATE})"
      axes.axhline(without[0], color=_COLORS[i], linestyle=":", label=label)
    if points:
      aside = 1.02 ** (i - (len(heads) - 1) / 2)  # so that no bar hides another
      axes.errorbar(
        [epsilon * aside for epsilon in points],
        [statistics.mean(values) for values in points.values()],
        yerr=[statistics.stdev(values) for values in points.values()]
        if draws > 1
        else None,
        color=_COLORS[i],
        linestyle=_LINES[i],
        marker=_MARKERS[i],
        markersize=5,
        capsize=3,
        label=f"{head} (one step)" if head == "lamb" else head,
      )
  noisy = [row for row in rows if math.isfinite(row.epsilon)]
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_locator(FixedLocator(sorted({r.epsilon for r in noisy})))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.xaxis.set_major_formatter(FuncFormatter(lambda e, _: f"{e:g}"))
  axes.set_xlabel(f"epsilon of each head (delta = {rows[0].delta:g})")
  axes.set_ylabel(f"top-1 accuracy, %\n({how})")
  seeded = not all(row.private for row in noisy)
  mark = f" (seeded noise: {NOT_PRIVATE})" if seeded else ""
  axes.set_title(f"Private heads on {dataset}{mark}", parse_math=False)
  low, high = axes.get_ylim()
  missing = max(0.0, _LEAST_RANGE - (high - low)) / 2
  axes.set_ylim(low - missing, high + missing)
  axes.grid(alpha=0.25)
  bars = f"mean ± sd of {draws} draws" if draws > 1 else None
  figure.legend(loc="outside lower center", ncols=2, frameon=False, title=bars)
  files = {}
  for suffix, metadata in ("png", {}), ("pdf", {"CreationDate": None}):
    file = io.BytesIO()
    figure.savefig(file, format=suffix, metadata=metadata)
    files[f"accuracy.{suffix}"] = file.getvalue()
  return files
