"""The one runner of `train` and `sweep`: plan, charge, train, deliver once.

    DIR of train    the head: see `head_folder`
    DIR of sweep    results.csv, results.json, accuracy.png, accuracy.pdf,
                    config.json, report.html, and heads/NAME/

The charge is on the disk before noise is drawn, and what was made is shown by
one rename. What is written holds no time, and no number of private rows.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oneshot_dp.linear_dp.accounting import printable
from oneshot_dp.linear_dp.evaluate import Accuracy
from oneshot_dp.linear_dp.hosts import Hosts
from oneshot_dp.linear_dp.rows import no_core_dumps
from oneshot_dp.linear_dp.train import TrainedHead, baseline, train
from oneshot_dp.pipeline.answer import Answer
from oneshot_dp.pipeline.deliver import deliver_once
from oneshot_dp.pipeline.head_folder import write_head
from oneshot_dp.pipeline.plan import Plan, make_plan
from oneshot_dp.pipeline.request import Request
from oneshot_dp.pipeline.results import (
  NOT_PRIVATE,
  HeadRow,
  as_json,
  files_of,
  head_name,
  table,
)
from oneshot_dp.pipeline.scores import Scores, private_scores, public_scores


def run_request(asked: Request) -> Answer:
  """Trains, scores and delivers what was asked for.

  Formal guarantees: nothing leaves private rows but what `train` and
  `private_scores` let out, within what the ledger was charged before.

  Raises:
    InputError: what was asked, or what it names, does not do; nothing was
      charged.
    RunError: the ledger or the disk failed.
  """
  no_core_dumps()
  hosts = Hosts.of(asked.hosts)
  plans: list[Plan] = []
  answers = [Answer(text=f"{asked.out} is done", facts={"out": asked.out})]

  def planned() -> np.ndarray:
    plans.append(make_plan(asked, hosts))
    return np.zeros(1, np.int64)

  hosts.sum(planned)  # or the error of one, on all
  (plan,) = plans
  hosts.agree("request or cache", repr(plan.identity()))
  began = False

  def make(folder: Path | None, ids: Sequence[str]) -> None:
    nonlocal began
    began = True
    hosts.sum(lambda: np.zeros(1, np.int64))  # it is charged
    answers.append(_made(plan, folder, ids))

  if not hosts.is_first:
    make(None, [""] * len(plan.jobs))
    return Answer(text="", facts={"host": hosts.index})
  plan.say()
  try:
    deliver_once(
      asked.out,
      plan.ledger,
      plan.bills,
      make,
      asked=plan.identity(),
      room=plan.room,
    )
  except BaseException:
    if not began:
      hosts.sum(lambda: _raise(error))  # the others wait for the charge
    raise
  return answers[-1]


def _raise(error: BaseException) -> np.ndarray:
  raise error


def _made(plan: Plan, folder: Path | None, ids: Sequence[str]) -> Answer:
  """Trains all, and writes it into a folder; hosts but the first have none."""
  trained, receipts, paths = [], [], []
  for each, charge in _trained(plan, ids):
    trained.append(each)
    paths.append("" if plan.test is None else f"heads/{_name(each)}")
    if folder is not None:
      receipts.append(
        write_head(
          folder / paths[-1],
          each,
          plan.train.info,
          plan.train.part,
          charge,
          plan.saved and plan.saved.stated["charge"],
        )
      )
  scores = _scores(plan, trained)
  if folder is None:
    return Answer(text="", facts={})
  if scores is None:
    return _answer_of_head(plan, trained[0], receipts[0])
  rows = [
    _row(plan, *of_head)
    for of_head in zip(trained, paths, scores.accuracies, strict=True)
  ]
  return _write_run(plan, folder, rows, scores)


def _trained(
  plan: Plan, ids: Sequence[str]
) -> Iterator[tuple[TrainedHead, str]]:
  """Each head, with the charge that paid for it."""
  # The charge of a private test set, if any, comes after those of the jobs.
  for (head, draw), charge in zip(plan.jobs, ids, strict=False):
    rows, options = plan.rows[head], plan.options_of(head)
    if draw is None:
      yield baseline(rows, head, options), charge
      continue
    for trained in train(
      rows,
      head=head,
      epsilons=plan.asked.epsilons,
      delta=plan.asked.delta,
      paid=plan.mu2,
      source=plan.source,
      options=options,
      draw=draw,
      before=plan.before,
    ):
      yield trained, charge


def _scores(plan: Plan, trained: Sequence[TrainedHead]) -> Scores | None:
  heads, asked, test = [t.head for t in trained], plan.asked, plan.test
  if test is None:
    return None
  if plan.test_rows is None or asked.private_eval is None:
    return public_scores(heads, test)
  budget = asked.private_eval, asked.delta
  return private_scores(heads, test, plan.test_rows, *budget, plan.source)


def _write_run(
  plan: Plan, folder: Path, rows: Sequence[HeadRow], scores: Scores
) -> Answer:
  from oneshot_dp.pipeline.accuracy_plot import pictures_of
  from oneshot_dp.pipeline.report.page import write_report

  info, asked, said = plan.train.info, plan.asked, dict(scores.statement)
  noisy = said["labels"] == "private"
  facts = {
    "dataset": info.dataset,
    "split": info.split,
    "rows": str(plan.train.part),
    "num_examples": plan.train.n,
    "privacy_unit": info.unit,
    "class_names": list(info.class_names),
    "delta": asked.delta,
    "epsilon": plan.composed if plan.source.is_private else None,
    "test_counts": said.pop("class_rows", None),
    "evaluation": said,
  }
  noise = "noisy counts" if noisy else ""
  files = {
    **files_of(rows, facts),
    "config.json": as_json(plan.settings()),
    **pictures_of(rows, info.dataset, noise),
  }
  for name, content in files.items():
    (folder / name).write_bytes(content)
  write_report(folder)
  together = f"the noise is of a seed: {NOT_PRIVATE}"
  if plan.source.is_private:
    together = (
      f"all private heads together: epsilon = {printable(plan.composed)} at"
      f" delta = {printable(asked.delta)}"
    )
  how = "labels treated as public"
  if noisy:
    how = f"noisy counts at epsilon = {printable(said['epsilon'])}"
  text = (
    f"{table(rows)}\n{together}; scored on {said['num_examples']:,} rows"
    f" ({how})\n{asked.out}: see report.html and results.csv"
  )
  return Answer(text=text, facts={"out": asked.out, **facts, "heads": rows})


def _name(trained: TrainedHead) -> str:
  epsilon = math.inf if trained.epsilon is None else trained.epsilon
  return head_name(trained.name, epsilon, trained.draw)


def _row(
  plan: Plan, trained: TrainedHead, path: str, accuracy: Accuracy
) -> HeadRow:
  mu2 = trained.mu_squared
  return HeadRow(
    path=path,
    head=trained.name,
    epsilon=math.inf if trained.epsilon is None else trained.epsilon,
    delta=plan.asked.delta,
    draw=trained.draw,
    private=trained.private,
    noise_source=trained.noise_source,
    noise_multiplier=0.0 if mu2 is None else float(mu2) ** -0.5,
    top1=accuracy.top1,
    top5=accuracy.top5,
    balanced=accuracy.balanced,
    recall=accuracy.recall,
  )


def _answer_of_head(
  plan: Plan, trained: TrainedHead, receipt: dict[str, Any]
) -> Answer:
  info, follows = plan.train.info, receipt["follows"]
  mark = "" if trained.private else f", {NOT_PRIVATE}"
  unit = f" per {info.unit}" if info.has_units else ""
  return Answer(
    text=f"{plan.asked.out}: {trained.name} at epsilon ="
    f" {printable(follows['epsilon'])}{unit}, delta ="
    f" {printable(plan.asked.delta)}, noise multiplier"
    f" {follows['noise_multiplier']:.4g}, noise from"
    f" {trained.noise_source}{mark}",
    facts={"out": plan.asked.out, "receipt": receipt},
  )
