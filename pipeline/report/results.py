"""The tables of a run: results.csv, results.json, and what a terminal shows.

Nothing in these files is a time, or a number of private rows. Where a head of
the run is NOT PRIVATE (a baseline, or seeded noise), whoever writes them gives
all files of the run mode 0600, and their folders 0700.
"""

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oneshot_dp.linear_dp.accounting import (
  format_rounded_down,
  format_rounded_up,
)
from oneshot_dp.linear_dp.evaluate import accuracy_interval
from oneshot_dp.pipeline.heads.receipt import NOT_PRIVATE

FORMAT = 1
MIN_CLASSES_FOR_TOP5 = 6
"""With fewer classes nearly every row has its label among the best five."""
NORMAL_95 = 1.959964
"""Standard deviations that a 95 % interval of Gaussian noise reaches out."""
_ARRAY_COLUMNS = ("recall", "confusion")
"""Fields of a `HeadRow` that results.csv leaves out."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadRow:
  """One head of a run: a line of results.csv, and an entry of results.json.

  Attributes:
    path: the head's folder, relative to the run's.
    head: the kind of head, such as "auto".
    epsilon: of the guarantee of this head alone; infinity without noise.
    delta: of the same guarantee.
    draw: which of several heads of one kind and ε, from 0.
    private: False for a baseline, and where the noise came from a seed.
    noise_source: in words, as the head's receipt states it.
    noise_multiplier: σ of all its releases together; 0 without noise.
    top1: accuracy on the test set, a fraction.
    top5: fraction of test rows whose label is among the five best classes; None
      where it was not paid for.
    balanced: mean of the recalls of all classes that have test rows; None where
      it was not paid for.
    recall: top-1 accuracy within each class, [K]; None for a class without test
      rows. None as a whole where it was not paid for.
    confusion: [K, K], how many test rows of each class (first index) were
      answered with each class (second). None where labels are private, and of
      many classes.
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
  confusion: Sequence[Sequence[int]] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSet:
  """The size and noise of a test set, from which intervals follow.

  Attributes:
    num_examples: rows that were scored; of noisy counts about how many.
    accuracy_sd: standard deviation of the noise on an accuracy, a fraction; 0
      where counts are exact.
  """

  num_examples: int
  accuracy_sd: float = 0.0


def head_name(head: str, epsilon: float, draw: int) -> str:
  """Names the folder of a head, so that no two heads of a run share one.

  >>> head_name("auto", 0.5, 0), head_name("lamb", math.inf, 0)
  ('auto-epsilon-0.5-draw-0', 'lamb-baseline-NOT-PRIVATE')

  Args:
    head: the kind of head.
    epsilon: of the head; infinity without noise.
    draw: which of several heads of one kind and ε, from 0.
  """
  if math.isinf(epsilon):
    return f"{head}-baseline-{NOT_PRIVATE.replace(' ', '-')}"
  # All digits: two epsilons that look alike are two heads.
  digits = str(epsilon).removesuffix(".0")
  return f"{head}-epsilon-{digits}-draw-{draw}"


def files_of(
  rows: Sequence[HeadRow], facts: Mapping[str, Any]
) -> dict[str, bytes]:
  """Makes results.csv and results.json.

  Args:
    rows: the heads of the run, in the order in which they are listed.
    facts: entries of results.json about the run as a whole.

  Returns:
    The content of each file by its name. Accuracies are fractions. JSON has no
    infinity, so the ε of a baseline is the string "inf" there.
  """
  heads = [dataclasses.asdict(row) for row in rows]
  return {
    "results.csv": _csv_of(heads),
    "results.json": _json_of(heads, facts),
  }


def _csv_of(heads: Sequence[Mapping[str, Any]]) -> bytes:
  columns = [name for name in heads[0] if name not in _ARRAY_COLUMNS]
  text = io.StringIO(newline="")
  writer = csv.DictWriter(
    text, columns, lineterminator="\n", extrasaction="ignore"
  )
  writer.writeheader()
  writer.writerows(heads)
  return text.getvalue().encode()


