"""The paper's figures on a cache of one's own: one method at several deltas.

What it writes is a run's (see `runs.run`), with a second row of results.csv for
each head by ReaL labels, and the pictures of `figure_plots`.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.paper.published import references_for
from oneshot_dp.pipeline.runs import results
from oneshot_dp.pipeline.runs.evaluation import (
  PUBLIC_STATEMENT,
  Evaluation,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.real_labels import RealLabels
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run, rows_of
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_trainer,
  make_plan,
)

PAPERS_HEAD = HeadConfig(head="lamb")


def run_figures(
  run: Run,
  epsilons: tuple[float, ...],
  privacies: Sequence[PrivacyConfig],
  *,
  real_labels: Path | None = None,
  references: bool = False,
) -> list[SweepRow]:
  """Trains, evaluates, draws and writes it; returns its results.csv.

  Formal guarantees: each head is (ε, δ)-DP at its own ε and δ. Heads of one δ
  and draw are nested, and cost what the largest ε does; draws and deltas have
  noise of their own and compose, which results.json states at each δ. The rows
  are read once, and all is charged, or nothing, before any noise is drawn.

  `privacies` are the deltas, alike in everything else; `references` draws
  published numbers though it is not ImageNet. InputError: caches, or ReaL
  labels, that do not fit, or a bad request; nothing is charged then.
  """
  run.check()
  train, evaluation = run.train, run.evaluation
  deltas = [privacy.delta for privacy in privacies]
  if not deltas or len(set(deltas)) < len(deltas):
    raise InputError(f"deltas={deltas} must be one or more, all different.")
  plans = [
    make_plan(epsilons, privacy, num_draws=run.num_draws)
    for privacy in privacies
  ]
  trainer = cache_trainer(train, [PAPERS_HEAD])
  real = None if real_labels is None else RealLabels.of(real_labels, evaluation)
  trainings = [Training(trainer=trainer, plan=plan) for plan in plans]
  record = run.record(trainings, privacies[0])
  trained = run.trained(trainings, privacies[0], trainer, record)
  heads = [each.head for each in trained]
  # δ → ε of all releases of all plans together, exactly: all are Gaussian.
  sigma = accounting.compose(
    s for plan in plans for s in plan.charged_noise_multipliers
  )
  composed = {d: accounting.epsilon_of(sigma, d) for d in deltas}

  def rows_by(scored: Evaluation) -> list[SweepRow]:
    return rows_of(
      trained,
      scored,
      train,
      composed=composed,
      prefixes=[
        f"delta-{head.plan.delta}-" if head.statement.noise_sd else ""
        for head in trained
      ],
    )

  rows = rows_by(evaluate_on_public_labels(heads, evaluation))
  statement, real_rows = PUBLIC_STATEMENT, []
  if real:
    by_real = real.evaluate(heads, evaluation)
    real_rows = rows_by(by_real)
    statement = statement | {"real": by_real.statement}
  drawn = references_for(run.dataset, always=references)

  def plot(folder: Path) -> None:
    from oneshot_dp.pipeline.paper.figure_plots import plot_figures

    plot_figures(rows, real_rows, drawn, run.dataset, folder)

  run.write(
    trained,
    [*rows, *real_rows],
    cost={
      "neighboring_relation": plans[0].neighboring_relation.name,
      "composed_epsilon": {str(delta): e for delta, e in composed.items()},
      "releases": [results.cost_of(plan) for plan in plans],
      "references": [dataclasses.asdict(each) for each in drawn],
    },
    evaluation=statement,
    asked={
      "head": dataclasses.asdict(PAPERS_HEAD),
      "epsilons": list(epsilons),
      "privacy": [dataclasses.asdict(privacy) for privacy in privacies],
      "real_labels": None
      if real is None
      else real.statement["real_labels_sha256"],
      "references": bool(drawn),
    },
    plot=plot,
  )
  return [*rows, *real_rows]


def figures_table(rows: Sequence[SweepRow]) -> str:
  """One line per delta and kind of labels, one column per epsilon."""
  about: dict[tuple[str, str], list[SweepRow]] = {}
  for row in rows:
    delta = f"delta {printable(row.delta)}"
    name = delta if math.isfinite(row.epsilon) else "no noise"
    about.setdefault((name, row.evaluation), []).append(row)
  lines = []
  for (name, evaluation), group in about.items():
    labels = f"({evaluation}: {group[0].num_eval_examples:,} rows)"
    note = "  ".join(filter(None, [results.mark(group), labels]))
    lines.append((name, group, note))
  together = ", or ".join(
    f"epsilon = {printable(each[0].composed_epsilon)} at delta ="
    f" {printable(delta)}"
    for delta, each in results.grouped(rows, "delta").items()
  )
  return results.epsilon_table(
    lines,
    f"all private heads together: {together}; trained on"
    f" {rows[0].num_examples:,} examples",
  )
