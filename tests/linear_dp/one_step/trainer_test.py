"""Settings of a config reach the clipping and the optimizer."""

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer
from oneshot_dp.linear_dp.one_step.trainer import make_grid, make_optimizer
from oneshot_dp.linear_dp.trainer import TrainingRows

CONFIG = HeadConfig(l2_clip_norm=0.25, initial_bias=-2.0, train_bias=True)


def rows_of(privacy_unit: str, max_rows_per_unit: int | None) -> TrainingRows:
  return TrainingRows(
    blocks=list,
    feature_dim=6,
    num_classes=4,
    num_examples=10,
    privacy_unit=privacy_unit,
    max_rows_per_unit=max_rows_per_unit,
  )


@pytest.mark.parametrize(
  ("unit", "max_rows_per_unit", "clipped", "rows_per_unit"),
  [
    ("example", None, "row", 1),
    ("user", None, "unit", 1),
    ("user", 3, "row", 3),
  ],
)
def test_clipping(unit, max_rows_per_unit, clipped, rows_per_unit):
  assert make_grid(rows_of(unit, max_rows_per_unit), CONFIG) == (
    ClippedGradientGrid(
      num_classes=4,
      feature_dim=6,
      l2_clip_norm=0.25,
      initial_bias=-2.0,
      train_bias=True,
      rows_per_unit=rows_per_unit,
      clipped=clipped,
    )
  )


def test_no_rows_are_left_out_where_each_is_a_unit():
  with pytest.raises(InputError, match="max_rows_per_unit=3, but the cache"):
    make_grid(rows_of("example", 3), CONFIG)


def test_optimizer():
  config = HeadConfig(
    head="adam", learning_rate=0.5, eps=1e-3, eps_in_noise_sds=2.0
  )
  assert make_optimizer(config) == OneStepOptimizer(
    name="adam", learning_rate=0.5, eps=1e-3, eps_in_noise_sds=2.0
  )
