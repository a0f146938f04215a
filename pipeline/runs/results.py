"""The rows of a sweep or comparison, as files and as tables."""

import csv
import dataclasses
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE, ReleasePlan
from oneshot_dp.pipeline.runs.text_table import text_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow:
  """One head of a run; the columns of results.csv, in this order.

  Attributes:
    epsilon, delta: the guarantee of this head alone; infinity without privacy.
    draw: which independent draw of the noise.
    head: the method.
    noise_multiplier: σ; 0 without privacy.
    top1, top5: accuracies on the evaluation cache, fractions.
    composed_epsilon: ε, at delta, of all private heads of the run together.
    num_examples, num_eval_examples: rows trained and evaluated on.
    evaluation: whether the accuracies are exact or noisy, and what they cost.
    release: nested or independent.
    noise_source: where the noise came from.
    private: whether the guarantee holds.
    path: the head's directory, inside the run's.
  """

  epsilon: float
  delta: float
  draw: int
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
  groups = sorted(by_epsilon(rows).items())
  lines = text_table(
    [
      f"{'epsilon':>9}",
      f"{'sigma':>9}",
      f"{'top-1 %':>15}",
      "top-5 %",
      "draws",
    ],
    [
      [
        printable(epsilon),
        f"{group[0].noise_multiplier:.4f}",
        _top1(group),
        f"{100 * statistics.mean(row.top5 for row in group):.2f}",
        str(len(group)),
      ]
      for epsilon, group in groups
    ],
    [_mark(group) for _, group in groups],
    num_keys=0,
  )
  lines.append(_footer(rows[0], f"{rows[0].release} releases"))
  return "\n".join(lines)


def comparison_table(rows: Sequence[SweepRow]) -> str:
  """One line per method, one column per epsilon: top-1 with spread."""
  epsilons = sorted(e for e in by_epsilon(rows) if math.isfinite(e))
  lines, notes = [], []
  orders: dict[str, list[str]] = defaultdict(list)
  for method, of_method in by_method(rows).items():
    groups = by_epsilon(of_method)
    if math.inf in groups:
      lines.append([method, _top1(groups[math.inf])])
      notes.append(f"{NOT_PRIVATE}: no noise")
      continue
    lines.append([method, *(_top1(groups[epsilon]) for epsilon in epsilons)])
    notes.append(_mark(of_method))
    orders[of_method[0].release].append(method)
  releases = "; ".join(
    f"{order}: {', '.join(methods)}" for order, methods in orders.items()
  )
  table = text_table(_titles(epsilons), lines, notes)
  return "\n".join([*table, _footer(rows[0], releases)])


def figures_table(rows: Sequence[SweepRow]) -> str:
  """One line per delta and kind of labels, one column per epsilon."""
  private = [row for row in rows if math.isfinite(row.epsilon)]
  epsilons = sorted(by_epsilon(private))
  about: dict[tuple[str, str], list[SweepRow]] = defaultdict(list)
  for row in rows:
    delta = f"delta {printable(row.delta)}"
    without = math.isinf(row.epsilon)
    about["no noise" if without else delta, row.evaluation].append(row)
  lines, notes = [], []
  for (name, evaluation), group in about.items():
    groups = by_epsilon(group)
    found = (groups[e] for e in (*epsilons, math.inf) if e in groups)
    lines.append([name, *map(_top1, found)])
    labels = f"({evaluation}: {group[0].num_eval_examples:,} rows)"
    notes.append("  ".join(filter(None, [_mark(group), labels])))
  composed = {row.delta: row.composed_epsilon for row in rows}
  together = ", or ".join(
    f"epsilon = {printable(epsilon)} at delta = {printable(delta)}"
    for delta, epsilon in composed.items()
  )
  footer = (
    f"all private heads together: {together}; trained on"
    f" {rows[0].num_examples:,} examples"
  )
  return "\n".join([*text_table(_titles(epsilons), lines, notes), footer])


def _titles(epsilons: Sequence[float]) -> list[str]:
  """Titles of a table with a column for each epsilon."""
  named = (f"epsilon {printable(epsilon)}" for epsilon in epsilons)
  return ["top-1 %", *(f"{name:>13}" for name in named)]


def _mark(group: Sequence[SweepRow]) -> str:
  return "" if all(row.private for row in group) else NOT_PRIVATE


def _top1(group: Sequence[SweepRow]) -> str:
  """Mean over draws, in %, with the standard deviation."""
  top1 = [100 * row.top1 for row in group]
  spread = f" ± {statistics.stdev(top1):.2f}" if len(group) > 1 else ""
  return f"{statistics.mean(top1):.2f}{spread}"


def _footer(first: SweepRow, releases: str) -> str:
  """What everything cost together."""
  return (
    "all private heads together: epsilon ="
    f" {printable(first.composed_epsilon)} at delta = {printable(first.delta)}"
    f" ({releases}); trained on {first.num_examples:,}, evaluated on"
    f" {first.num_eval_examples:,} examples ({first.evaluation})"
  )


def by_epsilon(rows: Sequence[SweepRow]) -> dict[float, list[SweepRow]]:
  """Groups the heads of one epsilon, over draws."""
  groups = defaultdict(list)
  for row in rows:
    groups[row.epsilon].append(row)
  return groups


def by_method(rows: Sequence[SweepRow]) -> dict[str, list[SweepRow]]:
  """Groups the heads of one method, in the order that methods first come."""
  groups = defaultdict(list)
  for row in rows:
    groups[row.head].append(row)
  return groups


def cost_of(plan: ReleasePlan) -> dict[str, Any]:
  """What a plan cost, for results.json."""
  return {
    "delta": plan.delta,
    "composed_epsilon": plan.composed_epsilon,
    "release": plan.order,
    "noise_multipliers_charged": list(plan.charged_noise_multipliers),
  }


def write_tables(
  directory: Path,
  rows: Sequence[SweepRow],
  cost: Mapping[str, Any],
  evaluation: dict[str, Any],
) -> None:
  """Writes results.csv and results.json; accuracies are fractions.

  Args:
    directory: where.
    rows: the heads.
    cost: what all of them together cost; JSON.
    evaluation: what was released to score them; JSON.
  """
  with (directory / "results.csv").open("w", newline="") as file:
    columns = [field.name for field in dataclasses.fields(rows[0])]
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(dataclasses.asdict(row) for row in rows)
  results: dict[str, Any] = {
    **cost,
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
