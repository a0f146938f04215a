"""What a run cost, recomputed from its receipts; and whether it says so."""

import dataclasses
import json
import math
from collections.abc import Collection
from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.accounting.sampled import (
  SampledGaussian,
  epsilon_of_composition,
)
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.pipeline.ledger.spending import Gaussian
from oneshot_dp.pipeline.report.run_record import RunRecord
from oneshot_dp.pipeline.saved_head.receipt import same


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
  compositions = {
    json.dumps(receipt["composition"], sort_keys=True): receipt
    for receipt in (run.receipts[row.path] for row in run.noisy)
  }
  gaussians, sampled = [], []
  for receipt in compositions.values():
    sigmas = receipt["composition"]["noise_multipliers_charged"]
    if sampling := mechanism_of(receipt["mechanism"]).sampling:
      sampled += [
        SampledGaussian(noise_multiplier=sigma, sampling=sampling)
        for sigma in sigmas
      ]
    else:
      gaussians += sigmas
  heads = epsilon_of_composition(gaussians, sampled, run.delta)
  entries = {
    receipt["composition"]["ledger_entry"] for receipt in run.receipts.values()
  }
  with_accuracies = None
  scored = run.config["eval_cache"]["dataset"]
  if not run.labels_are_public and scored == run.dataset:
    evaluation = run.results["evaluation"]
    relation = NeighboringRelation[evaluation["neighboring_relation"]]
    # As the ledger counts it.
    counts = Gaussian(noise_multiplier=evaluation["noise_multiplier"])
    with_accuracies = epsilon_of_composition(
      gaussians + counts.under(relation), sampled, run.delta
    )
    entries.add(evaluation["ledger_entry"])
  return RunCost(
    heads=heads, with_accuracies=with_accuracies, entries=frozenset(entries)
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
