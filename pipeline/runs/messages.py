"""Lines that a run prints about itself, from public facts alone."""

import math
from collections.abc import Sequence

from oneshot_dp.configs.errors import names_alike
from oneshot_dp.configs.extract_config import unit_without_relation
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import (
  format_rounded_down,
  format_rounded_up,
)
from oneshot_dp.linear_dp.train import (
  LITTLE_BETTER_THAN_CHANCE,
  describe_few_rows,
)
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.report.results import NOT_PRIVATE
from oneshot_dp.pipeline.runs.costs import (
  DatasetCost,
  costs_of,
  describe_cost,
  describe_planned_cost,
)
from oneshot_dp.pipeline.runs.plan import Plan


def warnings_of(plan: Plan) -> list[str]:
  """Returns what a person should know before the budget is spent."""
  info = plan.train.cache.info
  warnings = list(plan.notes)
  if info.num_classes_source not in ("class_names", "flag"):
    warnings.append(
      "WARNING: the number of classes was read off the private labels; the"
      " guarantee holds only if it is public: import with --num-classes, or"
      " extract with --class-names"
    )
  warnings += _similar_class_names(info.class_names)
  few_rows = describe_few_rows(
    plan.train.cache.n / info.num_classes, noise_multiplier_of(plan)
  )
  if few_rows:
    warnings.append(
      f"WARNING: {few_rows}; give more rows, fewer classes or a larger epsilon"
      " (README has a table of accuracies)"
    )
  if info.has_units:
    num_units = (
      LITTLE_BETTER_THAN_CHANCE * noise_multiplier_of(plan) * info.num_classes
    )
    unit = unit_without_relation(info.unit)
    warnings.append(
      f"note: all rows of one {unit} together weigh as much as one row. With"
      f" fewer than about {math.ceil(num_units):,} such units, however many"
      " rows they have, heads will be little better than chance"
    )
  return warnings


def noise_multiplier_of(plan: Plan) -> float:
  """Returns σ of the largest ε: the noise of all its releases together."""
  mu_squared = accounting.mu_squared_from_epsilon(
    max(plan.request.epsilons), plan.request.delta
  )
  return mu_squared**-0.5


def _similar_class_names(class_names: Sequence[str]) -> list[str]:
  """Warns of names that a person would take for one."""
  warnings = []
  for first, *others in names_alike(class_names):
    for other in others:
      warnings.append(
        f"WARNING: {first!a} and {other!a} are two classes: if they are one,"
        " rename one of them and extract again"
      )
  return warnings


def costs_with_ledger(
  plan: Plan, charge_ids: Sequence[str] = ()
) -> list[DatasetCost]:
  """Returns what the run costs each data set, with what was spent before.

  Args:
    plan: the run.
    charge_ids: its charges, if it was charged already.
  """
  return costs_of(
    plan.charge_requests, plan.ledger.entries(), charge_ids, plan.request.delta
  )


def summary_of(plan: Plan, charge_ids: Sequence[str]) -> str:
  """Returns one line about what is trained, on what, and what was charged.

  Args:
    plan: the run.
    charge_ids: its charges in the ledger, in any order.
  """
  costs = costs_with_ledger(plan, charge_ids)
  # With seeded noise no ε is stated, as none holds.
  parts = [f"{_exposure_of(plan)}; noted in {plan.ledger.path}"]
  if plan.source.is_private:
    charges = [describe_cost(cost, "is charged") for cost in costs]
    parts = [f"{'; '.join(charges)}, in {plan.ledger.path}"]
    if plan.request.baseline:
      parts.append(f"there are heads without noise, {NOT_PRIVATE}")
  return f"{_describe_training(plan)}: {'; '.join(parts)}"


def dry_run_lines(plan: Plan, charge_ids: Sequence[str]) -> list[str]:
  """Returns what a run would do and cost; nothing was charged.

  Args:
    plan: the run.
    charge_ids: its charges, if it was charged already and stopped.
  """
  lines = [_describe_training(plan)]
  noise = f"noise multiplier {format_rounded_down(noise_multiplier_of(plan))}"
  if len(plan.request.epsilons) > 1:
    noise += " at the largest epsilon"
  lines.append(noise)
  if not plan.source.is_private:
    lines.append(_exposure_of(plan))
  else:
    for cost in costs_with_ledger(plan, charge_ids):
      lines.append(describe_planned_cost(cost, was_charged=len(charge_ids) > 0))
  lines.append(end_of_dry_run(plan.ledger))
  return lines


def end_of_dry_run(ledger: Ledger) -> str:
  """Returns the last line of what a dry run says."""
  return f"dry run: nothing was written, and nothing charged to {ledger.path}"


def _exposure_of(plan: Plan) -> str:
  text = f"the noise comes from a seed, {NOT_PRIVATE}"
  if plan.request.baseline:
    text += f", and heads without noise are shown, {NOT_PRIVATE}"
  return text


def _describe_training(plan: Plan) -> str:
  request = plan.request
  cache = plan.train.cache
  epsilons = ", ".join(map(format_rounded_up, request.epsilons))
  what = f"{' and '.join(request.heads)} at epsilon {epsilons}"
  what += f", delta {request.delta:g}"
  if request.num_draws > 1:
    what += f", {request.num_draws} draws"
  number = f"{cache.n:,}"
  if not cache.part.is_whole:
    # How many rows a part has is private; the mean is public.
    share = cache.part.last - cache.part.first
    number = f"about {share} % of {cache.info.source_num_examples:,}"
  return (
    f"{what}, from {number} embeddings of dimension"
    f" {cache.info.feature_dim:,} in {cache.info.num_classes:,} classes"
  )
