"""The rows of a sweep, as files and as a table."""

import csv
import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linear_dp.accounting import printable
from linear_dp.release import NOT_PRIVATE, ReleasePlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow:
  """One head of a sweep; the columns of results.csv, in this order.

  Attributes:
    epsilon, delta: the guarantee of this head alone; infinity without privacy.
    seed: which independent draw of the noise.
    head: the optimizer.
    noise_multiplier: σ; 0 without privacy.
    top1, top5: accuracies on the evaluation cache, fractions.
    composed_epsilon: ε, at delta, of all private heads of the sweep together.
    num_examples, num_eval_examples: rows trained and evaluated on.
    evaluation: whether the accuracies are exact or noisy, and what they cost.
    release: nested or independent.
    noise_source: where the noise came from.
    private: whether the guarantee holds.
    path: the head's directory, inside the sweep's.
  """

  epsilon: float
  delta: float
  seed: int
  head: str
  noise_multiplier: float
  top1: float
  top5: float
  composed_epsilon: float
  num_examples: int
  num_eval_examples: int
  evaluation: str
  release: str
  noise_source: str
  private: bool
  path: str


def accuracy_table(rows: Sequence[SweepRow]) -> str:
  """One line per epsilon: noise multiplier, top-1 with spread, top-5."""
  lines = [
    f"{'epsilon':>9}  {'sigma':>9}  {'top-1 %':>15}  {'top-5 %':>8}  seeds"
  ]
  for epsilon, group in sorted(by_epsilon(rows).items()):
    top1 = [100 * row.top1 for row in group]
    spread = f" ± {statistics.stdev(top1):.2f}" if len(group) > 1 else ""
    mark = "" if all(row.private for row in group) else f"  {NOT_PRIVATE}"
    lines.append(
      f"{printable(epsilon):>9}  {group[0].noise_multiplier:>9.4f}"
      f"  {f'{statistics.mean(top1):.2f}{spread}':>15}"
      f"  {100 * statistics.mean(row.top5 for row in group):>8.2f}"
      f"  {len(group):>5}{mark}"
    )
  first = rows[0]
  together = printable(first.composed_epsilon)
  lines.append(
    f"all private heads together: epsilon = {together} at"
    f" delta = {printable(first.delta)} ({first.release} releases); trained on"
    f" {first.num_examples:,}, evaluated on {first.num_eval_examples:,}"
    f" examples ({first.evaluation})"
  )
  return "\n".join(lines)


def by_epsilon(rows: Sequence[SweepRow]) -> dict[float, list[SweepRow]]:
  """Groups the heads of one epsilon, over seeds."""
  groups = defaultdict(list)
  for row in rows:
    groups[row.epsilon].append(row)
  return groups


def write_tables(
  directory: Path,
  rows: list[SweepRow],
  plan: ReleasePlan,
  evaluation: dict[str, Any],
) -> None:
  """Writes results.csv and results.json; accuracies are fractions.

  Args:
    directory: where.
    rows: the heads.
    plan: what was released to make them.
    evaluation: what was released to score them; JSON.
  """
  with (directory / "results.csv").open("w", newline="") as file:
    columns = [field.name for field in dataclasses.fields(SweepRow)]
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
  results: dict[str, Any] = {
    "delta": plan.delta,
    "composed_epsilon": plan.composed_epsilon,
    "release": plan.order,
    "noise_multipliers_charged": list(plan.charged_noise_multipliers),
    "evaluation": evaluation,
    "heads": [
      dataclasses.asdict(row)
      # JSON has no infinity.
      | ({"epsilon": "inf"} if math.isinf(row.epsilon) else {})
      for row in rows
    ],
  }
  (directory / "results.json").write_text(as_json(results))


def as_json(value: dict[str, Any]) -> str:
  """Indented JSON, with a line break at the end; refuses NaN and infinity."""
  return json.dumps(value, indent=2, allow_nan=False) + "\n"
