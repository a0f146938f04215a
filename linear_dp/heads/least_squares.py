r"""`least_squares`: ridge regression onto classes, from two noisy sums.

    W = (M + λ)⁻¹·Sᵀ,   M = Σ_j x_j ⊗ x_j,   S_c = Σ_{y_j = c} x_j

with rows x at norm 1: one Newton step. It is here for comparison.

Source: Mehta, Krichene, Thakurta, Kurakin & Cutkosky, "Differentially Private
Image Classification from Features" (TMLR 2023), DP-LS and DP-FC.
"""

import math

import numpy as np

from oneshot_dp.configs.head_config import HeadOptions
from oneshot_dp.linear_dp.heads.contract import HeadResult, HeadSpec, HeadState
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.heads.whitening import (
  MIN_RIDGE_PER_ROW,
  extra_disk,
  inverse_square_root,
)
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows, rows_of
from oneshot_dp.linear_dp.statistics import class_sums, second_moment

SECOND_MOMENT_SHARE = 0.3
"""The share of a head's μ² that pays for M; the class sums have the rest. With
0.2 few rows gain some points; with 0.5 many gain 0.4."""


def least_squares(
  sums: PrivateSums,
  rows: Rows,
  *,
  new_mu_squared: float,
  spent_mu_squared: float,
  state: HeadState | None,
  options: HeadOptions,
) -> HeadResult:
  """Makes the head by two releases whose μ² add up to `new_mu_squared`.

  Formal guarantees: those of `PrivateSums.release` for the two sums; all else
  is post-processing, with n, which is public.

  Args:
    sums: the Gaussian mechanism.
    rows: all at norm 1, from `rows_of`.
    new_mu_squared: the budget of both releases, as μ²; infinite for a baseline
      without noise.
    spent_mu_squared: not used: `sums` averages what it releases now with what
      it released for a smaller ε.
    state: not used, for the same reason.
    options: not used; the head has none.

  Returns:
    The head, for embeddings at norm 1; it keeps no state.
  """
  del spent_mu_squared, state, options
  moment, noise = sums.release(
    "second moment",
    rows,
    second_moment,
    mu_squared=SECOND_MOMENT_SHARE * new_mu_squared,
  )
  sums_by_class, _ = sums.release(
    "class sums",
    rows,
    class_sums,
    mu_squared=(1 - SECOND_MOMENT_SHARE) * new_mu_squared,
  )
  # The largest eigenvalue of the noise of (M + Mᵀ)/2 is about √(2d)·σ.
  ridge = max(
    math.sqrt(2 * rows.feature_dim) * noise, MIN_RIDGE_PER_ROW * rows.data.n
  )
  # By eigenvalues, with negative ones set to 0: noise may have made them so,
  # and the inverse would blow up near one of −λ.
  root, _ = inverse_square_root((moment + moment.T) / 2, ridge)
  kernel = sums_by_class.T if root is None else root @ root @ sums_by_class.T
  # Rows are not centered, so that there is no mean to be made up for.
  bias = np.zeros(kernel.shape[1], np.float32)
  return HeadResult(
    LinearHead(kernel=kernel.astype(np.float32), bias=bias, unit_norm=True)
  )


def extra_memory(
  *, n: int, feature_dim: int, num_classes: int, has_units: bool
) -> int:
  """Returns the bytes of 11 second moments: M and what becomes of it.

  Args:
    n: not used: rows pass by in chunks.
    feature_dim: d.
    num_classes: not used.
    has_units: not used.
  """
  del n, num_classes, has_units
  return 88 * feature_dim**2


SPEC = HeadSpec(
  make=least_squares,
  prepare_rows=rows_of,
  extra_memory=extra_memory,
  extra_disk=extra_disk,
)
