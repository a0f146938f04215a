"""Every way to train a head, at every epsilon, side by side.

See `run_files` for what it writes. Heads of one step are all made of the same
noisy sums, and cost together what one of them does; the others have releases of
their own, and everything composes.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, MethodName, PrivacyConfig
from oneshot_dp.extract.cache.info import CacheInfo
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import composed_epsilon
from oneshot_dp.linear_dp.heads.logistic.training import LogisticTrainer
from oneshot_dp.linear_dp.heads.registry import head_kind
from oneshot_dp.linear_dp.one_step.mechanism import OneStep
from oneshot_dp.linear_dp.trainer import BaselineTrainer, Mechanism
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs.evaluation import (
  check_readable,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.results import SweepRow, cost_of
from oneshot_dp.pipeline.runs.run_files import write_run
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.training.head_choice import choose_head
from oneshot_dp.pipeline.training.public_rows import (
  FoldedBaseline,
  PublicRows,
  asked_of_public_rows,
  cache_rows,
)
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_trainer,
  plan_heads,
  train_all,
)


def run_compare(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: Path,
  epsilons: tuple[float, ...],
  privacy: PrivacyConfig,
  *,
  methods: Sequence[MethodName] | None = None,
  public: PublicRows | None = None,
  num_draws: int = 1,
  baseline: bool = False,
  ledger_dir: Path | None = None,
) -> list[SweepRow]:
  """Trains, evaluates and writes a comparison.

  Formal guarantees: each head is (ε, δ)-DP at its own ε, and all of them
  together at the composed ε of the table. All is charged, or nothing, before
  any noise is drawn.

  Args:
    train: the private rows.
    evaluation: labelled rows, which are taken for public.
    out: a directory that is not there yet.
    epsilons: one head for each, per method and draw.
    privacy: delta, neighbours and noise source.
    methods: what to compare; None is all that the rows allow.
    public: what to centre or whiten the rows by.
    num_draws: independent repetitions, each charged.
    baseline: add a logistic regression, NOT PRIVATE.
    ledger_dir: None is the default place.

  Returns:
    The rows of results.csv.

  Raises:
    InputError: caches that do not fit each other, a bad request, or one that
      would break the cap; nothing is charged then.
  """
  output_dir.check_absent(out)
  FeatureSpace.of_cache(train.path, train.info).check_evaluates_on(
    FeatureSpace.of_cache(evaluation.path, evaluation.info)
  )
  groups = _groups(_methods(methods, train.info), train.info)
  trainings = [
    Training(
      trainer=cache_trainer(train, configs, public=public),
      plan=plan_heads(
        configs[0], len(train), epsilons, privacy, num_draws=num_draws
      ),
    )
    for configs in groups
  ]
  # One pass that costs no budget: a damaged evaluation cache is found now.
  check_readable(evaluation)
  trained = train_all(
    train,
    trainings,
    privacy,
    ledger_dir=ledger_dir,
    baseline=_ceiling(train, public) if baseline else None,
  )
  return write_run(
    out,
    train,
    evaluation,
    trained,
    evaluate_on_public_labels([t.head for t in trained], evaluation),
    cost=_cost(groups, trainings),
    ledger_dir=ledger_dir,
    asked={
      "heads": [c.settings() for configs in groups for c in configs],
      "epsilons": list(epsilons),
      "privacy": dataclasses.asdict(privacy),
      **asked_of_public_rows(public),
      "num_draws": num_draws,
      "baseline": baseline,
    },
    name_methods=True,
  )


def _ceiling(train: FeatureCache, public: PublicRows | None) -> BaselineTrainer:
  rows = cache_rows(train)
  if public is None:
    return LogisticTrainer(rows, step_bar)
  return FoldedBaseline(public, LogisticTrainer(public.mapped(rows), step_bar))


def _methods(
  asked: Sequence[MethodName] | None, info: CacheInfo
) -> list[MethodName]:
  if asked is not None:
    if not asked:
      raise InputError("heads is empty: give at least one, or leave it out.")
    return list(dict.fromkeys(asked))
  every: tuple[MethodName, ...] = get_args(MethodName)
  possible = [
    m for m in every if not info.has_units or head_kind(m).takes_units
  ]
  if missing := set(every) - set(possible):
    print(
      f"left out: {', '.join(sorted(missing))}, with a guarantee per example"
      f" where the privacy unit is {info.privacy_unit!r}",
      file=sys.stderr,
    )
  return possible


def _groups(
  methods: Sequence[MethodName], info: CacheInfo
) -> list[list[HeadConfig]]:
  """Heads that are made of the same releases."""
  groups: dict[type[Mechanism], list[HeadConfig]] = {OneStep: []}
  for method in methods:
    config = choose_head(HeadConfig(head=method), info)
    groups.setdefault(head_kind(config.head).mechanism, []).append(config)
  return [group for group in groups.values() if group]


def _cost(
  groups: Sequence[Sequence[HeadConfig]], trainings: Sequence[Training]
) -> dict[str, Any]:
  plans = [training.plan for training in trainings]
  return {
    "delta": plans[0].delta,
    "neighboring_relation": plans[0].neighboring_relation.name,
    "composed_epsilon": composed_epsilon(plans),
    "releases": [
      {"heads": [config.head for config in configs], **cost_of(plan)}
      for configs, plan in zip(groups, plans, strict=True)
    ],
  }
