"""Decisions of the sampler that are too close to call in float64."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from oneshot_dp.linear_dp import noise
from oneshot_dp.linear_dp.noise import NoiseSource, sample_normals

WORD = 2**64


class ScriptedSource(NoiseSource):
  """Words that a test has chosen; it fails when asked for one more."""

  def __init__(self, words=()):
    super().__init__(seed=0)
    self.script = list(words)

  def words(self, count):
    taken = self.script[:count]
    self.script = self.script[count:]
    assert len(taken) == count, "asked for more random words than needed"
    return np.array(taken, np.uint64)


def share_at_most(k, digits=200):
  """P(integer part ≤ k), as a plain sum."""
  with mpmath.workdps(digits):
    terms = [mpmath.exp(-(mpmath.mpf(j) ** 2) / 2) for j in range(100)]
    return mpmath.fsum(terms[: k + 1]) / mpmath.fsum(terms)


@pytest.mark.parametrize("k", range(10))
def test_thresholds_are_exact_and_decide_words_beside_them(k):
  threshold = int(noise._thresholds()[k])
  with mpmath.workdps(60):
    assert threshold == int(mpmath.floor(share_at_most(k) * WORD))
  below = threshold - 1
  above = min(threshold + 1, WORD - 1)
  # No more words are needed on either side: ScriptedSource would fail.
  assert noise._sample_integers(1, ScriptedSource([below])).item() <= k
  if above > threshold and k < 8:
    source = ScriptedSource([above])
    assert noise._sample_integers(1, source).item() == k + 1


@pytest.mark.slow
@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("words", [1, 3])
@pytest.mark.parametrize("side", [-1, 1])
def test_integer_part_on_a_threshold_takes_more_words(k, words, side):
  """The words agree with the threshold as far as there are `words` of them."""
  with mpmath.workdps(200):
    bits = int(mpmath.floor(share_at_most(k) * mpmath.mpf(2) ** (64 * words)))
    next_word = int(
      mpmath.floor(share_at_most(k) * mpmath.mpf(2) ** (64 * words + 64))
    ) % (WORD)
  script = [(bits >> 64 * (words - 1 - i)) % WORD for i in range(words)]
  assert 2 < next_word < WORD - 2  # so that there is a word on either side
  source = ScriptedSource([*script, next_word + side])
  found = noise._sample_integers(1, source).item()
  assert found == (k if side < 0 else k + 1)
  assert not source.script


@pytest.mark.parametrize("k", [10, 11, 14])
def test_integer_part_past_the_table_is_exact(k):
  with mpmath.workdps(200):
    between = (share_at_most(k - 1) + share_at_most(k)) / 2
    bits = int(mpmath.floor(between * mpmath.mpf(2) ** 320))
  words = [(bits >> 64 * (4 - i)) % WORD for i in range(5)]
  assert words[0] == WORD - 1 == noise._thresholds()[9]
  source = ScriptedSource(words)
  assert noise._sample_integers(1, source).item() == k


def accept_one(k, x, v, more=()):
  source = ScriptedSource(more)
  accepted, _ = noise._accept(
    np.array([k], np.int8),
    np.array([x], np.uint64),
    np.array([v], np.uint64),
    source,
  )
  assert not source.script
  return accepted.item()


def probability(k, x, width=64):
  x = mpmath.mpf(x) / mpmath.mpf(2) ** width
  return mpmath.exp(-x * (2 * k + x) / 2)


@pytest.mark.slow
@pytest.mark.parametrize("k", [0, 5, 10, 13])
def test_acceptance_is_exact_however_close(k):
  """v from 2⁻⁵⁹ to 2⁻⁴⁰ beside the curve: float64 alone would be wrong."""
  rng = np.random.default_rng(k)
  with mpmath.workdps(60):
    for x in rng.integers(0, WORD, 20, dtype=np.uint64).tolist():
      edge = int(mpmath.floor(probability(k, x) * WORD))
      for distance in (2**j for j in range(5, 25)):
        if edge - distance >= 0:
          assert accept_one(k, x, edge - distance)
        if edge + distance < WORD:
          assert not accept_one(k, x, edge + distance)


def test_sample_keeps_the_bits_that_its_acceptance_took():
  """`sample_normals` keeps them, under the index of whom they belong to."""
  # Words on which k is 3 and 0, and candidates with x = 1/3 that are on the
  # edge of acceptance, to 64 bits and to 128.
  three = int(noise._thresholds()[3]) - 1
  zero = 0
  x = WORD // 3
  with mpmath.workdps(80):
    edge = probability(3, (((x << 64) | 1) << 64) | (WORD // 2), 192)
    v = int(mpmath.floor(edge * WORD))
    low = int(mpmath.floor(edge * WORD * WORD)) % WORD
  more = [1, low, WORD // 2]
  source = ScriptedSource(
    [
      # Four values: k of each, x, v. Kept at once; rejected after more bits;
      # rejected at once; kept after more bits.
      *(zero, three, zero, three),
      *(7, x, WORD // 2, x),
      *(0, v, WORD - 1, v),
      *(*more, WORD - 1),
      *(*more, 0),
      # The two again: kept at once, and after more bits.
      *(zero, three),
      *(9, x),
      *(0, v),
      *(0, 0),
    ]
  )
  _, k, fraction, longer = sample_normals(4, source)
  assert not source.script
  assert k.tolist() == [0, 0, 3, 3]
  assert fraction.tolist() == [7, 9, x, x]
  after = (((x << 64) | 1) << 64) | (WORD // 2)
  assert longer == {2: (x << 64, 128), 3: (after, 192)}


@pytest.mark.parametrize(
  ("fraction", "sd", "words", "expected"),
  [
    (WORD // 2, 1, [], 1),  # from 1/2 on
    (WORD // 2 - 1, 1, [3], 0),  # up to 1/2
    # 3·x straddles 1/2 after 64 bits, and the next word settles it.
    (WORD // 6, 3, [0], 0),
    (WORD // 6, 3, [WORD - 1], 1),
  ],
)
def test_rounding_beside_a_half_takes_more_bits(fraction, sd, words, expected):
  source = ScriptedSource(words)
  found = noise._round_exactly(fraction, 64, Fraction(sd), source)
  assert found == expected
  assert not source.script


def test_rounding_uses_the_bits_that_are_known():
  """3·x straddles 1/2 after 64 bits; that x is on its far side is known."""
  sign, k = np.array([[1], [0]], np.int8)
  x = np.array([WORD // 6], np.uint64)
  known = {0: ((WORD // 6 << 64) | (WORD - 1), 128)}
  assert noise._rounded((sign, k, x, known), 3.0, ScriptedSource()) == 1


def test_acceptance_in_float64_is_within_its_stated_error():
  """The expression of `_accept`, against both corners of each cell."""
  rng = np.random.default_rng(16)
  n = 1000
  k = rng.integers(0, 11, n).astype(np.int8)
  x = rng.integers(0, WORD, n, dtype=np.uint64)
  x[:200] = np.uint64(WORD - 1) - np.arange(200, dtype=np.uint64)
  v = rng.integers(0, WORD, n, dtype=np.uint64)
  fraction = x * 2.0**-64
  margin = np.exp(-0.5 * fraction * (2.0 * k + fraction)) - v * 2.0**-64
  worst = 0
  with mpmath.workdps(50):
    for i in range(n):
      for corner in (0, 1):
        exact = probability(int(k[i]), int(x[i]) + corner)
        exact -= mpmath.mpf(int(v[i]) + 1 - corner) / WORD
        worst = max(worst, abs(exact - mpmath.mpf(float(margin[i]))))
  assert worst < noise._ACCEPT_ERROR / 8
  assert worst > 2.0**-60  # it is a real error
