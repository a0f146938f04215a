"""What a run cost by its receipts, and what is spent and left in the ledger."""

import dataclasses
import json
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.accounting.events import (
  LEAST_DELTA,
  composed,
  epsilon_of_event,
  event_from_json,
)
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.ledger.cap import Cap, cap_of
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import spending_of
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.saved_head.check_receipt import same

_MOST_ENTRIES = 12


class RunCost(NamedTuple):
  """The cost of a run, to the data set that it was trained on.

  Attributes:
    heads: ε of all heads with noise together, at the run's δ.
    with_accuracies: ε of heads and accuracies together; None where these cost
      the data set nothing: on public labels, or those of another data set.
    entries: names of the ledger entries that paid.
  """

  heads: float
  with_accuracies: float | None
  entries: frozenset[str]


def cost_of(run: RunRecord, unsound: Collection[str] = ()) -> RunCost:
  """Composes what the receipts say, and holds results.json against it.

  Args:
    run: the run.
    unsound: paths of heads whose receipts do not hold by themselves: nothing
      is held against those.

  Raises:
    InputError: a receipt lacks something, or results.json says something else.
  """
  try:
    cost = _cost(run)
    contradictions = _contradictions(run, cost, unsound)
  except (KeyError, TypeError, ValueError) as error:
    raise InputError(
      f"{run.directory} is damaged ({error!r}); run it again."
    ) from error
  if contradictions:
    raise InputError(
      f"{run.directory}: {contradictions[0]}: results.json does not say what"
      " the receipts say; run it again."
    )
  return cost


def _cost(run: RunRecord) -> RunCost:
  receipts = [run.receipts[row.path] for row in run.noisy]
  sections = [receipt["composition"] for receipt in receipts]
  # One for all heads of a plan.
  plans = {json.dumps(each, sort_keys=True): each for each in sections}
  events = [event_from_json(each["dp_event"]) for each in plans.values()]
  relations = {each["privacy"]["neighboring_relation"] for each in receipts}

  def epsilon_of(*events: DpEvent) -> float:
    # Without noise nothing composes.
    (relation,) = relations or {"REPLACE_SPECIAL"}
    return epsilon_of_event(
      composed(events), run.delta, NeighboringRelation[relation]
    )

  entries = {
    receipt["composition"]["ledger_entry"] for receipt in run.receipts.values()
  }
  with_accuracies = None
  scored = run.config["eval_cache"]["dataset"]
  if not run.labels_are_public and scored == run.dataset:
    evaluation = run.results["evaluation"]
    # As the ledger counts it.
    counts = GaussianDpEvent(evaluation["noise_multiplier"])
    with_accuracies = epsilon_of(*events, counts)
    entries.add(evaluation["ledger_entry"])
  return RunCost(
    heads=epsilon_of(*events),
    with_accuracies=with_accuracies,
    entries=frozenset(entries),
  )


def _contradictions(
  run: RunRecord, cost: RunCost, unsound: Collection[str]
) -> list[str]:
  found = [
    f"{name} of {row.path} is {getattr(row, name)!r}, and its receipt makes it"
    f" {expected!r}"
    for row in run.rows
    if row.path not in unsound
    for name, expected in _row_of(run.receipts[row.path]).items()
    if getattr(row, name) != expected
  ]
  stated = [run.results["composed_epsilon"]]
  stated += [row.composed_epsilon for row in run.rows]
  found += [
    f"composed_epsilon is {epsilon!r}, and the receipts come to {cost.heads!r}"
    for epsilon in stated
    if not same(epsilon, cost.heads)
  ]
  return found


def _row_of(receipt: dict[str, Any]) -> dict[str, Any]:
  """What results.json must say of a head, as far as its receipt tells."""
  privacy = receipt["privacy"]
  epsilon = privacy["epsilon"]
  return {
    "epsilon": math.inf if epsilon == NOT_PRIVATE else epsilon,
    "delta": privacy["delta"],
    "noise_multiplier": privacy["noise_multiplier"],
    "noise_source": privacy["noise_source"],
    "private": receipt["private"],
    "head": receipt["training"]["head"],
    "release": receipt["composition"]["order"],
    "num_examples": receipt["data"]["num_examples"],
  }


