"""Heads of each kind from rows in memory, through the door of `release`."""

from collections.abc import Callable, Iterator

from configs.errors import InputError
from configs.schema import HeadConfig
from linear_dp import whitened
from linear_dp.array_rows import ArrayRows
from linear_dp.class_moments import class_moments
from linear_dp.clipping import ClippedGradientGrid
from linear_dp.exact_sum import exact_clipped_sum
from linear_dp.head import LinearHead
from linear_dp.independent_heads import release_heads
from linear_dp.least_squares import release_least_squares
from linear_dp.noise_source import NoiseSource
from linear_dp.optimizers import OneStepOptimizer, one_step
from linear_dp.plan import PrivacyStatement, ReleasePlan
from linear_dp.release import release
from linear_dp.second_moment import second_moment
from linear_dp.secret_rows import SecretRows
from linear_dp.unit_sums import count_rows

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
  moment = second_moment(secret)

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
