"""Settings reach each kind of head as they were asked for."""

import numpy as np
import pytest

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.heads.whitened.whitened import WhiteningRule
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.rows.arrays import ArrayRows
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows

CONFIG = HeadConfig(l2_clip_norm=0.25, initial_bias=-2.0, train_bias=True)


@pytest.mark.parametrize(
  ("has_units", "max_rows_per_unit", "clipped", "rows_per_unit"),
  [
    (False, None, "row", 1),
    (True, None, "unit", 1),
    (True, 3, "row", 3),
  ],
)
def test_clipping(has_units, max_rows_per_unit, clipped, rows_per_unit):
  grid = ClippedGradientGrid.of(
    CONFIG,
    num_classes=4,
    feature_dim=6,
    has_units=has_units,
    max_rows_per_unit=max_rows_per_unit,
  )
  assert grid == ClippedGradientGrid(
    num_classes=4,
    feature_dim=6,
    l2_clip_norm=0.25,
    initial_bias=-2.0,
    train_bias=True,
    rows_per_unit=rows_per_unit,
    clipped=clipped,
  )


@pytest.mark.parametrize("centres", [False, True])
def test_whitening(centres):
  rows = ArrayRows.of(np.eye(7, 5), np.zeros(7, int), num_classes=3)
  secret = SecretRows(
    lambda: [rows], feature_dim=5, num_classes=3, num_examples=7
  )
  rule = WhiteningRule.of(secret, 0.5, centres=centres)
  assert rule == WhiteningRule(
    num_examples=7,
    feature_dim=5,
    num_classes=3,
    noise_multiplier=0.5,
    centres=centres,
  )
