"""What a run cost, recomputed from its receipts; and whether it says so."""

import dataclasses
import json
import math
from collections.abc import Collection
from typing import Any

from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import (
  composed,
  epsilon_of_event,
  event_from_json,
)
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.saved_head.check_receipt import same


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCost:
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
    (relation,) = relations or {"ADD_OR_REMOVE_ONE"}
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
