"""Many private heads from one pass over a cache, scored and reported.

See `run_files` for what it writes.
"""

import dataclasses
from pathlib import Path

from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  ReleaseOrder,
)
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs.evaluation import (
  PrivateEvaluation,
  check_counts_units,
  check_readable,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.results import SweepRow, cost_of
from oneshot_dp.pipeline.runs.run_files import write_run
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.training.public_rows import (
  PublicRows,
  asked_of_public_rows,
)
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  cache_trainer,
  plan_heads,
  train_heads,
)


def run_sweep(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: Path,
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  config: HeadConfig,
  *,
  max_rows_per_unit: int | None = None,
  public: PublicRows | None = None,
  num_draws: int,
  order: ReleaseOrder | None = None,
  baseline: bool,
  ledger_dir: Path | None,
  private_eval: float | None = None,
) -> list[SweepRow]:
  """Trains, evaluates and writes a sweep.

  Args:
    train: the private rows.
    evaluation: labelled rows; public, unless there is a `private_eval`.
    out: a directory that is not there yet.
    epsilons: one head for each, per draw.
    privacy: delta, neighbours and noise source.
    config: clipping and optimizer.
    max_rows_per_unit: see `train_heads`.
    public: what to centre or whiten the rows by.
    num_draws: independent repetitions, each charged.
    order: nested or independent releases; None is the cheapest.
    baseline: add the head without noise, NOT PRIVATE.
    ledger_dir: None is the default place.
    private_eval: ε of all accuracies together, charged to the ledger of the
      evaluation rows; None takes their labels for public.

  Returns:
    The rows of results.csv.

  Raises:
    InputError: caches that do not fit each other, or a bad request; nothing is
      charged then.
  """
  output_dir.check_absent(out)
  FeatureSpace.of_cache(train.path, train.info).check_evaluates_on(
    FeatureSpace.of_cache(evaluation.path, evaluation.info)
  )
  plan = plan_heads(
    config, len(train), epsilons, privacy, order=order, num_draws=num_draws
  )
  # What it refuses.
  cache_trainer(train, [config], max_rows_per_unit, public=public)
  request = None
  if private_eval is not None:
    check_counts_units(train.info, evaluation.info)
    request = PrivateEvaluation.of(
      private_eval, privacy, evaluation, ledger_dir
    )
    one_ledger = request.ledger.path == cache_ledger(train, ledger_dir).path
    before = [Charge.of_plan(plan, request.source)] if one_ledger else []
    request.ledger.check(*before, request.charge)
  # One pass that costs no budget: a damaged evaluation cache is found now.
  check_readable(evaluation)
  trained = train_heads(
    train,
    plan,
    config,
    privacy,
    max_rows_per_unit=max_rows_per_unit,
    public=public,
    ledger_dir=ledger_dir,
    baseline=baseline,
  )
  heads = [t.head for t in trained]
  scored = (
    request.evaluate(heads)
    if request
    else evaluate_on_public_labels(heads, evaluation)
  )
  return write_run(
    out,
    train,
    evaluation,
    trained,
    scored,
    cost=cost_of(plan),
    ledger_dir=ledger_dir,
    asked={
      "epsilons": list(epsilons),
      "privacy": dataclasses.asdict(privacy),
      "head": config.settings(),
      "max_rows_per_unit": max_rows_per_unit,
      **asked_of_public_rows(public),
      "num_draws": num_draws,
      "release": plan.order,
      "baseline": baseline,
      "private_eval": private_eval,
    },
  )
