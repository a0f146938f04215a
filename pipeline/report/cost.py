"""What a run cost by its receipts, and what is spent and left in the ledger."""

import json
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.accounting.events import (
  LEAST_DELTA,
  composed,
  epsilon_of_event,
  event_from_json,
)
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.accounting.vocabulary import (
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
)
from oneshot_dp.pipeline.ledger.cap import Cap, cap_of
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import CAP, Spending, spending_of
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.saved_head.check_receipt import same

_MOST_ENTRIES = 12


class RunCost(NamedTuple):
  """ε of a run to its data set, at its δ, and the ledger entries that paid.

  `with_accuracies` is None where those cost it nothing: on public labels, or
  those of another data set.
  """

  heads: float
  with_accuracies: float | None
  entries: frozenset[str]


def cost_of(run: RunRecord, unsound: Collection[str] = ()) -> RunCost:
  """Composes what the receipts say; InputError if results.json does not.

  But for heads at `unsound` paths: their receipts do not hold by themselves.
  """
  cost = _cost(run)
  if contradiction := next(_contradictions(run, cost, unsound), None):
    raise InputError(
      f"{run.directory}: {contradiction}: results.json does not say what"
      " the receipts say; run it again."
    )
  return cost


def _cost(run: RunRecord) -> RunCost:
  noisy = [run.receipts[row.path] for row in run.noisy]
  sections = [receipt["composition"] for receipt in noisy]
  # One for all heads of a plan.
  plans = {json.dumps(each, sort_keys=True): each for each in sections}
  events = [event_from_json(each["dp_event"]) for each in plans.values()]
  (relation,) = {each["privacy"]["neighboring_relation"] for each in noisy}

  def epsilon_of(*others: DpEvent) -> float:
    together = composed([*events, *others])
    return epsilon_of_event(together, run.delta, NeighboringRelation[relation])

  entries = {
    receipt["composition"]["ledger_entry"] for receipt in run.receipts.values()
  }
  with_accuracies = None
  scored = run.config["eval_cache"]["dataset"]
  if not run.labels_are_public and scored == run.dataset:
    evaluation = run.results["evaluation"]
    # As the ledger counts it.
    counts = GaussianDpEvent(evaluation["noise_multiplier"])
    with_accuracies = epsilon_of(counts)
    entries.add(evaluation["ledger_entry"])
  return RunCost(epsilon_of(), with_accuracies, frozenset(entries))


def _contradictions(
  run: RunRecord, cost: RunCost, unsound: Collection[str]
) -> Iterator[str]:
  for row in run.rows:
    expected = {} if row.path in unsound else _row_of(run.receipts[row.path])
    for name, value in expected.items():
      if (stated := getattr(row, name)) != value:
        yield (
          f"{name} of {row.path} is {stated!r}, and its receipt makes it"
          f" {value!r}"
        )
  composed = [run.results["composed_epsilon"]]
  for epsilon in composed + [row.composed_epsilon for row in run.rows]:
    if not same(epsilon, cost.heads):
      yield (
        f"composed_epsilon is {epsilon!r}, and the receipts come to"
        f" {cost.heads!r}"
      )


def _row_of(receipt: dict[str, Any]) -> dict[str, Any]:
  """What results.json must say of a head, as far as its receipt tells."""
  privacy = receipt["privacy"]
  names = ("epsilon", "delta", "noise_multiplier", "noise_source")
  stated = {name: privacy[name] for name in names}
  if stated["epsilon"] == NOT_PRIVATE:
    stated["epsilon"] = math.inf
  return stated | {
    "private": receipt["private"],
    "head": receipt["training"]["head"],
    "release": receipt["composition"]["order"],
    "num_examples": receipt["data"]["num_examples"],
  }


class BudgetStatus(NamedTuple):
  """A ledger, read; every ε is of all private releases together.

  `spent` is an odometer's, at the run's `delta`; `under_cap`, and `left` for
  one more release, are at the delta and in the relation of the cap. The latest
  `entries`, caps aside, come first.
  """

  spending: Spending
  delta: float
  spent: float
  cap: Cap | None
  under_cap: float | None
  left: float | None
  entries: list[dict[str, Any]]
  has_this_run: bool


def budget_status(
  ledger_dir: Path,
  run: RunRecord,
  paid: frozenset[str],
  relation: NeighboringRelation,
) -> BudgetStatus | str:
  """Reads the ledger of a run's data set; or says why it cannot, in words."""
  try:
    entries = Ledger(run.dataset, ledger_dir).entries()
    if not entries:
      return f"there is no ledger of {run.dataset!r} in {ledger_dir}"
    cap, spending = cap_of(entries), spending_of(entries, relation)
    delta = max(run.delta, LEAST_DELTA) if spending.has_samples else run.delta
    under_cap = left = None
    if cap is not None:
      under_cap = cap.spent(entries)
      left = cap.left(entries, cap.max_delta, cap.neighboring_relation)
    charges = [entry for entry in entries if entry.get("kind") != CAP]
    return BudgetStatus(
      spending=spending,
      delta=delta,
      spent=spending.epsilon(delta),
      cap=cap,
      under_cap=under_cap,
      left=left,
      entries=charges[: -_MOST_ENTRIES - 1 : -1],
      has_this_run=paid <= {entry["entry"] for entry in entries},
    )
  except (InputError, RunError) as error:
    return str(error)
