import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import noise
from oneshot_dp.linear_dp.noise import (
  NoiseSource,
  rounded_gaussian,
  sample_normals,
)

WORD = 2**64
# Seeds are fixed, so that a test passes always or never; a p-value below this
# would be one in ten thousand.
P_VALUE = 1e-4


class ScriptedSource(NoiseSource):
  """Words that a test has chosen; it fails when asked for one more."""

  def __init__(self, words=()):
    super().__init__(seed=0)
    self.script = list(words)

  def words(self, count):
    taken, self.script = self.script[:count], self.script[count:]
    assert len(taken) == count, "asked for more random words than needed"
    return np.array(taken, np.uint64)


def share_at_most(k, digits=200):
  """P(integer part ≤ k), as a plain sum."""
  with mpmath.workdps(digits):
    terms = [mpmath.exp(-(mpmath.mpf(j) ** 2) / 2) for j in range(100)]
    return mpmath.fsum(terms[: k + 1]) / mpmath.fsum(terms)


def counted(monkeypatch, owner, name):
  """Lets a function do its work, and counts how often it does."""
  original, calls = getattr(owner, name), []

  def wrapper(*args):
    calls.append(name)
    return original(*args)

  monkeypatch.setattr(owner, name, wrapper)
  return calls


def approximate(normals):
  sign, k, x, _ = normals
  return sign * (k + x * 2.0**-64)


# The law of what comes out.


@pytest.mark.parametrize("sd", [0.2, 1.0, 11.7])
def test_law_of_the_rounded_gaussian(sd):
  n = 400_000
  found = rounded_gaussian((n,), sd, NoiseSource(seed=1))
  assert found.dtype == np.int64
  edge = max(1, int(4 * sd))
  cuts = [-mpmath.inf, *(j - 0.5 for j in range(-edge, edge + 2)), mpmath.inf]
  share = np.array(
    [
      float(mpmath.ncdf(high / sd) - mpmath.ncdf(low / sd))
      for low, high in itertools.pairwise(cuts)
    ]
  )
  bins = np.clip(found, -edge - 1, edge + 1) + edge + 1
  seen = np.bincount(bins, minlength=len(share))
  likely = share * n > 5
  assert seen[~likely].sum() <= 30
  expected = share[likely] / share[likely].sum() * seen[likely].sum()
  assert scipy.stats.chisquare(seen[likely], expected).pvalue > P_VALUE


def test_law_of_sign_integer_part_and_fraction():
  n = 300_000
  sign, k, x, _ = normals = sample_normals(n, NoiseSource(seed=2))
  cdf = scipy.stats.norm.cdf
  share = 2 * (cdf(np.arange(1, 5)) - cdf(np.arange(4)))
  share = np.append(share, 1 - share.sum())
  seen = np.bincount(np.minimum(k, 4), minlength=5)
  assert scipy.stats.chisquare(seen, share * n).pvalue > P_VALUE

  assert set(np.unique(sign)) == {-1, 1}
  assert scipy.stats.binomtest(int((sign > 0).sum()), n).pvalue > P_VALUE
  for part in range(3):  # the fraction given each integer part
    of_part = x[k == part] * 2.0**-64

    def conditional(x, part=part):
      whole = cdf(part + 1) - cdf(part)
      return (cdf(part + x) - cdf(part)) / whole

    assert scipy.stats.kstest(of_part, conditional).pvalue > P_VALUE
  # The sign says nothing of the size.
  values = approximate(normals)
  assert abs(np.corrcoef(sign, values * sign)[0, 1]) < 5 / math.sqrt(n)
  assert scipy.stats.kstest(values, cdf).pvalue > P_VALUE


