"""Trains the jobs of a plan, and writes each head as soon as it is made."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.linear_dp.train import TrainedHead, baseline, train
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.report.results import head_name
from oneshot_dp.pipeline.runs.plan import Plan
from oneshot_dp.pipeline.runs.price import Job


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WrittenHead:
  """A trained head, and where it was written.

  Attributes:
    path: its folder, relative to the run's; "" where it is the run's folder.
    trained: the head.
    receipt: what its receipt says; None on hosts that write nothing.
  """

  path: str
  trained: TrainedHead
  receipt: dict[str, Any] | None


def train_heads(
  plan: Plan, charge_ids: Sequence[str], folder: Path | None
) -> list[WrittenHead]:
  """Trains all jobs of a plan, and writes each head as soon as it is made.

  Args:
    plan: what to train.
    charge_ids: the charges that pay, those of the jobs first.
    folder: where the heads go; None writes nothing, as on all hosts but the
      first.

  Returns:
    The heads in the order of the jobs, and of one job the smallest ε first.
  """
  written = []
  charges_of_jobs = charge_ids[: len(plan.jobs)]
  # A head is written before the next is trained, into the hidden folder. The
  # next run throws away what a killed one left there, unless the ledger has
  # noted it.
  for job, charge_id in zip(plan.jobs, charges_of_jobs, strict=True):
    for trained in _train_job(plan, job):
      path = path_of_head(plan, trained)
      receipt = None
      if folder is not None:
        receipt = write_head(
          folder / path,
          trained,
          plan.train.cache.info,
          plan.train.cache.part,
          charge_id,
          plan.parent_charge_id,
        )
      written.append(WrittenHead(path=path, trained=trained, receipt=receipt))
  return written


def path_of_head(plan: Plan, trained: TrainedHead) -> str:
  """Returns the folder of a head within the run's; "" for a single head.

  Args:
    plan: the run; without test rows it writes a single head.
    trained: the head, whose kind, ε and draw make its name.
  """
  if plan.eval_rows is None:
    return ""
  epsilon = math.inf if trained.epsilon is None else trained.epsilon
  return f"heads/{head_name(trained.name, epsilon, trained.draw)}"


def _train_job(plan: Plan, job: Job) -> Iterable[TrainedHead]:
  rows = plan.rows[job.head]
  options = plan.options[job.head]
  if job.draw is None:
    return [baseline(rows, job.head, options)]
  return train(
    rows,
    head=job.head,
    epsilons=plan.request.epsilons,
    delta=plan.request.delta,
    mu_squared_budget=plan.mu_squared,
    source=plan.source,
    options=options,
    draw=job.draw,
    parent_head=None if plan.parent is None else plan.parent.trained,
  )
