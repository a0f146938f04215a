r"""`round(Z)` for a real Gaussian Z, sampled without an error.

A standard normal is ±(k + x) by Karney's algorithm N: the integer k with
P(k) ∝ exp(−k²/2), the fraction x uniform in [0, 1), kept with probability
exp(−x(2k + x)/2). Every random number is a 64-bit word that stands for an
interval [w, w + 1)·2⁻⁶⁴. A decision is made in float64 where the interval and
the stated rounding error leave no doubt, and otherwise again with as many more
random bits and digits as it takes; so the output has exactly the right law.

Not a discrete Gaussian, not a float64 approximation: as the private statistic G
is a vector of integers, G + round(Z) = round(G + Z) is post-processing of the
textbook Gaussian mechanism.

Source: Karney, "Sampling exactly from the normal distribution", ACM TOMS 42:1
(2016), algorithm N.
"""

import dataclasses
import functools
import math
import os
from fractions import Fraction

import mpmath
import numpy as np
from jaxtyping import Int8, Int64, UInt8, UInt64

from oneshot_dp.configs.errors import InputError

_WORD = 64
_TABLE_GUARD = 0
"""Words this little below a threshold are decided exactly (0: equal ones)."""
_ACCEPT_ERROR = 2.0**-44
"""Bound on the float64 error of exp(−x(2k+x)/2) − v, k ≤ 10.

x and v are rounded from 64 to 53 bits (2⁻⁵³ each), the exponent is at most 10.5
and its derivative at most 11, so with four roundings of relative size 2⁻⁵³ the
exponent is off by less than 2⁻⁴⁷, and exp, at most 1, by that and its own 2⁻⁵².
"""
_BATCH = 1 << 15
"""Numbers that a processor's cache holds while they are worked on."""
_ROUND_ERROR = 2.0**-53
"""The float64 error of sd·(k + x) is at most this times 4·|sd·(k + x)| + sd.

x is off by at most 2⁻⁵⁴ and the 2⁻⁶⁴ of its interval, and the sum and the
product are rounded by 2⁻⁵³ of themselves each.
"""
MAX_SD = 2.0**57
"""Sums of noise and a statistic of up to 2⁶¹ leave int64 where the noise is
2⁶², 32 deviations: a probability of 2⁻⁷⁴⁴."""


