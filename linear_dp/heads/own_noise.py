"""Heads of unit rows: of any kind, and those whose noise is their own."""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes
from oneshot_dp.linear_dp.trainer import (
  ROWS_ARE_CLIPPED,
  Charging,
  HeadTrainer,
  Mechanism,
  NoBar,
  OnRelease,
  Progress,
  Released,
  Resumable,
  TrainedHead,
  TrainingRows,
  disk_of,
  unseen,
)

GRADIENT_SUM = "gradient sum"
"""What every step releases."""


class Door(NamedTuple):
  """How what a head is made of leaves.

  Attributes:
    relation: which data sets count as neighbours.
    source: of samples and noise; None adds no noise, which is NOT PRIVATE.
    on_release: called with all that leaves, in order.
  """

  relation: NeighboringRelation
  source: NoiseSource | None
  on_release: OnRelease = unseen

  def let_out(
    self,
    name: str,
    make: Callable[[], Float64[np.ndarray, "..."]],
    noise_multiplier: float,
    grid_step: float,
    **at: Any,
  ) -> Float64[np.ndarray, "..."]:
    """Makes and shows a release; for what it is told, see `Released`.

    `NoiseSource.once` has it made; what has no noise is made anew.
    """
    value = make() if self.source is None else self.source.once(name, make)
    self.on_release(
      Released(
        name=name,
        value=value,
        noise_multiplier=noise_multiplier,
        grid_step=grid_step,
        at=at,
      )
    )
    return value


def secret_rows(
  rows: TrainingRows,
  progress: Progress = NoBar,
  max_norm: float | None = None,
  sizes: UnitSizes | None = None,
) -> SecretRows:
  """The rows of a trainer, or of a host that helps it."""
  return SecretRows(
    lambda: rows.shown("rows", progress),
    feature_dim=rows.feature_dim,
    num_classes=rows.num_classes,
    num_examples=rows.num_examples,
    num_rows=rows.num_rows,
    most_rows=rows.most_rows,
    has_units=rows.has_units,
    max_norm=max_norm,
    hosts=rows.hosts,
    own_rows=rows.own_rows,
    sizes=sizes,
  )


class RowsTrainer(HeadTrainer):
  """Reads rows, or units as mean rows, by way of `SecretRows`."""

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    progress: Progress = NoBar,
    *,
    max_norm: float | None = None,
  ):
    super().__init__(rows, configs, progress)
    (self._config,) = configs
    self.facts = ROWS_ARE_CLIPPED | {"clipped": rows.clipped}
    self._rows = secret_rows(rows, progress, max_norm)

  def _trained(
    self,
    head: LinearHead,
    mechanism: Mechanism,
    statement: PrivacyStatement,
    plan: ReleasePlan,
    draw: int = 0,
  ) -> TrainedHead:
    return TrainedHead(
      head=head,
      statement=statement,
      mechanism=mechanism,
      plan=plan,
      settings=self._config.settings() | mechanism.training(),
      draw=draw,
    )


class StepsRule(Mechanism):
  """The settings of a head of several steps."""

  @property
  @abc.abstractmethod
  def num_steps(self) -> int:
    """T."""


Rule = TypeVar("Rule", bound=StepsRule)


def _counted(bar: Any, on_release: OnRelease = unseen) -> OnRelease:
  """Shows a release, and a step of the bar for each that is one."""

  def shown(released: Released) -> None:
    on_release(released)
    if released.name == GRADIENT_SUM:
      bar.update()

  return shown


class OwnNoiseTrainer(RowsTrainer, Generic[Rule]):
  """Heads of several steps: each draw and ε is trained from the beginning.

  Statements are in units of the sensitivity of one mechanism of the plan.
  """

  @abc.abstractmethod
  def rule(self, sigma: float) -> Rule:
    """The settings of a head of this noise multiplier; 0 is without noise."""

  def rules(self, plan: ReleasePlan) -> dict[float, Rule]:
    """ε → the settings of its head, in the order of training."""
    if plan.order != "independent":
      raise InputError(f"order={plan.order!r}: these heads share no noise.")
    return {e: self.rule(s) for e, s in plan.noise_multipliers.items()}

  def settled(self, rule: Rule, door: Door) -> Rule:
    """The settings, with what a first release has to say."""
    return rule

  @abc.abstractmethod
  def train(self, rule: Rule, door: Door) -> LinearHead:
    """Trains it, at the cost that the plan says; without noise if no source."""

  def resumes_by(self, plan: ReleasePlan) -> Resumable:
    rules = self.rules(plan).values()
    steps = plan.num_draws * sum(rule.num_steps for rule in rules)
    d, num_classes = self._rows.feature_dim, self._rows.num_classes
    count, before = plan.num_draws * len(rules), d * d + d + num_classes + 1
    return Resumable(
      num_steps=steps,
      num_bytes=disk_of(steps, d * num_classes)
      + disk_of(count, before)
      + disk_of(3 * count, 0),
      settings={
        "training": self._config.settings(),
        "mechanisms": [rule.as_json() for rule in rules],
      },
    )

  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    rules = self.rules(plan)
    steps = plan.num_draws * sum(rule.num_steps for rule in rules.values())
    charge(plan, source)
    with self._progress("steps", "step", steps) as bar:
      shown = _counted(bar, on_release)
      door = Door(plan.neighboring_relation, source, shown)
      for draw in range(plan.num_draws):
        heads = (
          self._through(
            door,
            rule,
            PrivacyStatement.of_plan(
              plan,
              epsilon,
              source,
              sensitivity=1.0,
              noise_sd=plan.noise_multipliers[epsilon],
            ),
            plan,
            draw,
          )
          for epsilon, rule in rules.items()
        )
        # Nested ones are trained the other way round, each from the last.
        nested = plan.order == "nested"
        yield from reversed(list(heads)) if nested else heads

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    relation = plan.neighboring_relation
    statement = PrivacyStatement.without_privacy(plan.delta, relation)
    with self._progress("steps without noise", "step", None) as bar:
      door = Door(relation, None, _counted(bar))
      return self._through(door, self.rule(0.0), statement, plan)

  def _through(
    self,
    door: Door,
    rule: Rule,
    statement: PrivacyStatement,
    plan: ReleasePlan,
    draw: int = 0,
  ) -> TrainedHead:
    rule = self.settled(rule, door)
    head = self.train(rule, door)
    return self._trained(head, rule, statement, plan, draw)
