"""Heads that share no noise: each draw and ε is trained from the beginning."""

import abc
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.trainer import (
  ROWS_ARE_CLIPPED,
  Charging,
  Mechanism,
  NoBar,
  OnRelease,
  Progress,
  Released,
  TrainedHead,
  Trainer,
  TrainingRows,
  unseen,
)

GRADIENT_SUM = "gradient sum"
"""What every step releases."""


class StepsRule(Mechanism):
  """The settings of a head of several steps."""

  @property
  @abc.abstractmethod
  def num_steps(self) -> int:
    """T."""


Rule = TypeVar("Rule", bound=StepsRule)


class OwnNoiseTrainer(Trainer, Generic[Rule]):
  """See `Trainer`; a head of several steps says how it takes them.

  Statements are in units of the sensitivity of one mechanism of the plan.

  Args:
    rows: the private rows, each a privacy unit.
    configs: the head.
    progress: bars for people.
    max_norm: the longest that a row may be; None is for directions alone.
  """

  facts = ROWS_ARE_CLIPPED

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    progress: Progress = NoBar,
    *,
    max_norm: float | None = None,
  ):
    self._rows = SecretRows(
      lambda: rows.shown("rows", progress),
      feature_dim=rows.feature_dim,
      num_classes=rows.num_classes,
      num_examples=rows.num_examples,
      max_norm=max_norm,
    )
    self._are_centred = rows.are_centred
    (self._config,) = configs
    self._progress = progress

  @abc.abstractmethod
  def read(self) -> None:
    """See `Trainer`."""

  @abc.abstractmethod
  def rule(self, sigma: float) -> Rule:
    """The settings of a head of this noise multiplier; 0 is without noise."""

  @abc.abstractmethod
  def train(
    self,
    rule: Rule,
    relation: NeighboringRelation,
    source: NoiseSource | None,
    on_release: OnRelease,
  ) -> LinearHead:
    """Trains it, at the cost that the plan says; without noise if no source."""

  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    """See `Trainer`.

    Raises:
      InputError: a nested plan.
    """
    if plan.order != "independent":
      raise InputError(f"order={plan.order!r}: these heads share no noise.")
    rules = {e: self.rule(s) for e, s in plan.noise_multipliers.items()}
    steps = plan.num_draws * sum(rule.num_steps for rule in rules.values())
    charge(plan, source)
    with self._progress("steps", "step", steps) as bar:

      def shown(released: Released) -> None:
        on_release(released)
        if released.name == GRADIENT_SUM:
          bar.update()

      for draw in range(plan.num_draws):
        for epsilon, rule in rules.items():
          statement = PrivacyStatement.of_plan(
            plan,
            epsilon,
            source,
            sensitivity=1.0,
            noise_sd=plan.noise_multipliers[epsilon],
          )
          head = self.train(rule, plan.neighboring_relation, source, shown)
          yield self._trained(head, rule, statement, plan, draw)

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `Trainer`."""
    rule, relation = self.rule(0.0), plan.neighboring_relation
    with self._progress("steps without noise", "step", None) as bar:
      head = self.train(rule, relation, None, lambda _: bar.update())
    statement = PrivacyStatement.without_privacy(plan.delta, relation)
    return self._trained(head, rule, statement, plan)

  def _trained(
    self,
    head: LinearHead,
    rule: Rule,
    statement: PrivacyStatement,
    plan: ReleasePlan,
    draw: int = 0,
  ) -> TrainedHead:
    return TrainedHead(
      head=head,
      statement=statement,
      mechanism=rule,
      plan=plan,
      settings=self._config.settings(),
      draw=draw,
    )
