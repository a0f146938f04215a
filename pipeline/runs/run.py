"""The one runner of `train` and `sweep`: plan, charge, train, deliver once.

    DIR of train    the head: see `head_folder`
    DIR of sweep    results.csv, results.json, accuracy.png, accuracy.pdf,
                    config.json, report.html, and heads/NAME/

The charge is on the disk before noise is drawn, and what was made is shown by
one rename. What is written holds no time, and no number of private rows.
"""

import contextlib
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.linear_dp.train import TrainedHead, baseline, train
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.ledger.delivery import Delivery
from oneshot_dp.pipeline.report import results
from oneshot_dp.pipeline.report.results import NOT_PRIVATE
from oneshot_dp.pipeline.runs.evaluation import Scores
from oneshot_dp.pipeline.runs.plan import Plan

if TYPE_CHECKING:
  from oneshot_dp.pipeline import commands


def run_request(asked: "commands.train.Flags | commands.sweep.Flags") -> Answer:
  """Trains, scores and delivers what was asked for.

  Formal guarantees: nothing leaves private rows but what `train` and
  `EvalRows.scores` let out, within what the ledger was charged before.

  InputError: what was asked or is named does not do; nothing was charged.
  RunError: the ledger or the disk failed.
  """
  plans: list[Plan] = []
  with contextlib.ExitStack() as stack:
    hosts = stack.enter_context(Hosts.join(asked.hosts))
    hosts.sum(lambda: plans.append(Plan(asked, hosts)) or np.array([0]))
    (plan,) = plans
    hosts.agree("request or cache", repr(plan.identity))
    is_first = hosts.index == 0
    delivery = Delivery(
      asked.out,
      plan.ledger,
      plan.bills,
      identity=plan.identity,
      room=plan.room,
    )
    stack.enter_context(delivery)

    def open_delivery() -> np.ndarray:
      delivery.open()
      print(*plan.said(), sep="\n", file=sys.stderr)
      return np.array([int(delivery.already_done)])

    already_done = bool(hosts.from_first(open_delivery).any())
    folder = delivery.folder if is_first else None
    if already_done:
      answer = Answer(text=f"{asked.out} is done", facts={})
    else:
      # Hosts but the first have charged nothing, and so have no ids.
      ids = delivery.charge_ids if is_first else [""] * len(plan.jobs)
      answer = _made(plan, folder, ids)
    if not is_first:
      return Answer(text="", facts={"host": hosts.index})
    delivery.commit()
    return answer


def _made(plan: Plan, folder: Path | None, ids: Sequence[str]) -> Answer:
  """Trains all, and writes it into a folder; hosts but the first have none."""
  asked, heads, receipt = plan.asked, {}, {}
  common: dict[str, Any] = {"epsilons": asked.epsilons, "delta": asked.delta}
  common |= {"mu_squared_budget": plan.mu2, "source": plan.source}
  common |= {"parent_head": plan.before}
  parent_stated = plan.parent_stated.get("charge")
  # The charge of a private test set, if any, comes after those of the jobs.
  for (head, draw), charge in zip(plan.jobs, ids, strict=False):
    rows, options = plan.rows[head], plan.options[head]
    made: Iterable[TrainedHead]
    how: dict[str, Any] = {"head": head, "options": options}
    if draw is None:
      made = [baseline(rows, **how)]
    else:
      made = train(rows, draw=draw, **how, **common)
    for trained in made:
      known = trained.name, trained.epsilon or math.inf, trained.draw
      name = f"heads/{results.head_name(*known)}" if plan.test else ""
      heads[name] = trained
      if folder is not None:
        of = plan.train.info, plan.train.part, charge, parent_stated
        receipt = write_head(folder / name, trained, *of)
  scores = None
  if plan.test and (folder or plan.test.budget):
    scores = plan.test.scores([each.head for each in heads.values()])
  if folder is None:
    return Answer(text="", facts={})
  if scores is not None:
    return _write_run(plan, folder, heads, scores)
  (trained,), follows = heads.values(), receipt["follows"]
  unit = f" per {plan.train.info.unit}" * plan.train.info.has_units
  return Answer(
    text=f"{asked.out}: {trained.name} at epsilon ="
    f" {format_rounded_up(follows['epsilon'])}{unit}, delta ="
    f" {format_rounded_up(asked.delta)},"
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
    results.HeadRow(
      path=path,
      head=each.name,
      epsilon=each.epsilon or math.inf,
      delta=asked.delta,
      noise_multiplier=0.0 if not each.mu_squared else each.mu_squared**-0.5,
      **{n: getattr(each, n) for n in ("draw", "private", "noise_source")},
      **{n: getattr(a, n) for n in ("top1", "top5", "balanced", "recall")},
    )
    for (path, each), a in zip(heads.items(), found, strict=True)
  ]
  names = "dataset", "split", "class_names"
  facts: dict[str, Any] = {name: getattr(info, name) for name in names} | {
    "rows": str(plan.train.part),
    "num_examples": plan.train.n,
    "privacy_unit": info.unit,
    "delta": asked.delta,
    "epsilon": plan.epsilon if plan.source.is_private else None,
    "test_counts": said.pop("class_rows", None),
    "evaluation": said,
  }
  test = results.EvaluationSet(
    num_examples=said["num_examples"], accuracy_sd=said.get("accuracy_sd", 0.0)
  )
  how, together = "labels treated as public", f"seeded noise: {NOT_PRIVATE}"
  if asked.private_eval is not None:
    how = f"noisy counts at epsilon = {format_rounded_up(asked.private_eval)}"
    how += f", {NOT_PRIVATE}" * (asked.noise_seed is not None)
  if plan.source.is_private:
    epsilon, delta = (
      format_rounded_up(plan.epsilon),
      format_rounded_up(asked.delta),
    )
    together = "all private heads together: epsilon ="
    together += f" {epsilon} at delta = {delta}"
  files = {
    **results.files_of(rows, facts),
    "config.json": results.as_json(plan.settings()),
    **pictures_of(rows, info.dataset, how, test),
  }
  for name, content in files.items():
    (folder / name).write_bytes(content)
  write_report(folder)
  return Answer(
    text=f"{results.table(rows, test, info.num_classes)}\n{together}; scored on"
    f" {said['num_examples']:,} rows ({how})\n{asked.out}: see report.html and"
    " results.csv",
    facts={"out": asked.out, **facts, "heads": rows},
  )
