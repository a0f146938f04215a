"""What a run says about itself, from public facts alone."""

from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.pipeline.report.results import NOT_PRIVATE
from oneshot_dp.pipeline.runs.plan import Plan

# Rows of each class, in standard deviations of the noise, below which a head
# is little better than chance.
_FEW_ROWS = 3.0


def warnings_of(plan: Plan) -> list[str]:
  """Returns what a person should know before the budget is spent."""
  info = plan.train.cache.info
  warnings = list(plan.notes)
  if info.num_classes_source not in ("class_names", "flag"):
    warnings.append(
      "warning: the number of classes was read off the private labels; the"
      " guarantee holds only if it is public: import with --num-classes"
    )
  rows_of_class = plan.train.cache.n / info.num_classes
  largest = max(plan.request.epsilons)
  mu_squared = accounting.mu_squared_from_epsilon(largest, plan.request.delta)
  noise_multiplier = mu_squared**-0.5
  if rows_of_class < _FEW_ROWS * noise_multiplier:
    warnings.append(
      f"warning: about {rows_of_class:.3g} rows of each class, and noise as"
      f" large as {noise_multiplier:.3g} of them: heads will be little better"
      " than chance; give more rows, fewer classes or a larger epsilon"
    )
  return warnings


def summary_of(plan: Plan) -> str:
  """Returns one line about what is trained, on what, and what it costs."""
  request = plan.request
  info = plan.train.cache.info
  epsilons = ", ".join(map(format_rounded_up, request.epsilons))
  what = f"{' and '.join(request.heads)} at epsilon {epsilons}"
  what += f", delta {request.delta:g}"
  if request.num_draws > 1:
    what += f", {request.num_draws} draws"
  data = (
    f"from {plan.train.cache.n:,} embeddings of dimension"
    f" {info.feature_dim:,} in {info.num_classes:,} classes"
  )
  return f"{what}, {data}: {_cost_of(plan)}, in {plan.ledger.path}"


def _cost_of(plan: Plan) -> str:
  request = plan.request
  if plan.source.is_private:
    dataset = plan.train.cache.info.dataset
    total = format_rounded_up(plan.epsilon)
    text = f"{dataset!r} is charged epsilon {total} in total"
    if request.parent is not None:
      text += f", with the cost of {request.parent}"
  else:
    text = f"the noise is that of a seed, {NOT_PRIVATE}"
  if request.baseline:
    text += f", and is shown without noise, {NOT_PRIVATE}"
  if plan.source.is_private and plan.eval_rows is not None:
    for charge_request in plan.eval_rows.charge_requests():
      budget = plan.eval_rows.budget
      assert budget is not None
      text += (
        f"; accuracies cost {charge_request.dataset!r}"
        f" {format_rounded_up(budget.epsilon)}"
      )
  return text
