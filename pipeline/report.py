"""The picture of a sweep: accuracy against epsilon."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from linear_dp.accounting import printable
from linear_dp.release import NOT_PRIVATE
from pipeline.evaluation import PUBLIC_LABELS
from pipeline.results import SweepRow, by_epsilon

_BLUE, _GREY = "#1f5fa8", "#6b6b6b"
_LEAST_RANGE = 5.0
"""Percentage points that the vertical axis shows at least."""


def plot_accuracy(
  rows: Sequence[SweepRow], dataset: str, directory: Path
) -> None:
  """Writes accuracy.png and accuracy.pdf: top-1 against epsilon.

  Points are single heads, the line their mean, the band one standard deviation
  over seeds; the dashed line is the head without noise.

  Args:
    rows: the sweep.
    dataset: public name, for the title.
    directory: where the two files go.
  """
  groups = sorted(by_epsilon(rows).items())
  finite = [(e, g) for e, g in groups if e != float("inf")]
  epsilons = [e for e, _ in finite]
  means = [100 * statistics.mean(r.top1 for r in g) for _, g in finite]
  spreads = [
    100 * statistics.stdev([r.top1 for r in g]) if len(g) > 1 else 0.0
    for _, g in finite
  ]

  figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
  axes = figure.subplots()
  axes.fill_between(
    epsilons,
    [m - s for m, s in zip(means, spreads, strict=True)],
    [m + s for m, s in zip(means, spreads, strict=True)],
    color=_BLUE,
    alpha=0.18,
    linewidth=0,
    label="± 1 standard deviation over seeds" if any(spreads) else None,
  )
  axes.plot(
    epsilons, means, color=_BLUE, marker="o", label=f"{rows[0].head}, mean"
  )
  axes.plot(
    [r.epsilon for _, g in finite for r in g],
    [100 * r.top1 for _, g in finite for r in g],
    color=_BLUE,
    linestyle="none",
    marker=".",
    markersize=4,
    alpha=0.5,
  )
  for row in rows:
    if row.epsilon == float("inf"):
      axes.axhline(
        100 * row.top1,
        color=_GREY,
        linestyle="--",
        label=f"no noise ({NOT_PRIVATE})",
      )
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_locator(FixedLocator(epsilons))
  axes.xaxis.set_minor_locator(NullLocator())
  axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
  axes.set_xlabel(f"epsilon of each head (delta = {printable(rows[0].delta)})")
  noisy = rows[0].evaluation != PUBLIC_LABELS
  axes.set_ylabel(
    "top-1 accuracy, %" + (f"\n({rows[0].evaluation})" if noisy else "")
  )
  seeded = any("NOT PRIVATE" in r.noise_source for _, g in finite for r in g)
  axes.set_title(
    f"One-step private heads on {dataset}"
    + (f" (seeded noise: {NOT_PRIVATE})" if seeded else "")
  )
  # A tenth of a point is noise: never let it fill the picture.
  low, high = axes.get_ylim()
  missing = max(0.0, _LEAST_RANGE - (high - low))
  axes.set_ylim(low - missing / 2, high + missing / 2)
  axes.grid(alpha=0.25)
  axes.legend(frameon=False)
  for suffix in ("png", "pdf"):
    # No time of creation: the same rows give the same file.
    metadata = {"CreationDate": None} if suffix == "pdf" else None
    figure.savefig(directory / f"accuracy.{suffix}", metadata=metadata)
