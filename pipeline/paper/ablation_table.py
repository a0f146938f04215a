"""The rows of an ablation, as a table."""

import dataclasses
import math
import statistics
from collections.abc import Sequence

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.text_table import text_table


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
class Line:
  """One setting: its accuracies in %, over draws, and without noise."""

  axis: str
  setting: str
  private: list[float]
  exact: float | None
  epsilon_if_poisson: float | None


def ablation_table(rows: Sequence[AblationRow]) -> str:
  """One line per setting: top-1 with spread, and what the change brought."""
  lines = lines_of(rows)
  base = lines[0]
  exact = base.exact is not None
  epsilon = printable(min(row.epsilon for row in rows))
  change = f"{'change':>7}"
  header = [" " * 10, "", f"{f'epsilon {epsilon}':>14}", change]
  table = text_table(
    [*header, "no noise", change] if exact else header,
    [_cells(line, base) for line in lines],
    [_note(line) for line in lines],
    num_keys=2,
  )
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


def _cells(line: Line, base: Line) -> list[str]:
  change = statistics.mean(line.private) - statistics.mean(base.private)
  cells = [line.axis, line.setting, _spread(line.private), f"{change:+.2f}"]
  if line.exact is not None and base.exact is not None:
    cells += [f"{line.exact:.2f}", f"{line.exact - base.exact:+.2f}"]
  return cells


def _note(line: Line) -> str:
  if line.epsilon_if_poisson is None:
    return ""
  nominal = printable(line.epsilon_if_poisson)
  return f"(epsilon {nominal}, not proven, as the paper accounts)"


def lines_of(rows: Sequence[AblationRow]) -> list[Line]:
  """The settings, in the order that they first come."""
  groups: dict[tuple[str, str], list[AblationRow]] = {}
  for row in rows:
    groups.setdefault((row.axis, row.setting), []).append(row)
  lines = []
  for (axis, setting), group in groups.items():
    exact = [100 * row.top1 for row in group if math.isinf(row.epsilon)]
    noisy = [row for row in group if math.isfinite(row.epsilon)]
    lines.append(
      Line(
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
