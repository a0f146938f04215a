"""The one runner of `train` and `sweep`: plan, charge, train, deliver once.

    DIR of train    the head: see `head_folder`
    DIR of sweep    results.csv, results.json, accuracy.png, accuracy.pdf,
                    config.json, report.html, and heads/NAME/

The charge is on the disk before noise is drawn, and what was made is shown by
one rename. What is written holds no time, and no number of private rows.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.accounting import printable
from oneshot_dp.linear_dp.hosts import Hosts, end_as_told
from oneshot_dp.linear_dp.rows import no_core_dumps
from oneshot_dp.linear_dp.train import TrainedHead, baseline, train
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.ledger.deliver import deliver_once
from oneshot_dp.pipeline.report.results import (
  NOT_PRIVATE,
  HeadRow,
  as_json,
  files_of,
  head_name,
  table,
)
from oneshot_dp.pipeline.runs.plan import Plan
from oneshot_dp.pipeline.runs.scores import Scores

if TYPE_CHECKING:
  from oneshot_dp.pipeline import commands

_DONE = np.zeros(1, np.int64)


def run_request(asked: "commands.train.Flags | commands.sweep.Flags") -> Answer:
  """Trains, scores and delivers what was asked for.

  Formal guarantees: nothing leaves private rows but what `train` and
  `EvalRows.scores` let out, within what the ledger was charged before.

  InputError: what was asked or is named does not do; nothing was charged.
  RunError: the ledger or the disk failed.
  """
  no_core_dumps()
  try:
    return _run(asked, Hosts.of(asked.hosts))
  except (InputError, RunError):
    end_as_told()
    raise


def _run(asked: Any, hosts: Hosts) -> Answer:
  plans: list[Plan] = []
  hosts.sum(lambda: plans.append(Plan(asked, hosts)) or _DONE)
  (plan,) = plans
  hosts.agree("request or cache", repr(plan.identity))
  if hosts.index != 0:
    if hosts.from_first(lambda: _DONE).any():  # or an error is told here
      _made(plan, None, [""] * len(plan.jobs))
    return Answer(text="", facts={"host": hosts.index})
  answers: list[Answer] = []

  def make(folder: Path, ids: Sequence[str]) -> None:
    print(*plan.said(), sep="\n", file=sys.stderr)
    answers.append(Answer(text="", facts={}))
    hosts.from_first(lambda: _DONE + 1)  # it is charged
    answers.append(_made(plan, folder, ids))

  try:
    how = {"asked": plan.identity, "room": plan.room}
    deliver_once(asked.out, plan.ledger, plan.bills, make, **how)
  except Exception as error:

    def tell(error: Exception = error) -> np.ndarray:
      raise error

    if not answers:
      hosts.sum(tell)
    raise
  if not answers:  # The run that was killed had done all but show it.
    hosts.from_first(lambda: _DONE)
    answers.append(Answer(text=f"{asked.out} is done", facts={}))
  return answers[-1]


def _made(plan: Plan, folder: Path | None, ids: Sequence[str]) -> Answer:
  """Trains all, and writes it into a folder; hosts but the first have none."""
  asked, heads, receipt = plan.asked, {}, {}
  common: dict[str, Any] = {"epsilons": asked.epsilons, "delta": asked.delta}
  common |= {"paid": plan.mu2, "source": plan.source, "before": plan.before}
  went_on_from = plan.went_on_from.get("charge")
  # The charge of a private test set, if any, comes after those of the jobs.
  for (head, draw), charge in zip(plan.jobs, ids, strict=False):
    rows, options = plan.rows[head], plan.options[head]
    how: dict[str, Any] = {"head": head, "options": options, "draw": draw}
    made: Iterable[TrainedHead] = (
      [baseline(rows, head, options)]
      if draw is None
      else train(rows, **how, **common)
    )
    for trained in made:
      known = trained.name, trained.epsilon or math.inf, trained.draw
      name = f"heads/{head_name(*known)}" if plan.test else ""
      heads[name] = trained
      if folder is not None:
        of = plan.train.info, plan.train.part, charge, went_on_from
        receipt = write_head(folder / name, trained, *of)
  scores = None
  if plan.test and (folder or plan.test.budget):
    scores = plan.test.scores([each.head for each in heads.values()])
  if folder is None:
    return Answer(text="", facts={})
  if scores is not None:
    return _write_run(plan, folder, heads, scores)
  (trained,) = heads.values()
  follows, info = receipt["follows"], plan.train.info
  unit = f" per {info.unit}" if info.has_units else ""
  return Answer(
    text=f"{asked.out}: {trained.name} at epsilon ="
    f" {printable(follows['epsilon'])}{unit}, delta = {printable(asked.delta)},"
    f" noise multiplier {follows['noise_multiplier']:.4g}, noise:"
    f" {trained.noise_source}",
    facts={"out": asked.out, "receipt": receipt},
  )


def _write_run(
  plan: Plan, folder: Path, heads: Mapping[str, TrainedHead], scores: Scores
) -> Answer:
  """Writes what is beside the heads of a sweep, by their folders."""
  from oneshot_dp.pipeline.report.accuracy_plot import pictures_of
  from oneshot_dp.pipeline.report.page import write_report

  info, asked, (found, said) = plan.train.info, plan.asked, scores
  rows = [
    HeadRow(
      path=path,
      head=each.name,
      epsilon=each.epsilon or math.inf,
      delta=asked.delta,
      draw=each.draw,
      private=each.private,
      noise_source=each.noise_source,
      noise_multiplier=0.0 if not each.mu_squared else each.mu_squared**-0.5,
      **{n: getattr(a, n) for n in ("top1", "top5", "balanced", "recall")},
    )
    for (path, each), a in zip(heads.items(), found, strict=True)
  ]
  facts: dict[str, Any] = {
    "dataset": info.dataset,
    "split": info.split,
    "rows": str(plan.train.part),
    "num_examples": plan.train.n,
    "privacy_unit": info.unit,
    "class_names": list(info.class_names),
    "delta": asked.delta,
    "epsilon": plan.epsilon if plan.source.is_private else None,
    "test_counts": said.pop("class_rows", None),
    "evaluation": said,
  }
  how, together = "labels treated as public", f"seeded noise: {NOT_PRIVATE}"
  if asked.private_eval is not None:
    how = f"noisy counts at epsilon = {printable(asked.private_eval)}"
    how += f", {NOT_PRIVATE}" * (asked.noise_seed is not None)
  if plan.source.is_private:
    epsilon, delta = printable(plan.epsilon), printable(asked.delta)
    together = "all private heads together: epsilon ="
    together += f" {epsilon} at delta = {delta}"
  files = {
    **files_of(rows, facts),
    "config.json": as_json(plan.settings()),
    **pictures_of(rows, info.dataset, how),
  }
  for name, content in files.items():
    (folder / name).write_bytes(content)
  write_report(folder)
  return Answer(
    text=f"{table(rows)}\n{together}; scored on {said['num_examples']:,} rows"
    f" ({how})\n{asked.out}: see report.html and results.csv",
    facts={"out": asked.out, **facts, "heads": rows},
  )
