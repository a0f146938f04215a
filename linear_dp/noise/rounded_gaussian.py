r"""`round(Z)` for a real Gaussian Z, sampled with no error at all.

Not a discrete Gaussian, not a float64 approximation. As the private statistic G
is a vector of integers, G + round(Z) = round(G + Z) is post-processing of the
textbook Gaussian mechanism.
"""

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Int, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.noise.normals import ExactNormals, sample_normals
from oneshot_dp.linear_dp.noise.source import NoiseSource

_ROUND_ERROR = 2.0**-48
"""Relative bound on the float64 error of sd·(k + x), k ≤ 10, in units of sd.

k + x < 16 is off by at most 2⁻⁴⁹, and the product by another 2⁻⁵³·16 = 2⁻⁴⁹.
"""
_MAX_SD = 2.0**57
"""Sums of noise and a statistic of up to 2⁶² leave int64 where the noise is
2⁶², 32 deviations: a probability of 2⁻⁷⁴⁴. Nobody needs as much: with one row
per unit, the largest noise multiplier makes it about 2⁴¹."""


class GaussianChain:
  r"""Rounded Gaussians of growing deviation, each the last plus more noise.

      round(Z_1), round(Z_1 + Z_2), …   Z_j independent, Var ΣZ_j = sd²

  Formal guarantees: each output alone is exactly the rounding of a Gaussian
  vector whose standard deviation is at least the `sd` asked for, and all later
  ones are a function of the real vector Z_1 and of independent noise. So for an
  integer vector G, the sequence G + round(…) is post-processing of the single
  Gaussian mechanism G + Z_1, and each member alone is of its own deviation's.
  """

  def __init__(self, shape: tuple[int, ...], source: NoiseSource):
    self._shape = shape
    self._source = source
    self._terms: list[tuple[ExactNormals, float]] = []
    self._sd = 0.0
    self._sum = np.zeros(math.prod(shape))

  def extend(self, sd: float) -> Int64[np.ndarray, "..."]:
    """Adds noise until the deviation is `sd`, in grid steps, and rounds.

    InputError: it is not finite, does not grow, or might leave int64.
    """
    if not (math.isfinite(sd) and sd > self._sd):
      raise InputError(
        f"sd={sd} must be finite and larger than the last, {self._sd}."
      )
    if sd > _MAX_SD:
      raise InputError(
        f"sd={sd:g} is more than {_MAX_SD:g}, which int64 has room for: ask for"
        " less noise (a larger epsilon, or fewer rows per unit)."
      )
    # Rounded up: the sum of the squares is never below sd².
    added = math.sqrt((sd - self._sd) * (sd + self._sd)) * (1 + 2**-50)
    normals = sample_normals(self._sum.size, self._source)
    self._terms.append((normals, added))
    self._sum += added * normals.approximate()
    self._sd = sd
    return self._round().reshape(self._shape)

  def _round(self) -> Int64[np.ndarray, " n"]:
    """rint of the real sum: float64 where it is clear, rationals where not."""
    rounded = np.rint(self._sum)
    total = sum(sd for _, sd in self._terms)
    error = _ROUND_ERROR * (len(self._terms) + 1) * total
    to_half = np.abs(np.abs(self._sum - rounded) - 0.5)
    result = rounded.astype(np.int64)
    for i in np.flatnonzero(to_half <= error):
      result[i] = self._round_exactly(int(i))
    return result

  def _round_exactly(self, index: int) -> int:
    half = Fraction(1, 2)
    while True:
      bounds = [
        (Fraction(sd) * low, Fraction(sd) * high)
        for normals, sd in self._terms
        for low, high in [normals.interval(index)]
      ]
      low = math.floor(sum(b[0] for b in bounds) + half)
      high = math.floor(sum(b[1] for b in bounds) + half)
      if low == high:
        return low
      for normals, _ in self._terms:
        normals.extend(index, self._source)


def rounded_gaussian(
  shape: tuple[int, ...], sd: float, source: NoiseSource
) -> Int[np.ndarray, "..."]:
  """round(Z) for Z ~ N(0, sd²)^shape, exactly, in int64.

  >>> rounded_gaussian((2, 3), 1e6, NoiseSource()).shape
  (2, 3)
  """
  return GaussianChain(shape, source).extend(sd)
