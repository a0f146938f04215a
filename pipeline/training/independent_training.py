"""Training heads that each have noise of their own."""

import abc
from collections.abc import Callable, Iterator
from typing import Generic

from dp_accounting import NeighboringRelation
from tqdm import tqdm

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.own_noise import (
  IndependentHead,
  Rule,
  Train,
  head_without_privacy,
  release_heads,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.pipeline.mechanisms.mechanism import Mechanism
from oneshot_dp.pipeline.training.row_bar import counted
from oneshot_dp.pipeline.training.trainer import (
  Charging,
  TrainedHead,
  TrainingRows,
)


class IndependentTrainer(abc.ABC, Generic[Rule]):
  """See `Trainer`; for heads of several steps.

  Args:
    rows: the private rows, each a privacy unit.
    config: the head.
    max_norm: of rows that keep their norm; None is for directions.

  Raises:
    InputError: the cache has coarser units.
  """

  def __init__(
    self,
    rows: TrainingRows,
    config: HeadConfig,
    *,
    max_norm: float | None = None,
  ):
    check_rows_are_units(rows, config)
    self._rows = SecretRows(
      lambda: counted(rows, "rows"),
      feature_dim=rows.info.feature_dim,
      num_classes=rows.info.num_classes,
      num_examples=len(rows),
      max_norm=max_norm,
    )
    self._config = config
    self.facts = {"rows_per_unit": 1, "clipped": "row"}

  @abc.abstractmethod
  def read(self) -> None:
    """See `Trainer`."""

  @abc.abstractmethod
  def _rule(self, sigma: float) -> Rule:
    """The settings of a head of this noise multiplier."""

  @abc.abstractmethod
  def _num_steps(self, rule: Rule) -> int:
    """How many steps it has."""

  @abc.abstractmethod
  def _train(
    self,
    rule: Rule,
    relation: NeighboringRelation,
    source: NoiseSource | None,
    on_step: Callable[[], object],
  ) -> LinearHead:
    """Trains it."""

  @abc.abstractmethod
  def _mechanism(self, rule: Rule) -> Mechanism:
    """What it was released by."""

  def release(
    self, plan: ReleasePlan, source: NoiseSource, charge: Charging
  ) -> Iterator[TrainedHead]:
    """See `Trainer`."""
    rules = map(self._rule, plan.noise_multipliers.values())
    steps = plan.num_draws * sum(map(self._num_steps, rules))
    with step_bar("steps", "step", steps) as bar:
      train = self._one(plan, bar)
      for released in release_heads(train, plan, source, charge=charge):
        yield self._trained(released, plan)

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    """See `Trainer`."""
    with step_bar("steps without noise", "step") as bar:
      released = head_without_privacy(self._one(plan, bar), plan)
    return self._trained(released, plan)

  def _one(self, plan: ReleasePlan, bar: tqdm) -> Train[Rule]:
    def train(
      sigma: float, source: NoiseSource | None
    ) -> tuple[LinearHead, Rule]:
      rule = self._rule(sigma)
      relation = plan.neighboring_relation
      return self._train(rule, relation, source, bar.update), rule

    return train

  def _trained(
    self, released: IndependentHead[Rule], plan: ReleasePlan
  ) -> TrainedHead:
    return TrainedHead(
      head=released.head,
      statement=released.statement,
      mechanism=self._mechanism(released.rule),
      plan=plan,
      settings=self._config.settings(),
      draw=released.draw,
    )


def check_rows_are_units(rows: TrainingRows, config: HeadConfig) -> None:
  """Refuses rows of which a privacy unit may have many.

  Raises:
    InputError: the cache has units that are coarser than a row.
  """
  if rows.info.has_units:
    raise InputError(
      f"head={config.head!r} has a guarantee per example, and the privacy unit"
      f" of this cache is {rows.info.privacy_unit!r}; use --head lamb."
    )
