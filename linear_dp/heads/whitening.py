"""Centering and whitening: a public map of rows from their noisy moments."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float64

from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.statistics import row_weights, second_moment

RIDGE = 2.5
MIN_RIDGE_PER_ROW = 1e-6

Square = Float64[np.ndarray, "d d"]
Kernel = Float64[np.ndarray, "d K"]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Whitening:
  """A public map A of rows, and its inverse.

  Attributes:
    matrix: A [d, d]; None leaves rows as they are.
    inverse: A⁻¹ [d, d] from `inverse_square_root`; None where `matrix` is.
  """

  matrix: Square | None = None
  inverse: Square | None = None

  def to_whitened(self, kernel: Kernel) -> Kernel:
    """Returns the weights that do for whitened rows what `kernel` does.

    Args:
      kernel: weights [d, K] for rows that are not whitened.
    """
    return kernel if self.inverse is None else self.inverse @ kernel

  def from_whitened(self, kernel: Kernel) -> Kernel:
    """Returns the weights for rows that are not whitened.

    Args:
      kernel: weights [d, K] for whitened rows.
    """
    return kernel if self.matrix is None else self.matrix @ kernel


def release_mean(
  sums: PrivateSums, rows: Rows, n: float, *, mu_squared: float
) -> Float64[np.ndarray, " d"]:
  """Releases the sum of the rows; returns their mean [d], shrunk by noise.

  Formal guarantees: one Gaussian mechanism with this μ²; the mean is
  post-processing of what it releases.

  Args:
    sums: the Gaussian mechanism.
    rows: all at norm 1.
    n: the number of rows or privacy units.
    mu_squared: the cost of this release.
  """
  total, noise = sums.release("mean", rows, row_weights, mu_squared=mu_squared)
  return shrink_mean(total.reshape(rows.feature_dim) / n, noise / n)


def release_whitening(
  sums: PrivateSums,
  rows: Rows,
  mean: Float64[np.ndarray, " d"],
  n: float,
  *,
  mu_squared: float,
  share: float,
) -> Whitening:
  """Releases the second moment of the rows, and computes the map from it.

  Formal guarantees: one Gaussian mechanism with this μ²; the map and its
  inverse are post-processing of what it releases.

  Args:
    sums: the Gaussian mechanism.
    rows: all at norm 1.
    mean: [d], public; it was taken off the rows, or is 0.
    n: the number of rows or privacy units.
    mu_squared: the cost of this release.
    share: the part of a head's μ² that this is; with the noise of the estimate,
      it says how large the noise of gradients is, which sets the ridge.

  Returns:
    The map, public; no map at all where no inverse square root was found.
  """
  moment, noise = sums.release(
    "second moment", rows, second_moment, mu_squared=mu_squared
  )
  # The mean of M and Mᵀ has noise of σ on the diagonal and of σ/√2 beside it,
  # just as if a symmetric matrix had been released.
  covariance = (moment + moment.T) / 2 - n * np.outer(mean, mean)
  # noise·√share is the σ that all of the head's μ² is worth, and √(K·d) times
  # that the length of a gradient's noise. Directions of less variance than
  # about this are not stretched: they would bring more noise than they tell.
  size = share * rows.data.num_classes * rows.feature_dim
  ridge = RIDGE * noise * math.sqrt(size)
  # Without noise, for a baseline, directions of no variance would divide by
  # zero.
  ridge = max(ridge, MIN_RIDGE_PER_ROW * n)
  matrix, inverse = inverse_square_root(covariance, ridge)
  return Whitening(matrix=matrix, inverse=inverse)


def inverse_square_root(
  covariance: Square, ridge: float
) -> tuple[Square | None, Square | None]:
  """Computes A = (max(M, 0) + ridge)^(−1/2) of a symmetric M, and its inverse.

  Args:
    covariance: M [d, d]; noise may have made eigenvalues negative.
    ridge: added to every eigenvalue; positive.

  Returns:
    A and A⁻¹, [d, d]. Directions that A makes a thousand times shorter than the
    longest are 0 in A⁻¹: a kernel has nothing there. (None, None) if LAPACK did
    not converge, so that rows stay as they are: a run must not fail because of
    its noise.
  """
  try:
    values, vectors = np.linalg.eigh(covariance)
  except np.linalg.LinAlgError:
    return None, None
  # Eigenvalues of a covariance are not negative; those that are come from
  # noise.
  scales = 1 / np.sqrt(np.maximum(values, 0) + ridge)
  inverse_scales = np.where(scales > 1e-3 * scales.max(), 1 / scales, 0)
  matrix = (vectors * scales) @ vectors.T
  inverse = (vectors * inverse_scales) @ vectors.T
  return matrix, inverse


def shrink_mean(
  mean: Float64[np.ndarray, " d"], sd: float
) -> Float64[np.ndarray, " d"]:
  """Shrinks a noisy mean towards zero: m·max(0, 1 − (d − 2)·sd²/‖m‖²).

  >>> shrink_mean(np.array([3.0, 0.0, 4.0, 0.0]), 1.0)
  array([2.76, 0.  , 3.68, 0.  ])

  Args:
    mean: [d] numbers.
    sd: the standard deviation of the noise of each.

  Returns:
    [d] numbers in the same direction; zeros where the mean is mostly noise, and
    the mean itself for d ≤ 2.

  Source: James & Stein, "Estimation with quadratic loss" (1961).
  """
  # The expected squared length of the noise alone is d·sd². Where the mean is
  # hardly longer than that, it is mostly noise, and is set to zero.
  noise = max(0, len(mean) - 2) * sd**2
  return mean * max(0.0, 1 - noise / max(float(mean @ mean), 1e-300))


def extra_disk(*, feature_dim: int) -> int:
  """Returns the bytes of the second moment, float64, that is saved."""
  return 8 * feature_dim**2
