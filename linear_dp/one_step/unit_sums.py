r"""All rows of a privacy unit, summed and clipped as one vector.

The gradients of a unit's rows add up to p0·1 ⊗ T − S, where S_c is the sum of
its (clipped) rows of class c and T = Σ_c S_c: one vector for each of its
classes says all. Clipping that to norm C bounds the unit as `clipping` bounds a
row, and the sensitivity is a row's: no factor m, and no row is left out.
PRIVACY.md says when a bound on the number of rows (`rows.units`) is better.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.whole_units import (
  Unit,
  UnitSizes,
  WholeUnits,
  host_integers,
  squared_norms,
)


class UnitSums:
  """Adds up units that come in any order, each as soon as it is complete."""

  def __init__(self, grid: ClippedGradientGrid, sizes: UnitSizes):
    self._grid = grid
    self._units = WholeUnits(sizes, grid.row_dim)
    self._total = np.zeros((grid.num_classes, grid.row_dim), np.int64)

  def add(self, block: RowBlock) -> None:
    """Adds a block whose shapes and labels have been checked."""
    scale = self._grid.row_scale(block.embedding_norm)
    rows = host_integers(block, scale, bias=self._grid.train_bias)
    self._clip(self._units.add(block, rows))

  def finish(self) -> Int64[np.ndarray, "K D"]:
    """S of clipped units, private; an InputError if a row is missing."""
    self._clip(self._units.finish())
    return self._total

  def _clip(self, units: Iterable[Unit]) -> None:
    for unit in units:
      self._total[unit.labels] += clip_unit(unit.sums, self._grid)


def clip_unit(
  sums: Int64[np.ndarray, "P D"], grid: ClippedGradientGrid
) -> Int64[np.ndarray, "P D"]:
  r"""Scales a unit's class sums until its gradient has norm C, if it has more.

      ‖U‖² = ‖p0·1 ⊗ T − S‖² = ‖S‖² + a·‖T‖²,   a = K·p0² − 2·p0 = ‖r‖² − 1
      v = S where ‖U‖ ≤ B·‖r‖, else rint(w·S),
      w = (B − √(P·D·f)/2 − 1)·‖r‖ / ‖U‖,   f = max(1, 1 + a·P) / (1 + a)

  Rounding moves S by at most √(P·D)/2 and U/‖r‖ by at most √f of that, as
  ‖T‖² ≤ P·‖S‖²; 1 step pays for the float64 products.

  S is one vector for each of the unit's P classes, in grid steps.

  Formal guarantees: v has ‖U‖ ≤ B·‖r‖, checked in exact integers and
  rationals. It is a function of these sums alone.
  """
  p0 = Fraction(grid.initial_probability)
  a = grid.num_classes * p0**2 - 2 * p0
  length = _square_in_rows(sums, a)
  if length <= GRID_RADIUS**2:
    return sums
  spread = float(max(Fraction(1), 1 + a * len(sums)) / (1 + a))
  radius = max(0.0, GRID_RADIUS - math.sqrt(sums.size * spread) / 2 - 1)
  clipped = np.rint(sums * (radius / math.sqrt(length))).astype(np.int64)
  if _square_in_rows(clipped, a) > GRID_RADIUS**2:
    raise RunError(
      "The clipped sum of a unit is too long, so nothing was released: this is"
      " a fault of oneshot-dp; --max-rows-per-unit does without."
    )
  return clipped


def _square_in_rows(sums: Int64[np.ndarray, "P D"], a: Fraction) -> Fraction:
  """(‖U‖/‖r‖)², exactly: of a unit of one row, ‖u‖²."""
  shared = sum(squared_norms(sums.sum(axis=0, keepdims=True)))
  return (sum(squared_norms(sums)) + a * shared) / (1 + a)
