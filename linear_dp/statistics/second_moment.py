r"""The private release of a second moment, of a mean, and of class counts.

One row adds u uᵀ to M, of Frobenius norm ‖u‖² ≤ B². What is released is
rint(M/B): one row moves it by at most B steps, and rounding d² entries by 1
each. Written as the vector v of the diagonal and √2 times the upper triangle, a
symmetric matrix has ‖v‖₂ = ‖M‖_F. The mechanism adds Gaussian noise of
deviation sd to v: sd on the diagonal and sd/√2 above it, mirrored below.
"""

import math

import numpy as np
from jaxtyping import Float64, Int64

from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import SecretClassMoments


def moment_sensitivity(relation: NeighboringRelation, dim: int) -> float:
  """L2 sensitivity of the vector of rint(M/B), in its steps, rounded up.

      Δ = B + (1 + 2⁻¹⁰)·d,   or 2Δ with REPLACE_ONE

  (√2·B would do, but the ledger takes its releases for twice as sensitive.)
  """
  once = (GRID_RADIUS + (1 + 2**-10) * dim) * (1 + 2**-50)
  return once * changed_units(relation)


def release_moment(
  secret: SecretClassMoments, noise_sd: float, source: NoiseSource | None
) -> Float64[np.ndarray, "d d"]:
  r"""M + noise, in units of one row's ‖x‖² = 1; symmetric, perhaps indefinite.

  Formal guarantees: post-processing of the Gaussian mechanism of deviation
  `noise_sd`, σ times `moment_sensitivity`, on the vector v above: noise of
  sd/√2 on an integer, rounded exactly, is noise of sd on √2 times the integer.
  The caller has paid for it. Without a source there is no noise: NOT PRIVATE.
  """
  moment = moment_steps(secret.secret_moment)
  if source is None:
    return moment / GRID_RADIUS
  dim = len(moment)
  beside = (num_beside(dim),)
  above = rounded_gaussian(beside, beside_sd(noise_sd), source)
  noise = mirrored(above, rounded_gaussian((dim,), noise_sd, source))
  return (moment + noise) / GRID_RADIUS


def mean_sensitivity(relation: NeighboringRelation) -> float:
  """L2 sensitivity of T, in its steps: B, as it is of integers; or 2B."""
  return float(GRID_RADIUS * changed_units(relation))


def release_mean(
  secret: SecretClassMoments,
  noise_sd: float,
  source: NoiseSource | None,
  size: int,
) -> Float64[np.ndarray, " d"]:
  """(T + noise)/size, in units of a row of norm 1.

  Formal guarantees: post-processing of the Gaussian mechanism of deviation
  `noise_sd`, σ times `mean_sensitivity`, on T; see `release_moment`.
  """
  total = secret.secret_total
  if source is not None:
    total = total + rounded_gaussian(total.shape, noise_sd, source)
  return total / (GRID_RADIUS * size)


def count_sensitivity(relation: NeighboringRelation) -> float:
  """L2 sensitivity of the class counts N: 1; or 2 (√2 would do)."""
  return float(changed_units(relation))


def release_counts(
  secret: SecretClassMoments, noise_sd: float, source: NoiseSource | None
) -> Float64[np.ndarray, " K"]:
  """N + round(noise), of rows that are not of zeros.

  Formal guarantees: post-processing of the Gaussian mechanism of deviation
  `noise_sd`, σ times `count_sensitivity`, on N; see `release_moment`.
  """
  return _noisy(secret.secret_class_counts, secret, noise_sd, source)


def release_units(
  secret: SecretClassMoments, noise_sd: float, source: NoiseSource | None
) -> Float64[np.ndarray, " 1"]:
  """About how many units are not of zeros: ΣN + round(noise); likewise."""
  total = secret.secret_class_counts.sum(keepdims=True)
  return _noisy(total, secret, noise_sd, source)


def _noisy(
  counts: Int64[np.ndarray, " m"],
  secret: SecretClassMoments,
  noise_sd: float,
  source: NoiseSource | None,
) -> Float64[np.ndarray, " m"]:
  steps = secret.count_steps
  if source is not None:
    counts = counts + rounded_gaussian(counts.shape, noise_sd * steps, source)
  return counts / steps


def moment_steps(moment: Int64[np.ndarray, "d d"]) -> Int64[np.ndarray, "d d"]:
  """rint(M/B), in integers; halves go up."""
  return (moment + GRID_RADIUS // 2) // GRID_RADIUS


def num_beside(dim: int) -> int:
  """How many entries lie above the diagonal."""
  return dim * (dim - 1) // 2


def beside_sd(noise_sd: float) -> float:
  """sd/√2, rounded up: the noise on entries that come twice."""
  return noise_sd / math.sqrt(2) * (1 + 2**-50)


def mirrored(
  above: Int64[np.ndarray, " e"], diagonal: Int64[np.ndarray, " d"]
) -> Int64[np.ndarray, "d d"]:
  """The symmetric matrix of what is above its diagonal, by rows, and on it."""
  dim = len(diagonal)
  matrix = np.zeros((dim, dim), np.int64)
  matrix[np.triu_indices(dim, k=1)] = above
  matrix += matrix.T
  matrix[np.diag_indices(dim)] = diagonal
  return matrix