def _json_of(
  heads: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> bytes:
  # Python writes Infinity, which is no JSON: other programs could not read the
  # file of a run that has a baseline.
  plain_heads = []
  for head in heads:
    plain = dict(head)
    if math.isinf(plain["epsilon"]):
      plain["epsilon"] = "inf"
    plain_heads.append(plain)
  return as_json({"format": FORMAT, **facts, "heads": plain_heads})


def as_json(value: Mapping[str, Any]) -> bytes:
  """Encodes indented JSON that ends with a line break.

  Raises:
    ValueError: a number in it is NaN or infinite, which JSON has no word for.
  """
  return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def group_draws(
  rows: Iterable[HeadRow],
) -> dict[tuple[str, float], list[HeadRow]]:
  """Collects the draws of each kind of head and ε, in order of appearance.

  Args:
    rows: the heads of a run.

  Returns:
    (kind of head, ε) → its draws. A baseline has the ε infinity.
  """
  # ε as it was asked for is the key: draws of one request have the very same.
  groups: dict[tuple[str, float], list[HeadRow]] = {}
  for row in rows:
    groups.setdefault((row.head, row.epsilon), []).append(row)
  return groups


def accuracy_interval_95(
  accuracy: float, test: EvaluationSet
) -> tuple[float, float]:
  """The 95 % interval of an accuracy that was measured on a finite test set.

  Clopper and Pearson's exact interval, to which 1.96 standard deviations of the
  noise are added at both ends where the accuracy is a noisy count.

  Args:
    accuracy: a fraction; of several draws their mean.
    test: how many rows it was measured on, and with how much noise.

  Returns:
    The ends of the interval, within [0, 1].
  """
  # A noisy count was clipped already; a mean of draws may be off by rounding.
  share = min(max(accuracy, 0.0), 1.0)
  low, high = accuracy_interval(share, test.num_examples)
  noise = NORMAL_95 * test.accuracy_sd
  return max(0.0, low - noise), min(1.0, high + noise)


def shows_top5(num_classes: int) -> bool:
  """Whether top-5 accuracy tells anything about so many classes."""
  return num_classes >= MIN_CLASSES_FOR_TOP5


def informative_top5(top5: float | None, num_classes: int) -> float | None:
  """A top-5 accuracy; None where all heads have 100 %, whatever they learned.

  Args:
    top5: a fraction, or None where none was measured.
    num_classes: K.
  """
  if shows_top5(num_classes):
    return top5
  return None


def table(
  rows: Sequence[HeadRow],
  test: EvaluationSet,
  num_classes: int,
) -> str:
  """Formats the results for a terminal: one line for each head and ε.

  Args:
    rows: the heads; draws of one kind and ε share a line, as mean ± standard
      deviation.
    test: what they were scored on.
    num_classes: K; top-5 accuracy is left out where it tells nothing.
  """
  # Columns that tell nothing are left out; a head that is NOT PRIVATE says so
  # at the end of its line, where no table can cut it off from its numbers.
  header = ["head", "epsilon", "sigma", "top-1 %", "95 % interval"]
  # Noisy counts have top-1 alone.
  has_balanced = any(row.balanced is not None for row in rows)
  has_top5 = shows_top5(num_classes) and any(
    row.top5 is not None for row in rows
  )
  if has_top5:
    header.append("top-5 %")
  if has_balanced:
    header.append("balanced %")
  lines = [header]
  marks = [""]
  for (head, epsilon), draws in group_draws(rows).items():
    shown_epsilon = "none"
    if math.isfinite(epsilon):
      shown_epsilon = format_rounded_up(epsilon)
    top1 = [row.top1 for row in draws]
    interval = accuracy_interval_95(statistics.mean(top1), test)
    cells = [
      head,
      shown_epsilon,
      format_rounded_down(draws[0].noise_multiplier),
      percent(top1),
      format_interval(interval),
    ]
    if has_top5:
      cells.append(percent([row.top5 for row in draws]))
    if has_balanced:
      cells.append(percent([row.balanced for row in draws]))
    lines.append(cells)
    marks.append("" if draws[0].private else f"  {NOT_PRIVATE}")
  return _aligned(lines, marks)


def _aligned(lines: Sequence[Sequence[str]], marks: Sequence[str]) -> str:
  """Right-aligns the columns, and puts a mark behind each line."""
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  shown = []
  for cells, mark in zip(lines, marks, strict=True):
    padded = [
      cell.rjust(width) for cell, width in zip(cells, widths, strict=True)
    ]
    shown.append("  ".join(padded) + mark)
  return "\n".join(shown)


def percent(fractions: Iterable[float | None]) -> str:
  """Formats a mean in percent, with the standard deviation of several values.

  None stands for what was not measured, and does not count.

  >>> percent([0.5, 0.6]), percent([None])
  ('55.00 ± 7.07', '-')
  """
  values = [100 * share for share in fractions if share is not None]
  if not values:
    return "-"
  mean = f"{statistics.mean(values):.2f}"
  if len(values) == 1:
    return mean
  return f"{mean} ± {statistics.stdev(values):.2f}"


def format_interval(interval: tuple[float, float]) -> str:
  """An interval of fractions, in percent.

  >>> format_interval((0.8797, 0.9179))
  '88.0–91.8'
  """
  low, high = interval
  return f"{100 * low:.1f}–{100 * high:.1f}"
