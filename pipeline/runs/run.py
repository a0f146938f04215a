"""The one runner of `train` and `sweep`: plan, charge, train, deliver once.

    DIR of train    the head: see `head_folder`
    DIR of sweep    results.csv, results.json, accuracy.png, accuracy.pdf,
                    config.json, report.html, and heads/NAME/

The charge is on the disk before noise is drawn, and the results are shown by
one rename, or put into a bucket after the ledger's note. What is written holds
no time, and no number of private rows.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import (
  format_rounded_down,
  format_rounded_up,
)
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.linear_dp.train import TrainedHead, baseline, train
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.heads.head_folder import (
  CARD_FILE,
  read_head,
  write_head,
)
from oneshot_dp.pipeline.ledger.delivery import (
  WEIGHTS_FILE,
  Delivery,
)
from oneshot_dp.pipeline.requests import TrainRequest
from oneshot_dp.pipeline.runs.eval_rows import EvalRows, Scores
from oneshot_dp.pipeline.runs.messages import (
  costs_with_ledger,
  dry_run_lines,
  noise_multiplier_of,
  summary_of,
  warnings_of,
)
from oneshot_dp.pipeline.runs.plan import Plan, build_plan
from oneshot_dp.pipeline.runs.price import Job


class WrittenHead(NamedTuple):
  """A trained head, and what its receipt says.

  Attributes:
    trained: the head.
    receipt: as it was written; None on hosts that write nothing.
  """

  trained: TrainedHead
  receipt: dict[str, Any] | None


def run_request(request: TrainRequest) -> Answer:
  """Trains, scores and delivers what was asked for.

  Formal guarantees: nothing leaves private rows but what `train` and
  `EvalRows.score` release, within what the ledger was charged before.

  Args:
    request: what to train, and where to write it.

  Returns:
    What was made; on hosts but the first, an empty text.

  Raises:
    InputError: something that was asked for or named is wrong; nothing was
      charged.
    RunError: the ledger or the disk failed.
  """
  with Hosts.join(request.hosts) as hosts:
    # Every host plans by itself, and all compare what they planned: a host with
    # other flags, or with another copy of the cache, would add another sum.
    plan = hosts.raise_together(lambda: build_plan(request, hosts))
    hosts.agree("request or cache", repr(plan.identity))
    # The same command again, after it succeeded: it neither fails nor pays
    # twice.
    if plan.is_finished:
      text = f"{request.out} is finished already: nothing to do"
      return Answer(text=text, facts={"out": request.out})
    delivery = Delivery(
      request.out,
      plan.ledger,
      plan.charge_requests,
      identity=plan.identity,
      room=plan.room,
    )
    with delivery:
      if request.dry_run:
        return hosts.raise_together(lambda: _dry_run(plan, hosts, delivery))
      if hosts.index == 0:
        return _run_on_first_host(plan, hosts, delivery)
      _run_on_other_host(plan, hosts)
      return Answer(text="", facts={"host": hosts.index})


def _run_on_first_host(plan: Plan, hosts: Hosts, delivery: Delivery) -> Answer:
  """Charges, trains, writes and shows; the other hosts add their rows."""

  def open_delivery() -> np.ndarray:
    # What can fail, or make a person stop it, comes before the charge.
    _rehearse(plan)
    for warning in warnings_of(plan):
      print(warning, file=sys.stderr)
    delivery.open()
    if not delivery.already_done:
      print(summary_of(plan, delivery.charge_ids), file=sys.stderr)
    return np.array([int(delivery.already_done)])

  hosts.from_first(open_delivery)
  if delivery.already_done:
    # A run that was killed had made and noted everything.
    _check_kept_heads(delivery.folder)
    delivery.commit()
    return Answer(text=f"{plan.request.out} is finished", facts={})
  written = _train_heads(plan, delivery.charge_ids, delivery.folder)
  scores = None
  if plan.eval_rows is not None:
    scores = _score(plan.eval_rows, written)
  # The other hosts wait here, however long tables and pictures take, and hear
  # of what fails.
  return hosts.raise_together(
    lambda: _write_and_show(plan, delivery, written, scores)
  )


def _train_heads(
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
      receipt = None
      if folder is not None:
        receipt = write_head(
          folder / plan.path_of_head(trained),
          trained,
          plan.train.cache.info,
          plan.train.cache.part,
          charge_id,
          plan.parent_charge_id,
        )
      written.append(WrittenHead(trained, receipt))
  return written


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


def _check_kept_heads(folder: Path) -> None:
  """Reads all heads of a killed run before they are shown.

  InputError: a file was damaged since; the ledger knows weights and receipts
  alone.
  """
  for weights_file in sorted(folder.rglob(WEIGHTS_FILE)):
    try:
      saved = read_head(weights_file.parent)
    except InputError as error:
      raise _damaged_after_stop(folder, str(error)) from error
    if saved.has_edited_card:
      card = weights_file.parent / CARD_FILE
      raise _damaged_after_stop(folder, f"{card} is not as it was written.")


def _damaged_after_stop(folder: Path, fault: str) -> InputError:
  return InputError(
    f"{fault} It was kept from a run that was stopped: put it back. Once"
    f" {folder} is removed, the same command is charged again."
  )


def _write_and_show(
  plan: Plan,
  delivery: Delivery,
  written: Sequence[WrittenHead],
  scores: Scores | None,
) -> Answer:
  """Writes what is beside the heads, notes the heads, and shows all of it."""
  if scores is None:
    (only_head,) = written
    answer = _answer_of_train(plan, only_head)
  else:
    from oneshot_dp.pipeline.runs.sweep_files import write_sweep_files

    heads = [head.trained for head in written]
    answer = write_sweep_files(plan, delivery.folder, heads, scores)
  delivery.commit()
  return answer


def _rehearse(plan: Plan) -> None:
  """Makes all that a sweep shows of placeholders; a head alone shows nothing.

  InputError: something of the run cannot be shown.
  """
  if plan.eval_rows is not None:
    # Matplotlib takes most of a second to import.
    from oneshot_dp.pipeline.runs.sweep_files import rehearse_sweep_files

    rehearse_sweep_files(plan, plan.eval_rows)


def _dry_run(plan: Plan, hosts: Hosts, delivery: Delivery) -> Answer:
  """Tries what the run would do before its charge, and says what it costs."""
  if hosts.index > 0:
    return Answer(text="", facts={"host": hosts.index})
  _rehearse(plan)
  charge_ids = delivery.preview()
  costs = costs_with_ledger(plan, charge_ids)
  warnings = warnings_of(plan)
  return Answer(
    text="\n".join([*warnings, *dry_run_lines(plan, charge_ids)]),
    facts={
      "dry_run": True,
      "warnings": warnings,
      "noise_multiplier": noise_multiplier_of(plan),
      "private": plan.source.is_private,
      "costs": costs,
    },
  )


def _run_on_other_host(plan: Plan, hosts: Hosts) -> None:
  """Takes part in the sums; the first host charges, draws noise and writes."""
  already_done = hosts.from_first(lambda: np.zeros(1, np.int64)).any()
  if already_done:
    return
  # The first host alone was charged, so here no charge has an id.
  written = _train_heads(plan, [""] * len(plan.jobs), None)
  # Exact accuracies need no sum over hosts: the first host counts them alone.
  if plan.eval_rows is not None and plan.eval_rows.budget is not None:
    _score(plan.eval_rows, written)
  hosts.raise_together(lambda: None)


def _score(eval_rows: EvalRows, written: Sequence[WrittenHead]) -> Scores:
  return eval_rows.score([head.trained.head for head in written])


def _answer_of_train(plan: Plan, written: WrittenHead) -> Answer:
  receipt = written.receipt
  assert receipt is not None
  info = plan.train.cache.info
  unit = f" per {info.unit}" if info.has_units else ""
  follows = receipt["follows"]
  trained = written.trained
  return Answer(
    text=f"{plan.request.out}: {trained.name} at epsilon ="
    f" {format_rounded_up(follows['epsilon'])}{unit}, delta ="
    f" {format_rounded_up(plan.request.delta)}, noise multiplier"
    f" {format_rounded_down(follows['noise_multiplier'])}, noise:"
    f" {trained.noise_source}",
    facts={"out": plan.request.out, "receipt": receipt},
  )
