r"""`round(Z)` for a real Gaussian Z, sampled without an error.

A standard normal is ±(k + x) by Karney's algorithm N: the integer k with
P(k) ∝ exp(−k²/2), the fraction x uniform in [0, 1), kept with probability
exp(−x(2k + x)/2). Every random number is a 64-bit word that stands for an
interval [w, w + 1)·2⁻⁶⁴. A decision is made in words or float64 where the
interval and the stated error leave no doubt, and otherwise again with as many
more random bits and digits as it takes: the output has exactly the right law.

Not a discrete Gaussian, not a float64 approximation: as the private statistic G
is a vector of integers, G + round(Z) = round(G + Z) is post-processing of the
textbook Gaussian mechanism.

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

_WORD = 64
_ACCEPT_ERROR = 2.0**-44
"""Bound on the float64 error of exp(−x(2k+x)/2) − v, k ≤ 10.

x and v are rounded to 53 bits, the exponent is at most 10.5 and its derivative
11, so with four roundings of relative size 2⁻⁵³ the exponent is off by less
than 2⁻⁴⁷, and exp, at most 1, by that and its own 2⁻⁵².
"""
_BATCH = 1 << 15  # numbers that a processor's cache holds
MIN_SD, MAX_SD = 2.0**-10, 2.0**57
"""Sums of noise and a statistic of up to 2⁶¹ leave int64 where the noise is
2⁶², 32 deviations: a probability of 2⁻⁷⁴⁴."""


Normals = tuple[np.ndarray, np.ndarray, np.ndarray, dict[int, tuple[int, int]]]
"""Sign and k, int8 [n], and 64 bits of x, uint64 [n], of standard normals; and
where a decision took more bits, all there are: index → (bits, how many)."""


class NoiseSource:
  """Where random bits come from.

  Formal guarantees: with no seed, the operating system's cryptographic
  generator; the only source whose releases are private. A seed is for research:
  whoever knows it can subtract the noise, and `description` says so.

  >>> NoiseSource().description, NoiseSource(seed=0).description
  ('os.urandom', 'seeded: NOT PRIVATE')
  """

  def __init__(self, seed: int | None = None):
    if seed is not None and seed < 0:
      raise InputError(f"noise seed {seed} must not be negative.")
    self.is_private = seed is None
    self.description = "os.urandom"
    self._read = os.urandom
    if seed is not None:
      self.description = "seeded: NOT PRIVATE"
      philox = np.random.Philox(np.random.SeedSequence(seed))
      self._read = np.random.Generator(philox).bytes

  def words(self, count: int) -> UInt64[np.ndarray, " count"]:
    """`count` independent uniform 64-bit words."""
    return np.frombuffer(self._read(8 * count), np.uint64)

  def bits(self, count: int) -> UInt8[np.ndarray, " count"]:
    """`count` independent fair bits."""
    packed = np.frombuffer(self._read(-(-count // 8)), np.uint8)
    return np.unpackbits(packed, count=count)


def sample_normals(count: int, source: NoiseSource) -> Normals:
  """Draws `count` of them; its time depends on the random bits alone."""
  integer = np.empty(count, np.int8)
  fraction = np.empty(count, np.uint64)
  longer: dict[int, tuple[int, int]] = {}
  todo = np.arange(count)
  while todo.size:
    k, x = _sample_integers(todo.size, source), source.words(todo.size)
    accepted, bits = _accept(k, x, source.words(todo.size), source)
    # What is not accepted is overwritten.
    integer[todo], fraction[todo] = k, x
    longer |= {int(todo[i]): known for i, known in bits.items() if accepted[i]}
    todo = todo[~accepted]
  sign = (1 - 2 * source.bits(count).astype(np.int8)).astype(np.int8)
  return sign, integer, fraction, longer


@functools.cache
def _cumulative(k: int, digits: int) -> mpmath.mpf:
  """P(integer part ≤ k), to `digits` decimal digits."""
  with mpmath.workdps(digits + 10):
    terms = (mpmath.exp(-mpmath.mpf(j * j) / 2) for j in range(k + 1))
    total = mpmath.nsum(lambda j: mpmath.exp(-j * j / 2), [0, mpmath.inf])
    return mpmath.fsum(terms) / total


@functools.cache
def _thresholds() -> UInt64[np.ndarray, " ks"]:
  """floor(2⁶⁴·P(integer part ≤ k)) for k = 0 … 9; past 9, 2⁶⁴ − 1."""
  with mpmath.workdps(60):
    scaled = [_cumulative(k, 50) * 2**_WORD for k in range(10)]
    return np.array([int(mpmath.floor(t)) for t in scaled], np.uint64)


def _sample_integers(
  count: int, source: NoiseSource
) -> Int8[np.ndarray, " count"]:
  """k with P(k) ∝ exp(−k²/2): how many thresholds a uniform word passes."""
  words, thresholds = source.words(count), _thresholds()
  k = np.zeros(count, np.int8)
  for threshold in thresholds:
    k += words > threshold
  # A word that a threshold begins with may be on either side of it.
  for i in np.flatnonzero(thresholds[k] == words):
    k[i] = _integer_of(int(words[i]), source)
  return k


def _integer_of(word: int, source: NoiseSource) -> int:
  """The k of a uniform number that begins with `word`, however close."""
  bits, width, k = word, _WORD, 0
  while True:
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
  """Whether v < exp(−x(2k + x)/2), and the bits of x where that took more."""
  fraction = x * 2.0**-_WORD
  margin = np.exp(-0.5 * fraction * (2.0 * k + fraction)) - v * 2.0**-_WORD
  accepted, longer = margin > 0, {}
  for i in np.flatnonzero((np.abs(margin) <= _ACCEPT_ERROR) | (k > 10)):
    words = int(k[i]), int(x[i]), int(v[i])
    accepted[i], longer[int(i)] = _accept_exactly(*words, source)
  return accepted, longer


def _accept_exactly(
  k: int, x: int, v: int, source: NoiseSource
) -> tuple[bool, tuple[int, int]]:
  """Decides in intervals, with more bits of x, which it gives, until sure."""
  width = _WORD
  while True:
    mpmath.iv.prec = 2 * width
    ulp = mpmath.iv.mpf(2) ** -width
    fraction = mpmath.iv.mpf([x, x + 1]) * ulp
    uniform = mpmath.iv.mpf([v, v + 1]) * ulp
    probability = mpmath.iv.exp(-fraction * (2 * k + fraction) / 2)
    if uniform.b <= probability.a or uniform.a >= probability.b:
      return bool(uniform.b <= probability.a), (x, width)
    more = source.words(2)
    x, v = (x << _WORD) | int(more[0]), (v << _WORD) | int(more[1])
    width += _WORD


def rounded_gaussian(
  shape: tuple[int, ...], sd: float, source: NoiseSource
) -> Int64[np.ndarray, "..."]:
  """round(Z) for Z ~ N(0, sd²)^shape, exactly, in int64.

  >>> rounded_gaussian((2, 3), 1e6, NoiseSource()).shape
  (2, 3)

  InputError: sd is outside [2⁻¹⁰, 2⁵⁷], or not a number.
  """
  if not MIN_SD <= sd <= MAX_SD:
    most = f"at most {MAX_SD:g}: ask for less noise (a larger epsilon)"
    raise InputError(f"sd={sd:g} must be at least {MIN_SD:g}, and {most}.")
  result = np.empty(math.prod(shape), np.int64)
  for start in range(0, result.size, _BATCH):
    part = result[start : start + _BATCH]
    part[:] = _rounded(sample_normals(part.size, source), sd, source)
  return result.reshape(shape)


def _rounded(
  normals: Normals, sd: float, source: NoiseSource
) -> Int64[np.ndarray, " n"]:
  """round(sd·Z), by 64 bits of x where they tell, and exactly where not.

  With m = sd·2^shift, an integer below 2⁵⁹, m·(k + x) is high + low·2⁻⁶⁴ at
  least, of 64-bit words, and m·2⁻⁶⁴ more at most.
  """
  sign, integer, x, longer = normals
  shift = max(1, 53 - math.frexp(sd)[1])
  whole = int(math.ldexp(sd, shift))
  m, m1, m0 = map(np.uint64, (whole, whole >> 32, whole & 0xFFFFFFFF))
  half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
  x1, x0 = x >> half, x & mask
  low = m0 * x0
  middle = m0 * x1 + (low >> half)
  other = m1 * x0 + (middle & mask)
  low = (other << half) | (low & mask)
  high = m1 * x1 + (middle >> half) + (other >> half)
  high += integer.astype(np.uint64) * m
  high += np.uint64(1 << (shift - 1))  # a half, so that >> rounds
  result = (high >> np.uint64(shift)).astype(np.int64)
  most = (high + (low > ~m)) >> np.uint64(shift)
  for i in np.flatnonzero(most != result).tolist():
    bits, width = longer.get(i, (int(x[i]), _WORD))
    bits |= int(integer[i]) << width
    result[i] = _round_exactly(bits, width, Fraction(sd), source)
  return result * sign


def _round_exactly(
  bits: int, width: int, sd: Fraction, source: NoiseSource
) -> int:
  """round(sd·(k + x)) of k + x = bits·2^−width, and more bits until sure."""
  while True:
    low, high = (
      math.floor(sd * Fraction(end, 1 << width) + Fraction(1, 2))
      for end in (bits, bits + 1)
    )
    if low == high:
      return low
    bits, width = bits << _WORD | int(source.words(1)[0]), width + _WORD
