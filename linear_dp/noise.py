r"""Samples `round(Z)` for a real Gaussian Z exactly, without any error.

A standard normal is ±(k + x) by Karney's algorithm N: k is an integer with
P(k) ∝ exp(−k²/2), and x is uniform in [0, 1); the pair is accepted with
probability exp(−x(2k + x)/2), and otherwise drawn again.

Every random number is a 64-bit word w that stands for an unknown number in the
interval [w, w + 1)·2⁻⁶⁴. A decision (which k, accept or not, which way to
round) is made in words or in float64 where the interval and the stated error
leave no doubt. Otherwise it is made again, with as many more random bits and
digits as it takes. So the output has exactly the right law.

This is neither a discrete Gaussian nor an approximation in float64. The private
statistic G is a vector of integers, so G + round(Z) = round(G + Z) is
post-processing of the textbook Gaussian mechanism.

Source: Karney, "Sampling exactly from the normal distribution", ACM TOMS 42:1
(2016), algorithm N.
"""

import functools
import math
import os
from fractions import Fraction

import mpmath
import numpy as np
from jaxtyping import Int8, Int64, UInt8, UInt64

from oneshot_dp.configs.errors import InputError

_WORD = 64  # bits of a random word
_ACCEPT_ERROR = 2.0**-44
"""Bound on the float64 error of exp(−x(2k+x)/2) − v, k ≤ 10.

x and v are rounded to 53 bits, the exponent is at most 10.5 and its derivative
11, so with four roundings of relative size 2⁻⁵³ the exponent is off by less
than 2⁻⁴⁷, and exp, at most 1, by that and its own 2⁻⁵².
"""
_BATCH = 1 << 15  # as many numbers as a processor's cache holds
MIN_SD, MAX_SD = 2.0**-10, 2.0**57
"""A statistic is up to 2⁶¹. With noise, it leaves int64 where the noise is 2⁶²
or more: 32 standard deviations, which has a probability of 2⁻⁷⁴⁴."""

Normals = tuple[np.ndarray, np.ndarray, np.ndarray, dict[int, tuple[int, int]]]
"""n standard normals: the sign and k, int8 [n]; the first 64 bits of x, uint64
[n]; and all bits of x where a decision took more: index → (bits, how many)."""


