r"""Clipped gradients of the first step, on a grid of integers.

At a zero kernel every example has the same probabilities p0 = σ(b0), so the
gradient of its sigmoid cross-entropy is a rank-one matrix,

    g_i = r_i ⊗ x̃_i,   r_i = p0·1 − e_{y_i},   x̃ = [x] or [x, 1],
    ‖g_i‖ = ‖r‖·‖x̃_i‖,   ‖r‖² = (1 − p0)² + (K − 1)·p0²,

and clipping it to norm C only rescales x̃. A row is therefore stored as the
integers u = rint(x̃·scale), in steps of C/(B·‖r‖): ‖u‖ = B at norm C. Where all
rows of a unit are clipped as one vector (`unit_sums`), what is said of a row's
gradient holds for the unit's.
"""

import dataclasses
import functools
import math
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, row_scale

MAX_ROWS_PER_UNIT = 2**16

ClippedVector = Literal["row", "unit"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClippedGradientGrid:
  r"""The grid on which clipped first-step gradients are exact integers.

  Formal guarantees: if every row obeys ‖u‖₂ ≤ B (which `exact_sum` checks in
  integers; with "unit", ‖p0·1 ⊗ T_u − S_u‖ ≤ B·‖r‖ of each unit u, which
  `unit_sums` checks), G = rint(p0·T) − S has the L2 sensitivity `sensitivity`.

  >>> grid = ClippedGradientGrid(num_classes=10, feature_dim=64)
  >>> grid.sensitivity(NeighboringRelation.REPLACE_SPECIAL) * grid.step
  1.0000...

  Attributes:
    num_classes: K, public.
    feature_dim: d, the width of an embedding.
    l2_clip_norm: C, the largest norm of a per-example gradient.
    initial_bias: b0, the bias that the head starts from (the paper: −10).
    train_bias: whether the bias is trained too (x̃ = [x, 1]).
    rows_per_unit: m, the most rows of one privacy unit in a sum (which
      `exact_sum` checks); 1 where a row is a unit.
    clipped: what has norm C at most: the gradient of a row, or with "unit" the
      sum of the gradients of all rows of a unit, one vector (m = 1).

  InputError: a value outside what is said of it above.

  Source: Mehta et al. (TMLR 2023), section 4.
  """

  num_classes: int
  feature_dim: int
  l2_clip_norm: float = 1.0
  initial_bias: float = -10.0
  train_bias: bool = False
  rows_per_unit: int = 1
  clipped: ClippedVector = "row"

  def __post_init__(self):
    clip_norm = self.l2_clip_norm
    if not 0 < clip_norm < math.inf:
      raise InputError(
        f"l2_clip_norm={clip_norm} must be positive and finite: it is the"
        " largest norm that one example's gradient may have."
      )
    if not 1e-30 <= clip_norm <= 1e30:
      raise InputError(
        f"l2_clip_norm={clip_norm} is out of float32's reach; scale the"
        " features instead."
      )
    if not math.isfinite(self.initial_bias):
      raise InputError(f"initial_bias={self.initial_bias} must be finite.")
    if self.num_classes < 2:
      raise InputError(
        f"num_classes={self.num_classes}: a classifier needs at least 2."
      )
    if self.feature_dim < 1:
      raise InputError(f"feature_dim={self.feature_dim} must be at least 1.")
    # At the largest noise multiplier this still leaves int64 room.
    if (
      type(self.rows_per_unit) is not int
      or not 1 <= self.rows_per_unit <= MAX_ROWS_PER_UNIT
    ):
      raise InputError(
        f"rows_per_unit={self.rows_per_unit!r} must be an integer from 1 to"
        f" {MAX_ROWS_PER_UNIT}: the most rows of one unit that are summed."
      )
    if self.clipped not in get_args(ClippedVector):
      raise InputError(f"clipped={self.clipped!r} must be 'row' or 'unit'.")
    if self.clipped == "unit" and self.rows_per_unit != 1:
      raise InputError(
        f"rows_per_unit={self.rows_per_unit} is for clipped rows: the clipped"
        " sum of a unit is one vector."
      )

  @property
  def row_dim(self) -> int:
    """Width of x̃: d, plus one where the bias is trained."""
    return self.feature_dim + int(self.train_bias)

  @functools.cached_property
  def initial_probability(self) -> float:
    """p0 = σ(b0), the same for every class and example."""
    if self.initial_bias >= 0:
      return 1 / (1 + math.exp(-self.initial_bias))
    # exp(b0) underflows to p0 = 0 where exp(-b0) would overflow.
    odds = math.exp(self.initial_bias)
    return odds / (1 + odds)

  @functools.cached_property
  def residual_norm(self) -> float:
    """‖r‖, rounded up."""
    p0 = self.initial_probability
    squared = (1 - p0) ** 2 + (self.num_classes - 1) * p0**2
    return math.sqrt(squared) * (1 + 2**-50)

  @property
  def step(self) -> float:
    """One grid step of r ⊗ u in the units of the gradient: C/(B·‖r‖)."""
    return self.l2_clip_norm / (GRID_RADIUS * self.residual_norm)

  def row_scale(
    self, embedding_norm: Float[np.ndarray, " rows"]
  ) -> Float[np.ndarray, " rows"]:
    r"""The factor from an embedding to its row of integers.

        scale = min( B·‖r‖/C,  (B − √D/2 − 1) / ‖x̃‖ ),   D = row_dim

    The first is the plain change of units, for a row that needs no clipping.
    The second clips, a little early (see `row_radius`). It is 0 for a row of
    zeros, the null row, which so adds nothing, not even its bias; and, without
    a bias, for one shorter than about 3e-33.
    """
    norm = np.asarray(embedding_norm, np.float64)
    norm = np.sqrt(norm**2 + (norm > 0)) if self.train_bias else norm
    units = GRID_RADIUS * self.residual_norm / self.l2_clip_norm
    return row_scale(norm, self.row_dim, units)

  def sensitivity(self, relation: NeighboringRelation) -> float:
    r"""L2 sensitivity of G = rint(p0·T) − S, in grid steps, rounded up.

        Δ = m·B·‖r‖ + (1 + 2⁻¹⁰)·√(K·D)

    One row moves p0·T − S by ‖r ⊗ u‖ ≤ ‖r‖·B, a unit of at most m rows by at
    most m times that, as all may point the same way, and a unit that is clipped
    as one vector by as much as a row. Two roundings to the grid differ from the
    difference of what they round by at most 1 in each of the K·D coordinates,
    whatever m (p0·T itself is exact, see `release`); the 2⁻¹⁰ is margin.

    REPLACE_SPECIAL (the rows of a unit against rows of zeros, whose scale is 0)
    costs Δ; REPLACE_ONE, which removes one and adds another, 2Δ.
    """
    rounding = (1 + 2**-10) * math.sqrt(self.num_classes * self.row_dim)
    of_a_unit = self.rows_per_unit * GRID_RADIUS * self.residual_norm
    removals = changed_units(relation)
    return removals * (of_a_unit + rounding) * (1 + 2**-50)
