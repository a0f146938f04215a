"""What a run leaves behind: results.csv, results.json, and its table.

With a head in it that is NOT PRIVATE (a baseline, or seeded noise) all files of
a run have mode 0600, and their folders 0700. Nothing in them is a time, or a
number of private rows.
"""

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.pipeline.heads.receipt import NOT_PRIVATE

FORMAT = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRow:
  """One head of a run; but for `recall` the columns of results.csv.

  Attributes:
    path: the head's folder, inside the run's.
    epsilon, delta: the guarantee of this head alone; infinity without noise.
    noise_multiplier: σ of all its releases together; 0 without noise.
    top1, top5, balanced: accuracies on the test set, fractions; None where
      they were not paid for.
    recall: top-1 of each class, in their order; None of a class without rows.
  """

  path: str
  head: str
  epsilon: float
  delta: float
  draw: int
  private: bool
  noise_source: str
  noise_multiplier: float
  top1: float
  top5: float | None = None
  balanced: float | None = None
  recall: Sequence[float | None] | None = None


def head_name(head: str, epsilon: float, draw: int) -> str:
  """The folder of a head, by which it differs from its neighbours.

  >>> head_name("auto", 0.5, 0), head_name("lamb", math.inf, 0)
  ('auto-epsilon-0.5-draw-0', 'lamb-baseline-NOT-PRIVATE')
  """
  if math.isinf(epsilon):
    return f"{head}-baseline-{NOT_PRIVATE.replace(' ', '-')}"
  # All digits: two epsilons that look alike are two heads.
  return f"{head}-epsilon-{str(epsilon).removesuffix('.0')}-draw-{draw}"


def files_of(
  rows: Sequence[HeadRow], facts: Mapping[str, Any]
) -> dict[str, bytes]:
  """results.csv and results.json; `facts` are about the whole run.

  Accuracies are fractions. JSON has no infinity: there epsilon is "inf".
  """
  heads: list[dict[str, Any]] = [dataclasses.asdict(row) for row in rows]
  text = io.StringIO(newline="")
  columns = [name for name in heads[0] if name != "recall"]
  writer = csv.DictWriter(
    text, columns, lineterminator="\n", extrasaction="ignore"
  )
  writer.writeheader()
  writer.writerows(heads)
  for each in heads:
    each["epsilon"] = "inf" if math.isinf(each["epsilon"]) else each["epsilon"]
  return {
    "results.csv": text.getvalue().encode(),
    "results.json": as_json({"format": FORMAT, **facts, "heads": heads}),
  }


def as_json(value: Mapping[str, Any]) -> bytes:
  """Indented JSON, with a line break at the end; refuses NaN and infinity."""
  return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def grouped(rows: Iterable[HeadRow]) -> dict[tuple[str, float], list[HeadRow]]:
  """The draws of each head and epsilon, in the order that these first come."""
  groups: dict[tuple[str, float], list[HeadRow]] = {}
  for row in rows:
    groups.setdefault((row.head, row.epsilon), []).append(row)
  return groups


def table(rows: Sequence[HeadRow]) -> str:
  """One line for each head and epsilon, with the spread over its draws."""
  shares = {"top1": "top-1 %", "top5": "top-5 %", "balanced": "balanced %"}
  lines, marks = [["head", "epsilon", "sigma", *shares.values()]], [""]
  for (head, epsilon), draws in grouped(rows).items():
    found = ([getattr(row, name) for row in draws] for name in shares)
    cells = [percent([s for s in each if s is not None]) for each in found]
    shown = "none" if math.isinf(epsilon) else format_rounded_up(epsilon)
    lines.append([head, shown, f"{draws[0].noise_multiplier:.4g}", *cells])
    marks.append("" if draws[0].private else f"  {NOT_PRIVATE}")
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return "\n".join(
    "  ".join(map(str.rjust, line, widths)) + mark
    for line, mark in zip(lines, marks, strict=True)
  )


def percent(fractions: Sequence[float]) -> str:
  """Their mean in percent, with the standard deviation if there are several.

  >>> percent([0.5, 0.6]), percent([])
  ('55.00 ± 7.07', '-')
  """
  if not fractions:
    return "-"
  values = [100 * each for each in fractions]
  spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
  return f"{statistics.mean(values):.2f}{spread}"