def test_low_bits_of_the_fraction_are_uniform_and_batches_join(monkeypatch):
  monkeypatch.setattr(noise, "_BATCH", 1000)
  drawn = rounded_gaussian((5500,), 2.0**40, NoiseSource(seed=3))
  assert len(np.unique(drawn)) == drawn.size
  _, _, fraction, _ = sample_normals(200_500, NoiseSource(seed=3))
  assert len(np.unique(fraction)) == fraction.size  # not one value used twice
  seen = np.bincount((fraction & np.uint64(255)).astype(int), minlength=256)
  assert scipy.stats.chisquare(seen).pvalue > P_VALUE


# Independence.


def test_classes_and_features_have_noise_of_their_own():
  sd, classes, features = 50.0, 8, 40_000
  drawn = rounded_gaussian((classes, features), sd, NoiseSource(seed=5))
  spread = 5 * math.sqrt(2 / features)
  for a, b in itertools.combinations(range(classes), 2):
    for sign in (1, -1):
      variance = (drawn[a] + sign * drawn[b]).var() / (2 * sd**2)
      assert variance == pytest.approx(1, abs=spread)
  for lag in (1, 2, 512):  # neighbouring features
    pairs = np.corrcoef(drawn[:, lag:].ravel(), drawn[:, :-lag].ravel())
    assert abs(pairs[0, 1]) < 5 / math.sqrt(classes * features)
  parts = drawn.reshape(classes * 4, -1)
  correlation = np.corrcoef(parts) - np.eye(classes * 4)
  assert np.abs(correlation).max() < 5.5 / math.sqrt(features / 4)


@pytest.mark.parametrize("seed", [None, 6])
def test_calls_have_noise_of_their_own(seed):
  n, sd = 40_000, 30.0
  source = NoiseSource(seed)
  draws = [rounded_gaussian((n,), sd, source) for _ in range(4)]
  off = np.corrcoef(draws) - np.eye(4)
  # Unseeded too: seven deviations is one in 10^11.
  assert np.abs(off).max() < 7 / math.sqrt(n)
  assert not np.array_equal(draws[0], draws[1])


def test_the_operating_system_never_repeats_itself():
  one, other = NoiseSource(), NoiseSource()
  words = np.concatenate([s.words(1000) for s in (one, other, one)])
  assert len(np.unique(words)) == 3000
  bits = np.concatenate([s.bits(4000) for s in (one, other, one)])
  assert set(np.unique(bits)) == {0, 1}
  assert abs(bits.mean() - 0.5) < 0.05
  assert one.is_private
  assert one.description == "os.urandom"


def test_a_seed_repeats_and_says_that_it_is_not_private():
  first = rounded_gaussian((100,), 9.0, NoiseSource(seed=7))
  again = rounded_gaussian((100,), 9.0, NoiseSource(seed=7))
  other = rounded_gaussian((100,), 9.0, NoiseSource(seed=8))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)
  source = NoiseSource(seed=0)  # a seed although it is false
  assert not source.is_private
  assert source.description == "seeded: NOT PRIVATE"
  with pytest.raises(InputError, match="seed -1 must not be negative"):
    NoiseSource(seed=-1)


# Room and rounding.


@pytest.mark.parametrize("sd", [0.0, -1.0, math.inf, math.nan, 2.0**57.001])
def test_noise_that_is_none_or_has_no_room_is_refused(sd):
  with pytest.raises(InputError, match=r"at least 0\.000976562, and at most"):
    rounded_gaussian((2,), sd, NoiseSource(seed=11))


@pytest.mark.parametrize("sd", [2.0**34, 2.0**46, 2.0**51.5, noise.MAX_SD])
def test_law_of_large_noise(sd):
  drawn = rounded_gaussian((2000,), sd, NoiseSource(seed=18))
  assert scipy.stats.kstest(drawn / sd, scipy.stats.norm.cdf).pvalue > P_VALUE


