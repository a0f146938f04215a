"""Many private heads from one pass over a cache, scored and reported."""

import dataclasses

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  ReleaseOrder,
)
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.choice import choose_head, in_a_line
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.runs.evaluation import (
  PrivateEvaluation,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.results import SweepRow, cost_of
from oneshot_dp.pipeline.runs.run import Run, rows_of
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.public_rows import (
  PublicRows,
  asked_of_public_rows,
)
from oneshot_dp.pipeline.training.record import Payments
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_ledger,
  cache_trainer,
  plan_heads,
)


def run_sweep(
  run: Run,
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  config: HeadConfig,
  *,
  order: ReleaseOrder | None = None,
  max_rows_per_unit: int | None = None,
  public: PublicRows | None = None,
  private_eval: float | None = None,
) -> list[SweepRow]:
  """Trains, evaluates and writes a sweep; returns the rows of results.csv.

  The `order` of releases is the cheapest by default. `private_eval` is the ε of
  all accuracies together, charged to the ledger of the evaluation rows; None
  takes their labels for public. See `train_heads` for the rest.

  Raises:
    InputError: caches that do not fit each other, or a bad request; nothing is
      charged then.
  """
  run.check(labels_are_public=private_eval is None)
  rows_given = cache_rows(run.train)
  choice = choose_head(config, rows_given)
  config = choice.config
  plan = plan_heads(
    config,
    run.train.info.public_num_examples,
    epsilons,
    privacy,
    order=order,
    num_draws=run.num_draws,
  )
  trainer = cache_trainer(
    run.train, [config], max_rows_per_unit, public=public, hosts=run.hosts
  )
  note = in_a_line(choice, plan, rows_given)
  training = Training(trainer=trainer, plan=plan, note=note)
  record = run.record([training], privacy, private_eval)
  request = None
  if private_eval is not None:
    request = _private_evaluation(run, plan, privacy, private_eval, record)
  trained = run.trained([training], privacy, trainer, record)
  heads = [each.head for each in trained]
  if request:
    scored = request.evaluate(heads)
  else:
    scored = evaluate_on_public_labels(heads, run.evaluation)
  composed = {plan.delta: plan.composed_epsilon}
  rows = rows_of(trained, scored, run.train, composed=composed)
  run.write(
    trained,
    rows,
    cost=cost_of(plan),
    evaluation=scored.statement,
    asked={
      "run": run.circumstances(),
      "epsilons": list(epsilons),
      "privacy": dataclasses.asdict(privacy),
      "head": config.settings(),
      "max_rows_per_unit": max_rows_per_unit,
      **asked_of_public_rows(public),
      "release": plan.order,
      "private_eval": private_eval,
    },
  )
  return rows


def _private_evaluation(
  run: Run,
  plan: ReleasePlan,
  privacy: PrivacyConfig,
  epsilon: float,
  record: Payments,
) -> PrivateEvaluation:
  """The request, once heads and accuracies fit under the caps together."""
  units = [run.train.info.privacy_unit, run.evaluation.info.privacy_unit]
  if units[0] != units[1]:
    raise InputError(
      f"private_eval={epsilon:g} is about one {units[1]}, and the heads are"
      f" about one {units[0]}: epsilons of both do not add up; leave"
      " private_eval out, and score on public labels."
    )
  request = PrivateEvaluation.of(
    epsilon, privacy, run.evaluation, run.ledger_dir, record
  )
  before = []
  if request.ledger.path == cache_ledger(run.train, run.ledger_dir).path:
    unit = run.train.info.privacy_unit
    before = [Charge.of_plan(plan, request.source, privacy_unit=unit)]
    before += [Charge.of_baseline(privacy_unit=unit)] * run.baseline
  record.check(request.ledger, *before, request.charge, at_once=False)
  return request