class NoiseSource:
  """Where random bits come from.

  Formal guarantees: with no seed, the operating system's cryptographic
  generator; the only source whose releases are private. A seed is for research:
  whoever knows it can subtract the noise, and `description` says so wherever
  it is written.

  >>> NoiseSource().description, NoiseSource(seed=0).description
  ('os.urandom', 'seeded: NOT PRIVATE')
  """

  def __init__(self, seed: int | None = None):
    if seed is not None and seed < 0:
      raise InputError(f"noise seed {seed} must not be negative.")
    self.is_private = seed is None
    self._read = os.urandom
    if seed is not None:
      philox = np.random.Philox(np.random.SeedSequence(seed))
      self._read = np.random.Generator(philox).bytes

  @property
  def description(self) -> str:
    """What receipts, tables and plots call this source."""
    return "os.urandom" if self.is_private else "seeded: NOT PRIVATE"

  def words(self, count: int) -> UInt64[np.ndarray, " count"]:
    """`count` independent uniform 64-bit words."""
    return np.frombuffer(self._read(8 * count), np.uint64)

  def bits(self, count: int) -> UInt8[np.ndarray, " count"]:
    """`count` independent fair bits."""
    packed = np.frombuffer(self._read(-(-count // 8)), np.uint8)
    return np.unpackbits(packed, count=count)


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class ExactNormals:
  """Independent standard normals sign·(k + x), each known to 64 bits or more.

  Of x, `fraction` is the first 64 bits, `tail` further ones, drawn when a
  decision needed them: index → (bits, how many). They are part of the sample.
  """

  sign: Int8[np.ndarray, " n"]
  integer: Int8[np.ndarray, " n"]
  fraction: UInt64[np.ndarray, " n"]
  tail: dict[int, tuple[int, int]]

  def approximate(self) -> np.ndarray:
    """[n] float64 within 2⁻⁴⁹ of the real values."""
    return self.sign * (self.integer + self.fraction * 2.0**-_WORD)

  def interval(self, index: int) -> tuple[Fraction, Fraction]:
    """The closed interval that the known bits of one value allow."""
    tail, width = self.tail.get(index, (0, 0))
    bits = (int(self.fraction[index]) << width) | tail
    ulp = Fraction(1, 1 << (_WORD + width))
    near = int(self.integer[index]) + bits * ulp
    low, high = near, near + ulp
    return (low, high) if self.sign[index] > 0 else (-high, -low)

  def extend(self, index: int, source: NoiseSource) -> None:
    """Draws 64 more bits of one value."""
    tail, width = self.tail.get(index, (0, 0))
    word = int(source.words(1)[0])
    self.tail[index] = ((tail << _WORD) | word, width + _WORD)


def sample_normals(count: int, source: NoiseSource) -> ExactNormals:
  """Draws `count` of them; its time depends on the random bits alone."""
  integer = np.empty(count, np.int8)
  fraction = np.empty(count, np.uint64)
  tail: dict[int, tuple[int, int]] = {}
  todo = np.arange(count)
  while todo.size:
    k, x = _sample_integers(todo.size, source), source.words(todo.size)
    accepted, tails = _accept(k, x, source.words(todo.size), source)
    # What is not accepted is overwritten.
    integer[todo], fraction[todo] = k, x
    tail |= {int(todo[i]): t for i, t in tails.items() if accepted[i]}
    todo = todo[~accepted]
  sign = (1 - 2 * source.bits(count).astype(np.int8)).astype(np.int8)
  return ExactNormals(sign, integer, fraction, tail)


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
  # What k passes is less than it: only the next may be as near as itself.
  for i in np.flatnonzero(thresholds[k] - words <= _TABLE_GUARD):
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
  """Whether v < exp(−x(2k + x)/2), and the further bits of x that it took."""
  fraction = x * 2.0**-_WORD
  margin = np.exp(-0.5 * fraction * (2.0 * k + fraction)) - v * 2.0**-_WORD
  accepted, tails = margin > 0, {}
  for i in np.flatnonzero((np.abs(margin) <= _ACCEPT_ERROR) | (k > 10)):
    words = int(k[i]), int(x[i]), int(v[i])
    accepted[i], tails[int(i)] = _accept_exactly(*words, source)
  return accepted, {i: tail for i, tail in tails.items() if tail[1]}


def _accept_exactly(
  k: int, x: int, v: int, source: NoiseSource
) -> tuple[bool, tuple[int, int]]:
  """Decides in interval arithmetic, with more bits until it is clear.

  Returns the bits of x past the first 64, with their number, too.
  """
  width = _WORD
  while True:
    mpmath.iv.prec = 2 * width
    ulp = mpmath.iv.mpf(2) ** -width
    fraction = mpmath.iv.mpf([x, x + 1]) * ulp
    uniform = mpmath.iv.mpf([v, v + 1]) * ulp
    probability = mpmath.iv.exp(-fraction * (2 * k + fraction) / 2)
    if uniform.b <= probability.a or uniform.a >= probability.b:
      tail_width = width - _WORD
      tail = x & ((1 << tail_width) - 1)
      return bool(uniform.b <= probability.a), (tail, tail_width)
    more = source.words(2)
    x, v = (x << _WORD) | int(more[0]), (v << _WORD) | int(more[1])
    width += _WORD


def rounded_gaussian(
  shape: tuple[int, ...], sd: float, source: NoiseSource
) -> Int64[np.ndarray, "..."]:
  """round(Z) for Z ~ N(0, sd²)^shape, exactly, in int64.

  >>> rounded_gaussian((2, 3), 1e6, NoiseSource()).shape
  (2, 3)

  InputError: sd is not positive and finite, or its noise might leave int64.
  """
  if not 0 < sd <= MAX_SD:
    raise InputError(
      f"sd={sd:g} must be positive, and at most {MAX_SD:g}, which int64 has"
      " room for: ask for less noise (a larger epsilon)."
    )
  result = np.empty(math.prod(shape), np.int64)
  for start in range(0, result.size, _BATCH):
    part = result[start : start + _BATCH]
    part[:] = _rounded(sample_normals(part.size, source), sd, source)
  return result.reshape(shape)


def _rounded(
  normals: ExactNormals, sd: float, source: NoiseSource
) -> Int64[np.ndarray, " n"]:
  """In float64 where it is clear, in rationals where not."""
  values = sd * normals.approximate()
  result = np.rint(values).astype(np.int64)
  error = _ROUND_ERROR * (4 * np.abs(values) + sd)
  for i in np.flatnonzero(np.abs(np.abs(values - result) - 0.5) <= error):
    result[i] = _round_exactly(normals, int(i), Fraction(sd), source)
  return result


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