class NoiseSource:
  """A source of random bits for noise.

  Formal guarantees: without a seed, bits come from the operating system's
  cryptographic generator; only then are releases private. A seed is for
  research: whoever knows it can subtract the noise, and `description` says so.

  >>> NoiseSource().description, NoiseSource(seed=0).description
  ('os.urandom', 'seeded: NOT PRIVATE')

  Args:
    seed: makes the bits repeatable; None is the operating system's generator.

  Attributes:
    is_private: whether releases with this noise are private.
    description: what receipts say about the source.

  Raises:
    InputError: the seed is negative.
  """

  def __init__(self, seed: int | None = None):
    if seed is not None and seed < 0:
      raise InputError(f"noise seed {seed} must not be negative.")
    self.is_private = seed is None
    self.description = "os.urandom"
    self._read = os.urandom
    if seed is not None:
      self.description = "seeded: NOT PRIVATE"
      # The bit generator is named: `default_rng` may become another one with a
      # new NumPy, and seeded heads would change.
      philox = np.random.Philox(np.random.SeedSequence(seed))
      self._read = np.random.Generator(philox).bytes

  def words(self, count: int) -> UInt64[np.ndarray, " count"]:
    """Draws `count` independent uniform 64-bit words."""
    return np.frombuffer(self._read(8 * count), np.uint64)

  def bits(self, count: int) -> UInt8[np.ndarray, " count"]:
    """Draws `count` independent fair bits."""
    packed = np.frombuffer(self._read(-(-count // 8)), np.uint8)
    return np.unpackbits(packed, count=count)


def sample_normals(count: int, source: NoiseSource) -> Normals:
  """Draws `count` standard normals by Karney's algorithm N.

  The time that it takes depends on the random bits alone.

  Args:
    count: how many.
    source: the random bits.

  Returns:
    Sign, integer part and the first 64 bits of the fraction of each, and
    longer fractions where a decision took more bits; see `Normals`.
  """
  integer = np.empty(count, np.int8)
  fraction = np.empty(count, np.uint64)
  longer: dict[int, tuple[int, int]] = {}
  # A rejected pair is drawn again as a whole: to keep its k or its x would
  # condition the sample on having been rejected.
  # All pairs (k, x) at once; then again for those that were not accepted, which
  # are overwritten.
  remaining = np.arange(count)
  while remaining.size:
    k = _sample_integers(remaining.size, source)
    x = source.words(remaining.size)
    v = source.words(remaining.size)
    accepted, longer_bits = _accept(k, x, v, source)
    integer[remaining] = k
    fraction[remaining] = x
    # The bits that a decision took belong to the sample: they must be used for
    # rounding it, too.
    for i, bits in longer_bits.items():
      if accepted[i]:
        longer[int(remaining[i])] = bits
    remaining = remaining[~accepted]
  # The sign is a fair bit of its own. Rounding is of the absolute value, so
  # round(Z) is symmetric; only exact halves could differ, which have
  # probability 0.
  sign = (1 - 2 * source.bits(count).astype(np.int8)).astype(np.int8)
  return sign, integer, fraction, longer


@functools.cache
def _cumulative(k: int, digits: int) -> mpmath.mpf:
  """Returns P(integer part ≤ k), to `digits` decimal digits."""
  with mpmath.workdps(digits + 10):
    terms = [mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(k + 1)]
    total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
    return mpmath.fsum(terms) / total


@functools.cache
def _thresholds() -> UInt64[np.ndarray, " ks"]:
  """Returns floor(2⁶⁴·P(integer part ≤ k)) for k = 0 … 9.

  From k = 9 on, it would be 2⁶⁴ − 1.
  """
  with mpmath.workdps(60):
    scaled = [_cumulative(k, 50) * 2**_WORD for k in range(10)]
    return np.array([int(mpmath.floor(t)) for t in scaled], np.uint64)


def _sample_integers(
  count: int, source: NoiseSource
) -> Int8[np.ndarray, " count"]:
  """Draws k with P(k) ∝ exp(−k²/2): the thresholds that a word passes."""
  # Comparing 64 bits with the thresholds decides in all but about 10·2⁻⁶⁴
  # cases, where both begin with the same word.
  words = source.words(count)
  thresholds = _thresholds()
  k = np.zeros(count, np.int8)
  for threshold in thresholds:
    k += words > threshold
  # A threshold has digits behind its first word, and so has the uniform number:
  # one that begins with the same word may be on either side.
  for i in np.flatnonzero(thresholds[k] == words):
    k[i] = _resolve_integer(int(words[i]), source)
  return k


def _resolve_integer(word: int, source: NoiseSource) -> int:
  """Finds k for a uniform number that begins with `word`, however close.

  The number lies in [bits, bits + 1)·2^−width; more random words follow until
  that interval has no threshold inside.
  """
  bits = word
  width = _WORD
  k = 0
  while True:
    # As many decimal digits as the interval has bits: far more than the
    # comparison needs, so that the error of the threshold itself cannot decide.
    with mpmath.workdps(width):
      edge = _cumulative(k, width) * mpmath.mpf(2) ** width
      if bits + 1 <= edge:
        return k
      if bits >= edge:
        k += 1
        continue
    bits = (bits << _WORD) | int(source.words(1)[0])
    width += _WORD


def _accept(
  k: Int8[np.ndarray, " n"],
  x: UInt64[np.ndarray, " n"],
  v: UInt64[np.ndarray, " n"],
  source: NoiseSource,
) -> tuple[np.ndarray, dict[int, tuple[int, int]]]:
  """Decides whether v < exp(−x(2k + x)/2).

  Args:
    k: integer parts.
    x: the first words of fractions.
    v: the first words of uniform numbers.
    source: more random bits.

  Returns:
    Whether each is accepted; and all bits of x where the decision took more
    than its first word: index → (bits, how many).
  """
  # x and v stand for intervals of 2⁻⁶⁴, and are rounded to 53 bits here. Both
  # errors are in `_ACCEPT_ERROR`: a margin beyond it has the same sign for
  # every number in the intervals.
  fraction = x * 2.0**-_WORD
  margin = np.exp(-0.5 * fraction * (2.0 * k + fraction)) - v * 2.0**-_WORD
  accepted = margin > 0
  longer = {}
  # The stated error holds up to k = 10.
  for i in np.flatnonzero((np.abs(margin) <= _ACCEPT_ERROR) | (k > 10)):
    is_accepted, bits = _accept_exactly(int(k[i]), int(x[i]), int(v[i]), source)
    accepted[i] = is_accepted
    longer[int(i)] = bits
  return accepted, longer


def _accept_exactly(
  k: int, x: int, v: int, source: NoiseSource
) -> tuple[bool, tuple[int, int]]:
  """Decides in interval arithmetic, with more random bits until it is sure.

  Returns:
    Whether it is accepted; and the bits of x that it took, with their number.
  """
  width = _WORD
  while True:
    mpmath.iv.prec = 2 * width
    ulp = mpmath.iv.mpf(2) ** -width
    fraction = mpmath.iv.mpf([x, x + 1]) * ulp
    uniform = mpmath.iv.mpf([v, v + 1]) * ulp
    probability = mpmath.iv.exp(-fraction * (2 * k + fraction) / 2)
    # Decided only if the intervals do not overlap, in arithmetic that rounds
    # outward. Otherwise 64 further bits of both numbers are drawn, which
    # shrinks them.
    if uniform.b <= probability.a or uniform.a >= probability.b:
      return bool(uniform.b <= probability.a), (x, width)
    more_of_x, more_of_v = source.words(2)
    x = (x << _WORD) | int(more_of_x)
    v = (v << _WORD) | int(more_of_v)
    width += _WORD


def rounded_gaussian(
  shape: tuple[int, ...], sd: float, source: NoiseSource
) -> Int64[np.ndarray, "..."]:
  """Samples round(Z) for Z ~ N(0, sd²)^shape exactly, in int64.

  >>> rounded_gaussian((2, 3), 1e6, NoiseSource()).shape
  (2, 3)

  Args:
    shape: of the result.
    sd: the standard deviation, in [2⁻¹⁰, 2⁵⁷].
    source: the random bits.

  Returns:
    Independent integers, with exactly the probabilities of a rounded normal.

  Raises:
    InputError: sd is outside of that, or not a number.
  """
  # NaN fails this comparison as well. The bounds are those of the 64-bit words
  # that `_rounded` computes in, and of int64, which the sum has to fit.
  if not MIN_SD <= sd <= MAX_SD:
    most = f"at most {MAX_SD:g}: ask for less noise (a larger epsilon)"
    raise InputError(f"sd={sd:g} must be at least {MIN_SD:g}, and {most}.")
  result = np.empty(math.prod(shape), np.int64)
  # In batches, so that the many temporary arrays stay in the processor's cache.
  for start in range(0, result.size, _BATCH):
    part = result[start : start + _BATCH]
    part[:] = _rounded(sample_normals(part.size, source), sd, source)
  return result.reshape(shape)


def _rounded(
  normals: Normals, sd: float, source: NoiseSource
) -> Int64[np.ndarray, " n"]:
  """Computes round(sd·Z), from 64 bits of x where they decide, else exactly.

  Let m = sd·2^shift, an integer below 2⁵⁹. Knowing 64 bits of x, m·(k + x) is
  at least high + low·2⁻⁶⁴, where both are 64-bit words, and at most m·2⁻⁶⁴
  more.
  """
  # Fixed point: sd = m/2^shift exactly, since a float64 has 53 significant
  # bits. So the product with x is a product of integers, and nothing is rounded
  # on the way.
  sign, integer, x, longer = normals
  shift = max(1, 53 - math.frexp(sd)[1])
  scaled_sd = int(math.ldexp(sd, shift))
  m = np.uint64(scaled_sd)
  m1 = np.uint64(scaled_sd >> 32)
  m0 = np.uint64(scaled_sd & 0xFFFFFFFF)
  # The 128-bit product m·x from four products of 32-bit halves.
  half = np.uint64(32)
  mask = np.uint64(0xFFFFFFFF)
  x1 = x >> half
  x0 = x & mask
  low = m0 * x0
  middle = m0 * x1 + (low >> half)
  other = m1 * x0 + (middle & mask)
  low = (other << half) | (low & mask)
  high = m1 * x1 + (middle >> half) + (other >> half)
  high += integer.astype(np.uint64) * m
  high += np.uint64(1 << (shift - 1))  # a half, so that >> rounds
  result = (high >> np.uint64(shift)).astype(np.int64)
  # The same with the largest number that x may be: where it rounds otherwise,
  # 64 bits do not decide.
  largest = (high + (low > ~m)) >> np.uint64(shift)
  for i in np.flatnonzero(largest != result).tolist():
    # If accepting the sample took more bits of x, those are its bits. Drawing
    # others here would round another number than the one that was accepted.
    bits, width = longer.get(i, (int(x[i]), _WORD))
    bits |= int(integer[i]) << width
    result[i] = _round_exactly(bits, width, Fraction(sd), source)
  return result * sign


def _round_exactly(
  bits: int, width: int, sd: Fraction, source: NoiseSource
) -> int:
  """Computes round(sd·(k + x)), with more random bits until it is sure.

  Args:
    bits: k + x lies in [bits, bits + 1)·2^−width.
    width: how many of the bits are those of x.
    sd: the standard deviation.
    source: more random bits.
  """
  half = Fraction(1, 2)
  while True:
    low = math.floor(sd * Fraction(bits, 1 << width) + half)
    high = math.floor(sd * Fraction(bits + 1, 1 << width) + half)
    if low == high:
      return low
    bits = bits << _WORD | int(source.words(1)[0])
    width += _WORD
