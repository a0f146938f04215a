"""Training whitened heads: one pass for the moment, many for the steps."""

import sys
from collections.abc import Callable, Iterator

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.whitened import whitened
from oneshot_dp.linear_dp.heads.whitened.whitened import (
  ROWS_TO_WHITEN,
  WhiteningRule,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.pipeline.mechanisms import Whitened
from oneshot_dp.pipeline.training.independent_training import IndependentTrainer
from oneshot_dp.pipeline.training.trainer import (
  Charging,
  TrainedHead,
  TrainingRows,
)


class WhitenedTrainer(IndependentTrainer[WhiteningRule]):
  """See `IndependentTrainer`.

  Args:
    rows: the private rows, each a privacy unit.
    centres: whether to spend on their mean; not where public rows gave one.
  """

  def __init__(self, rows: TrainingRows, *, centres: bool = True):
    super().__init__(rows, HeadConfig(head="whitened"))
    self._centres = centres

  def read(self) -> None:
    """See `Trainer`."""
    self._moment = class_moments(self._rows)

  def release(
    self, plan: ReleasePlan, source: NoiseSource, charge: Charging
  ) -> Iterator[TrainedHead]:
    """See `Trainer`; says first which settings follow for each epsilon."""
    for epsilon, sigma in plan.noise_multipliers.items():
      print(
        f"epsilon {epsilon:g}: {_in_words(self._rule(sigma))}", file=sys.stderr
      )
    yield from super().release(plan, source, charge)

  def _rule(self, sigma: float) -> WhiteningRule:
    return WhiteningRule.of(self._rows, sigma, centres=self._centres)

  def _num_steps(self, rule: WhiteningRule) -> int:
    return rule.num_steps

  def _train(
    self,
    rule: WhiteningRule,
    relation: NeighboringRelation,
    source: NoiseSource | None,
    on_step: Callable[[], object],
  ) -> LinearHead:
    return whitened.train(
      self._rows, self._moment, rule, relation, source, on_step
    )

  def _mechanism(self, rule: WhiteningRule) -> Whitened:
    return Whitened(rule=rule)


def _in_words(rule: WhiteningRule) -> str:
  """What follows from n, d, K and the noise, and why."""
  rows = rule.num_examples / (rule.num_classes * rule.noise_multiplier)
  than = ">=" if rule.whitens else "<"
  return (
    f"{'whitened' if rule.whitens else 'not whitened'}, as n/(K*sigma) ="
    f" {rows:.0f} {than} {ROWS_TO_WHITEN:.0f}; {rule.num_steps} steps of"
    f" learning rate {rule.learning_rate:.3g}"
  )
