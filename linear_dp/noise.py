r"""`round(Z)` for a real Gaussian Z, sampled with no error at all.

Not a discrete Gaussian, not a float64 approximation. As the private statistic G
is a vector of integers, G + round(Z) = round(G + Z) is post-processing of the
textbook Gaussian mechanism.
"""

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.noise_source import NoiseSource
from oneshot_dp.linear_dp.normals import ExactNormals, sample_normals

__all__ = ["MAX_SD", "NoiseSource", "rounded_gaussian"]

_ROUND_ERROR = 2.0**-47
"""Relative bound on the float64 error of sd·(k + x), k ≤ 10, in units of sd.

k + x < 16 is off by at most 2⁻⁴⁹, and the product by another 2⁻⁵³·16 = 2⁻⁴⁹.
"""
MAX_SD = 2.0**57
"""Sums of noise and a statistic of up to 2⁶² leave int64 where the noise is
2⁶², 32 deviations: a probability of 2⁻⁷⁴⁴."""


def rounded_gaussian(
  shape: tuple[int, ...], sd: float, source: NoiseSource
) -> Int64[np.ndarray, "..."]:
  """round(Z) for Z ~ N(0, sd²)^shape, exactly, in int64.

  Formal guarantees: exactly the rounding of a vector of independent Gaussians
  of this standard deviation. The time it takes depends on random bits alone.

  >>> rounded_gaussian((2, 3), 1e6, NoiseSource()).shape
  (2, 3)

  InputError: sd is not positive and finite, or its noise might leave int64.
  """
  if not 0 < sd <= MAX_SD:
    raise InputError(
      f"sd={sd:g} must be positive, and at most {MAX_SD:g}, which int64 has"
      " room for: ask for less noise (a larger epsilon)."
    )
  normals = sample_normals(math.prod(shape), source)
  values = sd * normals.approximate()
  rounded = np.rint(values)
  to_half = np.abs(np.abs(values - rounded) - 0.5)
  result = rounded.astype(np.int64)
  # In float64 where it is clear, in rationals where not.
  for i in np.flatnonzero(to_half <= _ROUND_ERROR * sd):
    result[i] = _round_exactly(normals, int(i), Fraction(sd), source)
  return result.reshape(shape)


def _round_exactly(
  normals: ExactNormals, index: int, sd: Fraction, source: NoiseSource
) -> int:
  while True:
    low, high = (
      math.floor(sd * bound + Fraction(1, 2))
      for bound in normals.interval(index)
    )
    if low == high:
      return low
    normals.extend(index, source)
