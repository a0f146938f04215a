"""Every way to train a head, at every epsilon, side by side.

Heads of one kind share their releases, and cost what one of them does; kinds
compose.
"""

import dataclasses
from collections.abc import Sequence
from typing import get_args

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  AUTO,
  HeadConfig,
  HeadName,
  MethodName,
  PrivacyConfig,
)
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import composed_epsilon
from oneshot_dp.linear_dp.heads.logistic import LogisticTrainer
from oneshot_dp.linear_dp.heads.registry import grouped_by_release
from oneshot_dp.linear_dp.trainer import BaselineTrainer
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.results import SweepRow, cost_of
from oneshot_dp.pipeline.runs.run import Run, rows_of
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.public_rows import (
  FoldedBaseline,
  PublicRows,
  asked_of_public_rows,
)
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_trainer,
  plan_heads,
)


def run_compare(
  run: Run,
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  *,
  methods: Sequence[HeadName] | None = None,
  public: PublicRows | None = None,
) -> list[SweepRow]:
  """Trains, evaluates and writes a comparison; returns its results.csv.

  Formal guarantees: each head is (ε, δ)-DP at its own ε, and all of them
  together at the composed ε of the table. All is charged, or nothing, before
  any noise is drawn.

  `run.baseline` is a logistic regression; `methods` are all by default.

  Raises:
    InputError: caches that do not fit each other, a bad request, or one that
      would break the cap; nothing is charged then.
  """
  run.check()
  train, n = run.train, run.train.info.public_num_examples
  asked = choosable(methods)
  groups = grouped_by_release([HeadConfig(head=method) for method in asked])
  plans = [
    plan_heads(configs[0], n, epsilons, privacy, num_draws=run.num_draws)
    for configs in groups
  ]
  together = composed_epsilon(plans)
  cost = f"all heads together cost epsilon {printable(together)}"
  trainings = [
    Training(
      trainer=cache_trainer(train, configs, public=public, hosts=run.hosts),
      plan=plan,
      note="" if i else f"{cost} at delta {printable(privacy.delta)}",
    )
    for i, (configs, plan) in enumerate(zip(groups, plans, strict=True))
  ]
  rows = cache_rows(train)
  ceiling: BaselineTrainer = LogisticTrainer(rows, step_bar)
  if public is not None:
    mapped = LogisticTrainer(public.mapped(rows), step_bar)
    ceiling = FoldedBaseline(public, mapped)
  record = run.record(trainings, privacy)
  trained = run.trained(trainings, privacy, ceiling, record)
  scored = evaluate_on_public_labels([t.head for t in trained], run.evaluation)
  rows = rows_of(
    trained,
    scored,
    train,
    composed={privacy.delta: together},
    prefixes=[f"{head.settings['head']}-" for head in trained],
  )
  run.write(
    trained,
    rows,
    cost={
      "delta": privacy.delta,
      "neighboring_relation": plans[0].neighboring_relation.name,
      "composed_epsilon": together,
      "releases": [
        {"heads": [config.head for config in configs], **cost_of(plan)}
        for configs, plan in zip(groups, plans, strict=True)
      ],
    },
    evaluation=scored.statement,
    asked={
      "run": run.circumstances(),
      "heads": [c.settings() for configs in groups for c in configs],
      "epsilons": list(epsilons),
      "privacy": dataclasses.asdict(privacy),
      **asked_of_public_rows(public),
    },
  )
  return rows


def choosable(asked: Sequence[HeadName] | None) -> list[MethodName]:
  """The methods asked for, or all."""
  if asked is not None:
    if not asked:
      raise InputError("heads is empty: give at least one, or leave it out.")
    return list(dict.fromkeys(AUTO if m == "auto" else m for m in asked))
  return list(get_args(MethodName))
