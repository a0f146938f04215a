"""Writes the files of a sweep beside its heads: tables, pictures and page."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.evaluate import Accuracy
from oneshot_dp.linear_dp.train import TrainedHead
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.report import results
from oneshot_dp.pipeline.report.accuracy_plot import pictures_of
from oneshot_dp.pipeline.report.page import write_report
from oneshot_dp.pipeline.report.rehearsal import (
  PlannedHead,
  PlannedRun,
  rehearse_report,
)
from oneshot_dp.pipeline.report.results import (
  NOT_PRIVATE,
  EvaluationSet,
  HeadRow,
  informative_top5,
)
from oneshot_dp.pipeline.runs.eval_rows import EvalRows, Scores
from oneshot_dp.pipeline.runs.plan import Plan


def write_sweep_files(
  plan: Plan, folder: Path, heads: Sequence[TrainedHead], scores: Scores
) -> Answer:
  """Writes all files of a sweep but its heads.

  Args:
    plan: what was asked for, and what it cost.
    folder: the folder of the run, which has the heads.
    heads: the heads.
    scores: their accuracies, in the same order.

  Returns:
    The answer of `sweep`.
  """
  info = plan.train.cache.info
  rows = []
  for trained, accuracy in zip(heads, scores.accuracies, strict=True):
    rows.append(_row_of(plan, trained, accuracy))
  facts = _facts_of(plan, scores)
  # Intervals are of the test set, and of the noise on its counts if there is
  # any.
  test = EvaluationSet(
    num_examples=scores.facts["num_examples"],
    accuracy_sd=scores.facts.get("accuracy_sd", 0.0),
  )
  how = _how_scored(plan)
  files = {
    **results.files_of(rows, facts),
    "config.json": results.as_json(plan.settings()),
    **pictures_of(rows, info.dataset, how, test),
  }
  for name, content in files.items():
    (folder / name).write_bytes(content)
  # From the files that were just written, and checked as if they came from
  # anybody: a page that could not be made of them later is an error now.
  write_report(folder)
  lines = [
    results.table(rows, test, info.num_classes),
    f"{_guarantee_of(plan)}; scored on {test.num_examples:,} rows ({how})",
  ]
  counts = scores.facts.get("class_rows") or ()
  num_empty = sum(count == 0 for count in counts)
  if num_empty:
    lines.append(
      f"no test rows: {num_empty} of {len(counts)} classes; `balanced` is the"
      " mean of the others"
    )
  lines.append(f"{plan.request.out}: see report.html and results.csv")
  return Answer(
    text="\n".join(lines),
    facts={
      "out": plan.request.out,
      **facts,
      "heads": [_with_interval(row, test) for row in rows],
    },
  )


def _with_interval(
  row: results.HeadRow, test: results.EvaluationSet
) -> dict[str, Any]:
  """A head as `--json` has it; of results.json readers compute the interval."""
  interval = results.accuracy_interval_95(row.top1, test)
  return {**dataclasses.asdict(row), "top1_interval_95": list(interval)}


def rehearse_sweep_files(plan: Plan, eval_rows: EvalRows) -> None:
  """Makes all files of a sweep of placeholder accuracies, and drops them.

  It comes before the charge: whatever cannot be drawn or written out must not
  cost a budget.

  Args:
    plan: the run; only public facts of it are read.
    eval_rows: what the heads are to be scored on; not read.

  Raises:
    InputError: something of the run cannot be shown.
  """
  # The heads, names and numbers of the run, all known before it is charged;
  # only the accuracies are made up.
  heads = []
  for job in plan.jobs:
    if job.draw is None:
      heads.append(PlannedHead(job.head, math.inf, 0))
      continue
    for epsilon in sorted(plan.request.epsilons):
      heads.append(PlannedHead(job.head, epsilon, job.draw))
  cache = eval_rows.role.cache
  # What `EvalRows` will state of its scores, as far as it is known.
  evaluation: dict[str, Any] = {
    "labels": eval_rows.role.role,
    "dataset": cache.info.dataset,
    "split": cache.info.split,
    "rows": str(cache.part),
    "num_examples": max(1, cache.n),
  }
  if eval_rows.budget is not None:
    evaluation |= {
      "private": plan.source.is_private,
      "epsilon": eval_rows.budget.epsilon,
      "delta": eval_rows.budget.delta,
      "accuracy_sd": 0.01,
    }
  rehearse_report(
    PlannedRun(
      heads=heads,
      info=plan.train.cache.info,
      part=plan.train.cache.part,
      delta=plan.request.delta,
      private=plan.source.is_private,
      noise_source=plan.source.description,
      evaluation=evaluation,
      how=_how_scored(plan),
    )
  )


def _row_of(plan: Plan, trained: TrainedHead, accuracy: Accuracy) -> HeadRow:
  num_classes = plan.train.cache.info.num_classes
  epsilon = math.inf if trained.epsilon is None else trained.epsilon
  # σ of all releases together, which is what heads can be compared by: `auto`
  # has dozens, a single step has one.
  noise_multiplier = 0.0
  if trained.mu_squared:
    noise_multiplier = trained.mu_squared**-0.5
  return HeadRow(
    path=plan.path_of_head(trained),
    head=trained.name,
    epsilon=epsilon,
    delta=plan.request.delta,
    draw=trained.draw,
    private=trained.private,
    noise_source=trained.noise_source,
    noise_multiplier=noise_multiplier,
    top1=accuracy.top1,
    top5=informative_top5(accuracy.top5, num_classes),
    balanced=accuracy.balanced,
    recall=accuracy.recall,
    confusion=accuracy.confusion,
  )


def _facts_of(plan: Plan, scores: Scores) -> dict[str, Any]:
  """Entries of results.json about the run as a whole."""
  info = plan.train.cache.info
  evaluation = dict(scores.facts)
  test_counts = evaluation.pop("class_rows", None)
  return {
    "dataset": info.dataset,
    "split": info.split,
    "class_names": info.class_names,
    "rows": str(plan.train.cache.part),
    "num_examples": plan.train.cache.n,
    "privacy_unit": info.unit,
    "delta": plan.request.delta,
    "epsilon": plan.epsilon if plan.source.is_private else None,
    "test_counts": test_counts,
    "evaluation": evaluation,
  }


def _how_scored(plan: Plan) -> str:
  eval_rows = plan.eval_rows
  if eval_rows is None or eval_rows.budget is None:
    return "labels treated as public"
  epsilon = format_rounded_up(eval_rows.budget.epsilon)
  text = f"noisy counts at epsilon = {epsilon}"
  if not plan.source.is_private:
    text += f", {NOT_PRIVATE}"
  return text


def _guarantee_of(plan: Plan) -> str:
  if not plan.source.is_private:
    return f"seeded noise: {NOT_PRIVATE}"
  epsilon = format_rounded_up(plan.epsilon)
  delta = format_rounded_up(plan.request.delta)
  return f"all private heads together: epsilon = {epsilon} at delta = {delta}"
