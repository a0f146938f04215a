"""`evaluate --dry-run`: what an evaluation would cost, and how noisy it is."""

from typing import Any

from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.heads.head_folder import SavedHead
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.report.results import NORMAL_95, NOT_PRIVATE
from oneshot_dp.pipeline.requests import EvalRequest
from oneshot_dp.pipeline.runs.costs import costs_of, describe_planned_cost
from oneshot_dp.pipeline.runs.evaluation import (
  EvalRows,
  check_labels_are_public,
  evaluation_identity,
  open_evaluation,
)
from oneshot_dp.pipeline.runs.messages import end_of_dry_run

# A 95 % interval of the noise that is wider than this, at each side, tells
# little of a head.
_LARGE_NOISE = 0.1


def dry_run_of_scores(request: EvalRequest) -> Answer:
  """Checks everything that `score_head` checks, and states the cost.

  Formal guarantees: nothing is scored, charged or written. What is said follows
  from public facts, and from what the ledger was charged.

  Raises:
    InputError: what `score_head` would refuse, its charge included.
  """
  saved, eval_rows, ledger = open_evaluation(request)
  if eval_rows.budget is None:
    warnings = check_labels_are_public(request, saved, eval_rows, ledger)
    lines = ["accuracies would be exact, as the labels are public: no charge"]
    facts = {"labels": "public", "costs": []}
  else:
    warnings = _warnings_of_noise(eval_rows)
    lines, facts = _private_scores(request, saved, eval_rows, ledger)
  return Answer(
    text="\n".join([*warnings, *lines, end_of_dry_run(ledger)]),
    facts={"dry_run": True, "warnings": warnings, **facts},
  )


def _private_scores(
  request: EvalRequest, saved: SavedHead, eval_rows: EvalRows, ledger: Ledger
) -> tuple[list[str], dict[str, Any]]:
  """Says what noisy accuracies would cost; returns lines and facts."""
  assert eval_rows.budget is not None
  requests = eval_rows.charge_requests()
  lines = [_noise_line(eval_rows)]
  charge_ids = ledger.preview(
    requests,
    request.place,
    evaluation_identity(request, saved, eval_rows),
  )
  costs = costs_of(
    requests, ledger.entries(), charge_ids, eval_rows.budget.delta
  )
  if eval_rows.source.is_private:
    for cost in costs:
      lines.append(describe_planned_cost(cost, was_charged=len(charge_ids) > 0))
  else:
    lines.append(f"the noise is that of a seed, {NOT_PRIVATE}")
  facts = {
    "labels": "private",
    "private": eval_rows.source.is_private,
    "accuracy_sd": eval_rows.expected_accuracy_sd(),
    "costs": costs,
  }
  return lines, facts


def _noise_line(eval_rows: EvalRows) -> str:
  assert eval_rows.budget is not None
  cache = eval_rows.role.cache
  points = 100 * NORMAL_95 * eval_rows.expected_accuracy_sd()
  epsilon = format_rounded_up(eval_rows.budget.epsilon)
  line = (
    f"top-1 at epsilon {epsilon}, delta {eval_rows.budget.delta:g}: noise of"
    f" ±{points:.3g} points in 95 of 100 cases"
  )
  # The number of units is private, and what is paid for it is known only then.
  if cache.info.has_units:
    line += f", more with fewer units ({cache.info.unit}) than {cache.n:,}"
  return line


def _warnings_of_noise(eval_rows: EvalRows) -> list[str]:
  noise = NORMAL_95 * eval_rows.expected_accuracy_sd()
  if noise <= _LARGE_NOISE:
    return []
  return [
    f"warning: noise of ±{100 * noise:.3g} points tells little of a head: give"
    " more test rows or a larger epsilon"
  ]
