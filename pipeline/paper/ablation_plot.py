"""The picture of an ablation: a bar for each setting."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.paper.ablation_table import AblationRow, lines_of
from oneshot_dp.pipeline.runs import accuracy_plot
from oneshot_dp.pipeline.runs.results import spread_top1, with_noise


def plot_ablation(
  rows: Sequence[AblationRow], dataset: str, directory: Path
) -> None:
  """A bar from the base to each setting, and a mark for it without noise."""
  lines = lines_of(rows)
  figure = Figure(figsize=(7, 1.2 + 0.3 * len(lines)), layout="constrained")
  axes = figure.subplots()
  places = range(len(lines))
  spreads = [spread_top1(line.private) for line in lines]
  base = lines[0].mean
  axes.axvline(base, color=accuracy_plot.GREY, linewidth=0.8, zorder=0)
  axes.barh(
    places,
    [line.mean - base for line in lines],
    left=base,
    xerr=None if None in spreads else 100 * np.array(spreads, float),
    color="#56B4E9",
    capsize=3,
    label=f"epsilon {printable(min(row.epsilon for row in rows))}",
  )
  known = [(x.exact, i) for i, x in enumerate(lines) if x.exact is not None]
  if known:
    axes.plot(
      *zip(*known, strict=True),
      color=accuracy_plot.GREY,
      marker="d",
      linestyle="none",
      clip_on=False,
      label=f"no noise ({NOT_PRIVATE})",
    )
  labels = [f"{line.axis}: {line.setting}" for line in lines]
  axes.set_yticks(places, [textwrap.fill(label, 48) for label in labels])
  axes.invert_yaxis()
  axes.margins(x=0.05)
  axes.set_xlim(accuracy_plot.wide_enough(*axes.get_xlim()))
  axes.set_xlabel(f"top-1 accuracy, % (delta = {printable(rows[0].delta)})")
  seeded = any(NOT_PRIVATE in row.noise_source for row in with_noise(rows))
  axes.set_title(
    f"One thing changed at a time, {dataset}"
    + (f"\nseeded noise: {NOT_PRIVATE}" if seeded else "")
  )
  axes.grid(axis="x", alpha=0.25)
  figure.legend(frameon=False, loc="outside lower center", ncols=2)
  accuracy_plot.save(figure, directory, "ablation")
