"""The rows of an ablation: its heads, scored."""

import dataclasses
from collections.abc import Sequence

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.multi_step.rule import make_batches
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.paper.ablation_cells import Cell
from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.runs.evaluation import (
  Evaluation,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.run_files import row_of


def evaluations_of(
  tried: Sequence[Cell],
  trained: Sequence[Sequence[TrainedHead]],
  evaluations: Sequence[FeatureCache],
) -> list[Evaluation]:
  """The scores of each cell's heads; one pass over each cache."""
  cells_and_heads = list(zip(tried, trained, strict=True))
  found = []
  for i, evaluation in enumerate(evaluations):
    heads = [
      t.head for cell, of in cells_and_heads if cell.cache == i for t in of
    ]
    found.append(evaluate_on_public_labels(heads, evaluation))
  scores = [iter(each.scores) for each in found]
  return [
    dataclasses.replace(
      found[cell.cache], scores=[next(scores[cell.cache]) for _ in of]
    )
    for cell, of in cells_and_heads
  ]


def rows_of(
  cell: Cell,
  trained: Sequence[TrainedHead],
  scored: Evaluation,
  train: FeatureCache,
  together: float,
  epsilon_if_poisson: float | None,
) -> list[AblationRow]:
  """The lines of results.csv about a cell's heads."""
  rows = []
  for head, score in zip(trained, scored.scores, strict=True):
    row = row_of(
      head,
      score,
      train,
      scored.description,
      composed_epsilon=together,
      prefix=f"{cell.name}-",
    )
    rows.append(
      AblationRow(
        **dataclasses.asdict(row),
        axis=cell.axis,
        setting=cell.setting,
        cache=cell.cache,
        epsilon_if_poisson=(
          epsilon_if_poisson if head.statement.noise_sd else None
        ),
      )
    )
  return rows


def as_in_the_paper(
  head: HeadConfig, plan: ReleasePlan, num_examples: int
) -> float | None:
  """ε that shuffled batches would have if they were Poisson samples."""
  if head.steps.sampling != "partition":
    return None
  (sigma,) = plan.noise_multipliers.values()
  batches = make_batches(head.steps, num_examples, sigma)
  return batches.poisson.epsilon_of(
    batches.step_noise_multiplier(sigma), plan.delta
  )
