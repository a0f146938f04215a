"""The rows of an ablation: its heads, scored."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.multi_step.rule import make_batches
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.paper.ablation_cells import Cell
from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.runs.evaluation import evaluate_on_public_labels
from oneshot_dp.pipeline.runs.run import rows_of


class Planned(NamedTuple):
  """A cell of the ablation, and what it will cost.

  Attributes:
    cell: what is tried.
    plan: its releases.
    epsilon_if_poisson: see `AblationRow`.
  """

  cell: Cell
  plan: ReleasePlan
  epsilon_if_poisson: float | None


def ablation_rows(
  done: Sequence[tuple[Planned, list[TrainedHead]]],
  pairs: Sequence[tuple[FeatureCache, FeatureCache]],
  composed: Mapping[float, float],
) -> list[AblationRow]:
  """The lines of results.csv, from one pass over each evaluation cache.

  Args:
    done: cells and their heads; those of one cache come one after another.
    pairs: the caches to train and to evaluate on.
    composed: δ → ε of all private heads together.
  """
  rows = []
  for place, of_cache in itertools.groupby(
    done, lambda each: each[0].cell.cache
  ):
    group, (train, evaluation) = list(of_cache), pairs[place]
    heads = [head.head for _, trained in group for head in trained]
    scored = evaluate_on_public_labels(heads, evaluation)
    scores = iter(scored.scores)
    for (cell, _, nominal), trained in group:
      own = list(itertools.islice(scores, len(trained)))
      plain = rows_of(
        trained,
        scored._replace(scores=own),
        train,
        composed=composed,
        prefix=lambda _, cell=cell: f"{cell.name}-",
      )
      rows += [
        AblationRow(
          **dataclasses.asdict(row),
          axis=cell.axis,
          setting=cell.setting,
          cache=place,
          epsilon_if_poisson=nominal if row.noise_multiplier else None,
        )
        for row in plain
      ]
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
