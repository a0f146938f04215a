"""The picture of a run: accuracy against epsilon, a line for each head."""

import io
import math
import statistics
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from oneshot_dp.pipeline.results import NOT_PRIVATE, HeadRow, grouped

_STYLES: tuple[dict[str, Any], ...] = (
  {"color": "#0072b2", "linestyle": "-", "marker": "o"},
  {"color": "#d55e00", "linestyle": "--", "marker": "s"},
  {"color": "#009e73", "linestyle": "-.", "marker": "^"},
  {"color": "#cc79a7", "linestyle": ":", "marker": "D"},
)
"""Told apart without colours, and the colours by whoever confuses some: those
of Okabe and Ito, 2008."""
_LEAST_RANGE = 5.0
"""Percentage points that the vertical axis shows at least."""
_NAMES = {"lamb": "lamb (one step)", "auto": "auto"}


def pictures_of(
  rows: Sequence[HeadRow], dataset: str, noise_of_scores: str = ""
) -> dict[str, bytes]:
  """accuracy.png and accuracy.pdf: top-1 against epsilon of all heads.

  Lines are means, their bars one standard deviation over draws; lines right
  across are heads without noise. The same rows give the same bytes.
  """
  figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
  axes = figure.subplots()
  heads = list(dict.fromkeys(row.head for row in rows))
  for place, head in enumerate(heads):
    _draw(axes, [r for r in rows if r.head == head], place, len(heads))
  _set_out(axes, rows, dataset, noise_of_scores)
  figure.legend(
    loc="outside lower center", ncols=2, frameon=False, title=_spread(rows)
  )
  files = {}
  for suffix, metadata in ("png", {}), ("pdf", {"CreationDate": None}):
    file = io.BytesIO()
    figure.savefig(file, format=suffix, metadata=metadata)
    files[f"accuracy.{suffix}"] = file.getvalue()
  return files


def _draw(axes: Axes, rows: Sequence[HeadRow], place: int, places: int) -> None:
  """One head: a line a little beside the others, so that no bar hides one."""
  style = _STYLES[place % len(_STYLES)]
  name = _NAMES.get(rows[0].head, rows[0].head)
  aside = 1.02 ** (place - (places - 1) / 2)
  points = {
    epsilon: [100 * row.top1 for row in draws]
    for (_, epsilon), draws in grouped(rows).items()
  }
  if without := points.pop(math.inf, None):
    axes.axhline(
      without[0],
      color=style["color"],
      linestyle=(0, (1, 3)),
      label=f"{name}, no noise ({NOT_PRIVATE})",
    )
  if points:
    axes.errorbar(
      [epsilon * aside for epsilon in points],
      [statistics.mean(values) for values in points.values()],
      yerr=[statistics.stdev(v) for v in points.values()]
      if _spread(rows)
      else None,
      capsize=3,
      markersize=5,
      label=name,
      **style,
    )


def _set_out(
  axes: Axes, rows: Sequence[HeadRow], dataset: str, noise_of_scores: str
) -> None:
  private = [row for row in rows if math.isfinite(row.epsilon)]
  epsilons = sorted({row.epsilon for row in private})
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_locator(FixedLocator(epsilons))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.xaxis.set_major_formatter(FuncFormatter(lambda e, _: f"{e:g}"))
  axes.set_xlabel(f"epsilon of each head (delta = {rows[0].delta:g})")
  noisy = f"\n({noise_of_scores})" if noise_of_scores else ""
  axes.set_ylabel(f"top-1 accuracy, %{noisy}")
  seeded = not all(row.private for row in private)
  marked = f" (seeded noise: {NOT_PRIVATE})" if seeded else ""
  axes.set_title(f"Private heads on {dataset}{marked}", parse_math=False)
  low, high = axes.get_ylim()
  missing = max(0.0, _LEAST_RANGE - (high - low)) / 2
  axes.set_ylim(low - missing, high + missing)
  axes.grid(alpha=0.25)


def _spread(rows: Sequence[HeadRow]) -> str | None:
  """What the bars are; None where there are none."""
  draws = 1 + max(row.draw for row in rows)
  return f"mean ± sd of {draws} draws" if draws > 1 else None
