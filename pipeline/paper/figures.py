"""The paper's figures on a cache of one's own: one method at several deltas.

DIR/results.csv              one row per head, and one more by ReaL labels
DIR/results.json             the same, with what the whole run cost
DIR/config.json              everything that was asked for
DIR/accuracy-vs-epsilon.png  and the others that `figure_plots` draws
DIR/heads/ …                 a head each
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.paper.published import Published, references_for
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs.evaluation import (
  Evaluation,
  check_readable,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.pictures import delta_name, plot_figures
from oneshot_dp.pipeline.runs.real_labels import RealLabels
from oneshot_dp.pipeline.runs.results import SweepRow, cost_of, write_tables
from oneshot_dp.pipeline.runs.run_files import row_of, write_config
from oneshot_dp.pipeline.saved_head.directory import write_head
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_trainer,
  make_plan,
  train_all,
)

PAPERS_HEAD = HeadConfig(head="lamb")


def run_figures(
  train: FeatureCache,
  evaluation: FeatureCache,
  out: Path,
  epsilons: tuple[float, ...],
  privacies: Sequence[PrivacyConfig],
  *,
  num_draws: int = 5,
  real_labels: Path | None = None,
  references: bool = False,
  baseline: bool = False,
  ledger_dir: Path | None = None,
) -> list[SweepRow]:
  """Trains, evaluates, draws and writes it.

  Formal guarantees: each head is (ε, δ)-DP at its own ε and δ. Heads of one δ
  and draw are nested, and cost what the largest ε does; draws and deltas have
  noise of their own and compose, which results.json states at each δ. The rows
  are read once, and all is charged, or nothing, before any noise is drawn.

  Args:
    train: the private rows.
    evaluation: labelled rows, which are taken for public.
    out: a directory that is not there yet.
    epsilons: one head for each, per δ and draw.
    privacies: the deltas, alike in everything else.
    num_draws: independent repetitions, each charged.
    real_labels: the file of ReaL labels of the evaluation rows.
    references: draw published numbers though it is not ImageNet.
    baseline: add the head without noise, NOT PRIVATE.
    ledger_dir: None is the default place.

  Returns:
    The rows of results.csv.

  Raises:
    InputError: caches that do not fit each other, ReaL labels that do not fit
      the evaluation rows, a bad request, or one that would break the cap;
      nothing is charged then.
  """
  output_dir.check_absent(out)
  FeatureSpace.of_cache(train.path, train.info).check_evaluates_on(
    FeatureSpace.of_cache(evaluation.path, evaluation.info)
  )
  deltas = [privacy.delta for privacy in privacies]
  if not deltas or len(set(deltas)) < len(deltas):
    raise InputError(f"deltas={deltas} must be one or more, all different.")
  plans = [
    make_plan(epsilons, privacy, num_draws=num_draws) for privacy in privacies
  ]
  trainer = cache_trainer(train, [PAPERS_HEAD])
  # Passes that cost no budget: what is damaged or does not fit is found now.
  check_readable(evaluation)
  real = None if real_labels is None else RealLabels.of(real_labels, evaluation)
  trained = train_all(
    train,
    [Training(trainer=trainer, plan=plan) for plan in plans],
    privacies[0],
    ledger_dir=ledger_dir,
    baseline=trainer if baseline else None,
  )
  heads = [each.head for each in trained]
  composed = _composed(plans)
  scored = evaluate_on_public_labels(heads, evaluation)
  rows = _rows(trained, scored, train, composed)
  statement = scored.statement
  real_rows = []
  if real:
    by_real = real.evaluate(heads, evaluation)
    real_rows = _rows(trained, by_real, train, composed)
    statement = statement | {"real": by_real.statement}
  drawn = references_for(train.info.dataset, always=references)
  with output_dir.whole_directory(out) as directory:
    for head, row in zip(trained, rows, strict=True):
      write_head(directory / row.path, head, train.info)
    write_tables(
      directory, [*rows, *real_rows], _cost(plans, composed, drawn), statement
    )
    write_config(
      directory,
      train,
      evaluation,
      {
        "head": dataclasses.asdict(PAPERS_HEAD),
        "epsilons": list(epsilons),
        "privacy": [dataclasses.asdict(privacy) for privacy in privacies],
        "num_draws": num_draws,
        "real_labels": None if real is None else real.file_sha256,
        "references": bool(drawn),
        "baseline": baseline,
      },
    )
    plot_figures(rows, real_rows, drawn, train.info.dataset, directory)
  return [*rows, *real_rows]


def _composed(plans: Sequence[ReleasePlan]) -> dict[float, float]:
  """δ → ε of all releases of all plans together, exactly.

  What pays is Gaussian mechanisms, whose composition is one of them at any δ.
  """
  sigma = accounting.compose(
    s for plan in plans for s in plan.charged_noise_multipliers
  )
  return {
    plan.delta: accounting.epsilon_of(sigma, plan.delta) for plan in plans
  }


def _rows(
  trained: Sequence[TrainedHead],
  scored: Evaluation,
  train: FeatureCache,
  composed: dict[float, float],
) -> list[SweepRow]:
  return [
    row_of(
      head,
      score,
      train,
      scored.description,
      composed_epsilon=composed[head.plan.delta],
      prefix=(
        f"{delta_name(head.plan.delta)}-" if head.statement.noise_sd else ""
      ),
    )
    for head, score in zip(trained, scored.scores, strict=True)
  ]


def _cost(
  plans: Sequence[ReleasePlan],
  composed: dict[float, float],
  references: Sequence[Published],
) -> dict[str, Any]:
  return {
    "neighboring_relation": plans[0].neighboring_relation.name,
    "composed_epsilon": {str(d): epsilon for d, epsilon in composed.items()},
    "releases": [cost_of(plan) for plan in plans],
    "references": [dataclasses.asdict(each) for each in references],
  }
