"""The rows of an ablation, as a table."""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.runs import results
from oneshot_dp.pipeline.runs.text_table import text_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class AblationRow(results.SweepRow):
  """One head of an ablation; the columns of results.csv, in this order.

  Attributes:
    axis, setting: what is changed from the paper's step ("base": nothing), and
      to what.
    cache: place of the training cache among those given.
    epsilon_if_poisson: where each row is in one batch of an epoch: the ε that
      accounting for such batches as Poisson samples, as the paper does, would
      state; not proven.
  """

  axis: str
  setting: str
  cache: int
  epsilon_if_poisson: float | None


class Line(NamedTuple):
  """One setting: its accuracies in %, over draws, and without noise."""

  axis: str
  setting: str
  private: list[AblationRow]
  exact: float | None

  @property
  def mean(self) -> float:
    """The mean accuracy over draws, in %."""
    return 100 * results.mean_top1(self.private)


def lines_of(rows: Sequence[AblationRow]) -> list[Line]:
  """The settings, in the order that they first come."""
  lines = []
  for (axis, setting), group in results.grouped(
    rows, "axis", "setting"
  ).items():
    exact = [100 * row.top1 for row in group if math.isinf(row.epsilon)]
    lines.append(
      Line(
        axis, setting, results.with_noise(group), exact[0] if exact else None
      )
    )
  return lines


def ablation_table(rows: Sequence[AblationRow]) -> str:
  """One line per setting: top-1 with spread, and what the change brought."""
  lines, first = lines_of(rows), rows[0]
  base = lines[0]
  epsilon = printable(min(row.epsilon for row in rows))
  change = f"{'change':>7}"
  header = [" " * 10, "", f"{f'epsilon {epsilon}':>14}", change]
  exact = ["no noise", change] if base.exact is not None else []
  table = text_table(
    [*header, *exact],
    [_cells(line, base) for line in lines],
    [_note(line) for line in lines],
    num_keys=2,
  )
  table.append(
    "top-1 in %; all private heads together: epsilon ="
    f" {printable(first.composed_epsilon)} at delta = {printable(first.delta)};"
    f" trained on {first.num_examples:,}, evaluated on"
    f" {first.num_eval_examples:,} examples ({first.evaluation})"
  )
  if exact:
    table.append(f"the column without noise is {NOT_PRIVATE}")
  if results.mark(results.with_noise(rows)):
    table.append(f"the noise comes from a seed: all of it is {NOT_PRIVATE}")
  return "\n".join(table)


def _cells(line: Line, base: Line) -> list[str]:
  change = f"{line.mean - base.mean:+.2f}"
  cells = [line.axis, line.setting, results.top1_cell(line.private), change]
  if line.exact is not None and base.exact is not None:
    cells += [f"{line.exact:.2f}", f"{line.exact - base.exact:+.2f}"]
  return cells


def _note(line: Line) -> str:
  epsilon = line.private[0].epsilon_if_poisson
  if epsilon is None:
    return ""
  return f"(epsilon {printable(epsilon)}, not proven, as the paper accounts)"