class Entry(NamedTuple):
  """A line of the ledger.

  Attributes:
    day: when, of the UTC calendar.
    what: what was let out.
    cost: ε at δ; None where none covers it.
    is_of_this_run: whether it paid for the run.
  """

  day: str
  what: str
  cost: str | None
  is_of_this_run: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetStatus:
  """A ledger, read.

  Attributes:
    dataset: whose.
    spent: ε of all private releases together, at delta.
    delta: the run's, so that its ε can be held against what is spent.
    relation: the run's.
    cap: what it may come to.
    under_cap: ε of all private releases together, as the cap counts it: at its
      delta, in its relation.
    left: ε of one more release under the cap, at its delta.
    not_private: entries that no ε covers.
    charges: entries, caps aside.
    entries: the latest, newest first.
    has_this_run: whether the entries that paid for the run are there.
  """

  dataset: str
  spent: float
  delta: float
  relation: NeighboringRelation
  cap: Cap | None
  under_cap: float | None
  left: float | None
  not_private: int
  charges: int
  entries: tuple[Entry, ...]
  has_this_run: bool

  @property
  def earlier(self) -> int:
    """Entries that are not among the latest."""
    return self.charges - len(self.entries)


def budget_status(
  ledger_dir: Path,
  run: RunRecord,
  paid: frozenset[str],
  relation: NeighboringRelation,
) -> BudgetStatus | str:
  """Reads the ledger of a run's data set; or says why it cannot, in words.

  Args:
    ledger_dir: where ledgers are.
    run: the run.
    paid: names of the entries that paid for it.
    relation: the run's.
  """
  ledger = Ledger(run.dataset, ledger_dir)
  try:
    entries = ledger.entries()
    if not entries:
      return f"there is no ledger of {run.dataset!r} in {ledger_dir}"
    return _status(entries, run, paid, relation)
  except (InputError, RunError) as error:
    return str(error)


def _status(
  entries: list[dict[str, Any]],
  run: RunRecord,
  paid: frozenset[str],
  relation: NeighboringRelation,
) -> BudgetStatus:
  cap = cap_of(entries)
  spent = spending_of(entries, relation)
  delta = max(run.delta, LEAST_DELTA) if spent.has_samples else run.delta
  under_cap = left = None
  if cap is not None:
    its, relation_of_cap = cap.max_delta, cap.neighboring_relation
    under_cap = spending_of(entries, relation_of_cap).epsilon(its)
    left = cap.left(entries, its, relation_of_cap)
  charges = [entry for entry in entries if entry.get("kind") != "cap"]
  return BudgetStatus(
    dataset=run.dataset,
    spent=spent.epsilon(delta),
    delta=delta,
    relation=relation,
    cap=cap,
    under_cap=under_cap,
    left=left,
    not_private=spent.not_private,
    charges=spent.charges,
    entries=tuple(
      _entry(entry, paid) for entry in reversed(charges[-_MOST_ENTRIES:])
    ),
    has_this_run=paid <= {entry["entry"] for entry in entries},
  )


def _entry(entry: dict[str, Any], paid: frozenset[str]) -> Entry:
  what = entry.get("kind", "release")
  what += f" of split {entry['split']}" if "split" in entry else ""
  if "epsilons" in entry:
    epsilons = ", ".join(printable(each) for each in sorted(entry["epsilons"]))
    draws = entry["num_draws"]
    what += f": ε {epsilons}" + (f", {draws} draws each" if draws > 1 else "")
  cost = None
  if entry.get("private"):
    cost = f"ε = {printable(entry['composed_epsilon'])} at δ ="
    cost += f" {printable(entry['delta'])}"
  day, is_of_this_run = str(entry["time"])[:10], entry["entry"] in paid
  return Entry(day, what, cost, is_of_this_run)
