"""The rows of a sweep or comparison, as files and as tables."""

import csv
import dataclasses
import json
import math
import operator
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from oneshot_dp.configs.head_config import called
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE, ReleasePlan
from oneshot_dp.pipeline.runs.text_table import text_table


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRow:
  """One head of a run; the columns of results.csv, in this order.

  Attributes:
    epsilon, delta: the guarantee of this head alone; infinity without privacy.
    noise_multiplier: σ; 0 without privacy.
    top1, top5: accuracies on the evaluation cache, fractions.
    balanced: the mean over classes of their top-1; None of noisy counts.
    composed_epsilon: ε, at delta, of all private heads of the run together.
    num_examples, num_eval_examples: rows trained and evaluated on.
    evaluation: whether the accuracies are exact or noisy, and what they cost.
    path: the head's directory, inside the run's.
    recall: top-1 of each class, in their order; None of noisy counts.
  """

  epsilon: float
  delta: float
  draw: int
  head: str
  noise_multiplier: float
  top1: float
  top5: float
  balanced: float | None = None
  composed_epsilon: float
  num_examples: int
  num_eval_examples: int
  evaluation: str
  release: str
  noise_source: str
  private: bool
  path: str
  recall: Sequence[float | None] | None = None


_Row = TypeVar("_Row", bound=SweepRow)


def grouped(rows: Iterable[_Row], *fields: str) -> dict[Any, list[_Row]]:
  """Rows that agree in these fields, in the order that groups first come."""
  key, groups = operator.attrgetter(*fields), defaultdict(list)
  for row in rows:
    groups[key(row)].append(row)
  return groups


def with_noise(rows: Iterable[_Row]) -> list[_Row]:
  """The heads with an epsilon; private, unless the noise has a seed."""
  return [row for row in rows if math.isfinite(row.epsilon)]


def mean_top1(rows: Sequence[SweepRow]) -> float:
  """The mean over draws; a fraction."""
  return statistics.mean(row.top1 for row in rows)


def mean_top5(rows: Sequence[SweepRow]) -> float:
  """The same of the first five answers."""
  return statistics.mean(row.top5 for row in rows)


def mean_balanced(rows: Sequence[SweepRow]) -> float | None:
  """The same of balanced accuracy; None where it was not paid for."""
  found = [row.balanced for row in rows if row.balanced is not None]
  return statistics.mean(found) if found else None


def spread_top1(rows: Sequence[SweepRow]) -> float | None:
  """The standard deviation over draws; None where there is one draw."""
  return statistics.stdev(row.top1 for row in rows) if len(rows) > 1 else None


def top1_cell(rows: Sequence[SweepRow]) -> str:
  """Mean over draws, in %, with the standard deviation."""
  percent = [100 * row.top1 for row in rows]
  spread = f" ± {statistics.stdev(percent):.2f}" if len(rows) > 1 else ""
  return f"{statistics.mean(percent):.2f}{spread}"


def mark(rows: Iterable[SweepRow]) -> str:
  """What stands behind rows of which one holds no promise."""
  return "" if all(row.private for row in rows) else NOT_PRIVATE


def epsilon_table(
  lines: Iterable[tuple[str, Sequence[SweepRow], str]], footer: str
) -> str:
  """Top-1 in a column for each epsilon; a line has a name, rows, and a note."""
  names, groups, notes = zip(*lines, strict=True)
  epsilons = sorted({r.epsilon for rows in groups for r in with_noise(rows)})
  cells = []
  for name, rows in zip(names, groups, strict=True):
    of_epsilon = grouped(rows, "epsilon")
    found = (e for e in (*epsilons, math.inf) if e in of_epsilon)
    cells.append([name, *(top1_cell(of_epsilon[e]) for e in found)])
  titles = (f"epsilon {printable(epsilon)}" for epsilon in epsilons)
  header = ["top-1 %", *(f"{title:>13}" for title in titles)]
  return "\n".join([*text_table(header, cells, notes), footer])


def accuracy_table(rows: Sequence[SweepRow]) -> str:
  """One line per epsilon: noise, top-1 with spread, top-5, balanced."""
  groups = sorted(grouped(rows, "epsilon").items())
  lines = text_table(
    [
      f"{'epsilon':>9}",
      f"{'sigma':>9}",
      f"{'top-1 %':>15}",
      "top-5 %",
      "balanced %",
      "draws",
    ],
    [
      [
        printable(epsilon),
        f"{group[0].noise_multiplier:.4f}",
        top1_cell(group),
        f"{100 * mean_top5(group):.2f}",
        "-" if (mean := mean_balanced(group)) is None else f"{100 * mean:.2f}",
        str(len(group)),
      ]
      for epsilon, group in groups
    ],
    [mark(group) for _, group in groups],
    num_keys=0,
  )
  return "\n".join([*lines, _footer(rows[0], f"{rows[0].release} releases")])


def comparison_table(rows: Sequence[SweepRow]) -> str:
  """One line per method, one column per epsilon; no noise, one accuracy."""
  releases = "; ".join(
    f"{order}: {', '.join(map(called, grouped(group, 'head')))}"
    for order, group in grouped(with_noise(rows), "release").items()
  )
  lines = [
    (
      called(method),
      group,
      mark(group) + ("" if with_noise(group) else ": no noise"),
    )
    for method, group in grouped(rows, "head").items()
  ]
  return epsilon_table(lines, _footer(rows[0], releases))


def _footer(first: SweepRow, releases: str) -> str:
  """What everything cost together."""
  return (
    "all private heads together: epsilon ="
    f" {printable(first.composed_epsilon)} at delta = {printable(first.delta)}"
    f" ({releases}); trained on {first.num_examples:,}, evaluated on"
    f" {first.num_eval_examples:,} examples ({first.evaluation})"
  )


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
  evaluation: Mapping[str, Any],
) -> None:
  """Writes results.csv and results.json; accuracies are fractions.

  In the CSV the recalls of classes are one cell, with spaces between.
  """
  with (directory / "results.csv").open(
    "w", newline="", encoding="utf-8"
  ) as file:
    columns = [field.name for field in dataclasses.fields(rows[0])]
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
      dataclasses.asdict(row) | {"recall": _recall_cell(row)} for row in rows
    )
  heads = [
    dataclasses.asdict(row)
    # JSON has no infinity.
    | ({"epsilon": "inf"} if math.isinf(row.epsilon) else {})
    for row in rows
  ]
  results = {**cost, "evaluation": evaluation, "heads": heads}
  (directory / "results.json").write_text(as_json(results), "utf-8")


def _recall_cell(row: SweepRow) -> str:
  return " ".join(
    "-" if share is None else f"{share:.6g}" for share in row.recall or ()
  )


def as_json(value: dict[str, Any]) -> str:
  """Indented JSON, with a line break at the end; refuses NaN and infinity."""
  return json.dumps(value, indent=2, allow_nan=False) + "\n"
