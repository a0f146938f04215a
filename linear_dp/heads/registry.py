"""Heads of each kind from rows in memory, through the door of `release`."""

from collections.abc import Callable, Iterator

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.least_squares.least_squares import (
  release_least_squares,
)
from oneshot_dp.linear_dp.heads.own_noise import release_heads
from oneshot_dp.linear_dp.heads.whitened import whitened
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import release
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step
from oneshot_dp.linear_dp.one_step.unit_sums import count_rows
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.class_moments import class_moments

HEADS = ("lamb", "adam", "momentum", "least-squares", "whitened")
"""What `released_heads` can train."""

Charging = Callable[[ReleasePlan, NoiseSource], object]


def released_heads(
  rows: ArrayRows,
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  charge: Charging,
) -> Iterator[tuple[LinearHead, PrivacyStatement]]:
  """Trains the heads of a plan.

  Formal guarantees: those of `release`, `release_least_squares` or
  `release_heads`, whichever `config.head` leads to.

  Args:
    rows: the private rows.
    config: one of `HEADS`, with its settings.
    plan: what to release.
    source: the random bits.
    charge: called once, before any noise is drawn; raises to refuse.

  Yields:
    Weights and what they guarantee, the largest ε first.

  Raises:
    InputError: rows of units, with a head that cannot use them.
  """
  train = _one_step
  if not config.is_one_step:
    train = _least_squares if config.head == "least-squares" else _whitened
  return train(rows, config, plan, source, charge)


def _one_step(
  rows: ArrayRows,
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  charge: Charging,
) -> Iterator[tuple[LinearHead, PrivacyStatement]]:
  optimizer = OneStepOptimizer.of(config)
  has_units = rows.unit_id is not None
  grid = ClippedGradientGrid.of(
    config,
    num_classes=rows.num_classes,
    feature_dim=rows.feature_dim,
    has_units=has_units,
  )
  secret = exact_clipped_sum(
    [rows],
    grid,
    num_examples=len(rows),
    sizes=count_rows([rows]) if has_units else None,
  )
  for each in release(secret, plan, source, charge=charge):
    yield one_step(each, optimizer), each.statement


def _least_squares(
  rows: ArrayRows,
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  charge: Charging,
) -> Iterator[tuple[LinearHead, PrivacyStatement]]:
  moments = class_moments(_secret_rows(rows, config))
  for each in release_least_squares(moments, plan, source, charge=charge):
    yield each.head, each.statement


def _whitened(
  rows: ArrayRows,
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  charge: Charging,
) -> Iterator[tuple[LinearHead, PrivacyStatement]]:
  secret = _secret_rows(rows, config)
  moment = class_moments(secret)

  def train(
    sigma: float, source: NoiseSource | None
  ) -> tuple[LinearHead, whitened.WhiteningRule]:
    rule = whitened.WhiteningRule.of(secret, sigma)
    relation = plan.neighboring_relation
    return whitened.train(secret, moment, rule, relation, source), rule

  for each in release_heads(train, plan, source, charge=charge):
    yield each.head, each.statement


def _secret_rows(rows: ArrayRows, config: HeadConfig) -> SecretRows:
  if rows.unit_id is not None:
    raise InputError(
      f"head={config.head!r} takes every row for a unit of its own, and there"
      " are unit_ids: use head='lamb', 'adam' or 'momentum'."
    )
  return SecretRows(
    lambda: [rows],
    feature_dim=rows.feature_dim,
    num_classes=rows.num_classes,
    num_examples=len(rows),
  )