@pytest.mark.parametrize("exponent", [-10, -1, 2, 36.1, 50, 52.9, 53, 57])
def test_the_exact_value_is_rounded(exponent):
  """Against rationals; half of the values are as near to a half as they get."""
  sd, n = 2.0**exponent, 300
  sign, k, x, _ = sample_normals(n, NoiseSource(seed=10))
  halves = np.floor(sd * (k + x * 2.0**-64)).astype(int) + Fraction(1, 2)
  for i in range(0, n, 2):
    nearest = math.floor((halves[i] / Fraction(sd) - int(k[i])) * WORD)
    x[i] = min(max(0, nearest - i % 3 + 1), WORD - 1)
  rounded = noise._rounded((sign, k, x, {}), sd, NoiseSource(seed=0))
  for i, value in enumerate((rounded * sign).tolist()):
    low = Fraction(sd) * (int(k[i]) + Fraction(int(x[i]), WORD))
    high = low + Fraction(sd) / WORD
    assert value - Fraction(1, 2) <= high
    assert low <= value + Fraction(1, 2)


def test_few_values_are_rounded_bit_by_bit(monkeypatch):
  """Or 1.28 million of them would take minutes."""
  calls = counted(monkeypatch, noise, "_round_exactly")
  for exponent in (34, 45, 50):
    rounded_gaussian((100_000,), 2.0**exponent, NoiseSource(seed=19))
  assert len(calls) < 40


# Decisions too close to call in float64.


def values(seed):
  source = NoiseSource(seed)
  sds = (0.7, 40.0, 2.0**23, 2.0**41)
  return [rounded_gaussian((250,), sd, source).tolist() for sd in sds]


@pytest.mark.parametrize(
  ("constant", "value", "exact"),
  [
    ("_TABLE_GUARD", WORD // 2, "_integer_of"),
    ("_ACCEPT_ERROR", 2.0, "_accept_exactly"),
  ],
)
def test_exact_decisions_are_the_same_as_the_fast_ones(
  monkeypatch, constant, value, exact
):
  fast = values(seed=13)
  calls = counted(monkeypatch, noise, exact)
  assert values(seed=13) == fast
  few = len(calls)
  monkeypatch.setattr(noise, constant, value)
  assert values(seed=13) == fast
  assert few < 5
  assert len(calls) > 350


@pytest.mark.parametrize("k", range(10))
def test_table_of_thresholds(k):
  threshold = int(noise._thresholds()[k])
  with mpmath.workdps(60):
    assert threshold == int(mpmath.floor(share_at_most(k) * WORD))
  below, above = threshold - 1, min(threshold + 1, WORD - 1)
  # No more words are needed on either side: ScriptedSource would fail.
  assert noise._sample_integers(1, ScriptedSource([below])).item() <= k
  if above > threshold and k < 8:
    source = ScriptedSource([above])
    assert noise._sample_integers(1, source).item() == k + 1


@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("words", [1, 3])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_word_on_a_threshold_takes_more_words(k, words, side):
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
def test_integer_parts_past_the_table(k):
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


def test_bits_drawn_to_accept_are_in_the_sample():
  """`sample_normals` keeps them, under the index of whom they belong to."""
  # Words on which k is 3 and 0, and candidates with x = 1/3 that are on the
  # edge of acceptance, to 64 bits and to 128.
  three, zero = int(noise._thresholds()[3]) - 1, 0
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
def test_rounding_beside_a_half_draws_more_bits(fraction, sd, words, expected):
  source = ScriptedSource(words)
  found = noise._round_exactly(fraction, 64, Fraction(sd), source)
  assert found == expected
  assert not source.script


def test_bits_that_are_known_are_what_is_rounded():
  """3·x straddles 1/2 after 64 bits; that x is on its far side is known."""
  sign, k = np.array([[1], [0]], np.int8)
  x = np.array([WORD // 6], np.uint64)
  known = {0: ((WORD // 6 << 64) | (WORD - 1), 128)}
  assert noise._rounded((sign, k, x, known), 3.0, ScriptedSource()) == 1


def test_stated_error_of_acceptance():
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
