"""The picture of a run: accuracy against epsilon, a line for each method."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from oneshot_dp.configs.head_config import called
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.runs.evaluation import PUBLIC_LABELS
from oneshot_dp.pipeline.runs.pictures import save_figure
from oneshot_dp.pipeline.runs.results import SweepRow, grouped, with_noise

_STYLES: tuple[dict[str, Any], ...] = (
  {"color": "#0072b2", "linestyle": "-", "marker": "o"},
  {"color": "#d55e00", "linestyle": "--", "marker": "s"},
  {"color": "#009e73", "linestyle": "-.", "marker": "^"},
  {"color": "#cc79a7", "linestyle": ":", "marker": "D"},
  {"color": "#000000", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
  {"color": "#56b4e9", "linestyle": (0, (8, 2)), "marker": "P"},
)
"""Told apart without colours, and the colours by whoever confuses some: those
of Okabe and Ito, 2008."""
GREY = "#6b6b6b"
_LEAST_RANGE = 5.0
"""Percentage points that the vertical axis shows at least."""


def plot_accuracy(
  rows: Sequence[SweepRow], dataset: str, directory: Path
) -> None:
  """Writes accuracy.png and accuracy.pdf: top-1 against epsilon.

  Lines are means, their bars one standard deviation over draws; dashed lines
  right across are heads without noise.
  """
  figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
  axes = figure.subplots()
  draw_accuracy(axes, rows, dataset)
  put_legend(
    figure,
    rows,
    last=lambda _, label: NOT_PRIVATE in label,
    loc="outside lower center",
    ncols=2,
  )
  save(figure, directory, "accuracy")


def draw_accuracy(axes: Axes, rows: Sequence[SweepRow], dataset: str) -> None:
  """All of `plot_accuracy` but the legend."""
  methods = grouped(with_noise(rows), "head")
  for i, (method, of_method) in enumerate(methods.items()):
    draw_line(axes, of_method, called(method), i, len(methods))
  draw_without_noise(axes, rows)
  axes.set_xlabel(f"epsilon of each head (delta = {printable(rows[0].delta)})")
  noisy = rows[0].evaluation != PUBLIC_LABELS
  axes.set_ylabel(
    "top-1 accuracy, %" + (f"\n({rows[0].evaluation})" if noisy else "")
  )
  set_out(axes, rows, dataset)


def draw_without_noise(
  axes: Axes, rows: Sequence[SweepRow], note: str = ""
) -> None:
  """A dashed line right across for each head that is not private."""
  for row in rows:
    if math.isinf(row.epsilon):
      axes.axhline(
        100 * row.top1,
        color=GREY,
        linestyle="--",
        label=f"{called(row.head)}, no noise{note} ({NOT_PRIVATE})",
      )


def set_out(
  axes: Axes,
  rows: Sequence[SweepRow],
  dataset: str,
  *,
  more_epsilons: Iterable[float] = (),
) -> None:
  """Title, grid and scales of drawn rows; ticks where there are points."""
  private = with_noise(rows)
  epsilons = sorted({row.epsilon for row in private} | set(more_epsilons))
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_locator(FixedLocator(epsilons))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.xaxis.set_major_formatter(FuncFormatter(lambda e, _: printable(e)))
  seeded = any(NOT_PRIVATE in row.noise_source for row in private)
  axes.set_title(
    f"Private heads on {dataset}"
    + (f" (seeded noise: {NOT_PRIVATE})" if seeded else "")
  )
  axes.set_ylim(wide_enough(*axes.get_ylim()))
  axes.grid(alpha=0.25)


def wide_enough(low: float, high: float) -> tuple[float, float]:
  """Limits of accuracies: never lets a tenth of a point fill the picture."""
  missing = max(0.0, _LEAST_RANGE - (high - low))
  return low - missing / 2, high + missing / 2


def spread(rows: Sequence[SweepRow]) -> str | None:
  """What the bars are, for the title of a legend."""
  draws = 1 + max((row.draw for row in with_noise(rows)), default=0)
  return f"mean ± sd of {draws} draws" if draws > 1 else None


def put_legend(
  figure: Figure,
  rows: Sequence[SweepRow],
  *,
  last: Callable[[Any, str], bool],
  **options: Any,
) -> None:
  """Puts a legend outside the axes; `last` says which entries are the last."""
  handles, labels = figure.axes[0].get_legend_handles_labels()
  entries = sorted(
    zip(handles, labels, strict=True), key=lambda entry: last(*entry)
  )
  figure.legend(
    *zip(*entries, strict=True),
    frameon=False,
    title=spread(rows),
    alignment="left",
    **options,
  )


def save(figure: Figure, directory: Path, name: str) -> None:
  """Writes name.png and name.pdf."""
  for suffix in ("png", "pdf"):
    # No time of creation: the same rows give the same file.
    metadata = {"CreationDate": None} if suffix == "pdf" else None
    save_figure(figure, directory / f"{name}.{suffix}", metadata=metadata)


def draw_line(
  axes: Axes, rows: Sequence[SweepRow], label: str, place: int, places: int
) -> None:
  """One line, a little beside the others, so that no bar hides another."""
  aside = 1.02 ** (place - (places - 1) / 2)
  groups = sorted(grouped(rows, "epsilon").items())
  top1 = [[100 * row.top1 for row in group] for _, group in groups]
  axes.errorbar(
    [epsilon * aside for epsilon, _ in groups],
    [statistics.mean(values) for values in top1],
    yerr=[statistics.stdev(v) if len(v) > 1 else 0.0 for v in top1]
    if spread(rows)
    else None,
    capsize=3,
    markersize=5,
    label=label,
    **_STYLES[place % len(_STYLES)],
  )
