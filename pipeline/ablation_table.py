"""The rows of an ablation, as a table and as a picture."""

import dataclasses
import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from linear_dp.accounting import printable
from linear_dp.plan import NOT_PRIVATE
from pipeline import report
from pipeline.results import SweepRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(SweepRow):
  """One head of an ablation; the columns of results.csv, in this order.

  Attributes:
    axis: what is changed from the paper's step; "base" where nothing is.
    setting: to what.
    cache: place of the training cache among those given.
    epsilon_if_poisson: where each row is in one batch of an epoch: the ε that
      accounting for such batches as Poisson samples, as the paper does, would
      state; not proven.
  """

  axis: str
  setting: str
  cache: int
  epsilon_if_poisson: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Line:
  axis: str
  setting: str
  private: list[float]
  exact: float | None
  epsilon_if_poisson: float | None


def ablation_table(rows: Sequence[AblationRow]) -> str:
  """One line per setting: top-1 with spread, and what the change brought."""
  lines = _lines(rows)
  base = lines[0]
  width = max(len(line.setting) for line in lines)
  exact = base.exact is not None
  epsilon = printable(min(row.epsilon for row in rows))
  head = f"{'':<10}  {'':<{width}}  {f'epsilon {epsilon}':>14}  {'change':>7}"
  table = [head + (f"  {'no noise':>8}  {'change':>7}" if exact else "")]
  for line in lines:
    mean = statistics.mean(line.private)
    change = mean - statistics.mean(base.private)
    text = f"{line.axis:<10}  {line.setting:<{width}}"
    text += f"  {_spread(line.private):>14}  {change:>+7.2f}"
    if exact and line.exact is not None and base.exact is not None:
      text += f"  {line.exact:>8.2f}  {line.exact - base.exact:>+7.2f}"
    if line.epsilon_if_poisson is not None:
      nominal = printable(line.epsilon_if_poisson)
      text += f"  (epsilon {nominal}, not proven, as the paper accounts)"
    table.append(text)
  first = rows[0]
  table.append(
    "top-1 in %; all private heads together: epsilon ="
    f" {printable(first.composed_epsilon)} at delta = {printable(first.delta)};"
    f" trained on {first.num_examples:,}, evaluated on"
    f" {first.num_eval_examples:,} examples ({first.evaluation})"
  )
  if exact:
    table.append(f"the column without noise is {NOT_PRIVATE}")
  if not all(row.private for row in rows if math.isfinite(row.epsilon)):
    table.append(f"the noise comes from a seed: all of it is {NOT_PRIVATE}")
  return "\n".join(table)


def plot_ablation(
  rows: Sequence[AblationRow], dataset: str, directory: Path
) -> None:
  """A bar for each setting, and a mark for it without noise."""
  lines = _lines(rows)
  figure = Figure(figsize=(7, 1.2 + 0.3 * len(lines)), layout="constrained")
  axes = figure.subplots()
  places = range(len(lines))
  several = any(len(line.private) > 1 for line in lines)
  axes.barh(
    places,
    [statistics.mean(line.private) for line in lines],
    xerr=[statistics.stdev(line.private) for line in lines]
    if several
    else None,
    color=[
      "#0072B2" if line.axis == lines[0].axis else "#56B4E9" for line in lines
    ],
    capsize=3,
    label=f"epsilon {printable(min(row.epsilon for row in rows))}",
  )
  exact = [(line.exact, i) for i, line in enumerate(lines)]
  known = [(value, i) for value, i in exact if value is not None]
  if known:
    axes.plot(
      *zip(*known, strict=True),
      color=report.GREY,
      marker="d",
      linestyle="none",
      clip_on=False,
      label=f"no noise ({NOT_PRIVATE})",
    )
  labels = [f"{line.axis}: {line.setting}" for line in lines]
  axes.set_yticks(places, [textwrap.fill(label, 48) for label in labels])
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_xlabel(f"top-1 accuracy, % (delta = {printable(rows[0].delta)})")
  seeded = any(
    NOT_PRIVATE in row.noise_source for row in rows if row.noise_multiplier
  )
  axes.set_title(
    f"One thing changed at a time, {dataset}"
    + (f"\nseeded noise: {NOT_PRIVATE}" if seeded else "")
  )
  axes.grid(axis="x", alpha=0.25)
  figure.legend(frameon=False, loc="outside lower center", ncols=2)
  report.save(figure, directory, "ablation")


def _lines(rows: Sequence[AblationRow]) -> list[_Line]:
  groups: dict[tuple[str, str], list[AblationRow]] = {}
  for row in rows:
    groups.setdefault((row.axis, row.setting), []).append(row)
  lines = []
  for (axis, setting), group in groups.items():
    exact = [100 * row.top1 for row in group if math.isinf(row.epsilon)]
    noisy = [row for row in group if math.isfinite(row.epsilon)]
    lines.append(
      _Line(
        axis=axis,
        setting=setting,
        private=[100 * row.top1 for row in noisy],
        exact=exact[0] if exact else None,
        epsilon_if_poisson=noisy[0].epsilon_if_poisson,
      )
    )
  return lines


def _spread(values: Sequence[float]) -> str:
  spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
  return f"{statistics.mean(values):.2f}{spread}"
