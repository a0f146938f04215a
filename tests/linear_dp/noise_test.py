"""The law of the noise, and whose it is."""

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


# The law of what comes out.


@pytest.mark.parametrize("sd", [0.2, 1.0, 11.7])
def test_rounded_gaussian_has_the_law_of_a_rounded_normal(sd):
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


@pytest.fixture(scope="module")
def normals():
  """300,000 samples: sign, integer part, first word of the fraction."""
  sign, integer, fraction, _ = sample_normals(300_000, NoiseSource(seed=2))
  return sign, integer, fraction


def test_integer_part_of_a_normal_has_its_law(normals):
  _, integer, _ = normals
  cdf = scipy.stats.norm.cdf
  share = 2 * (cdf(np.arange(1, 5)) - cdf(np.arange(4)))
  share = np.append(share, 1 - share.sum())
  seen = np.bincount(np.minimum(integer, 4), minlength=5)
  expected = share * len(integer)
  assert scipy.stats.chisquare(seen, expected).pvalue > P_VALUE


def test_sign_of_a_normal_is_a_fair_coin(normals):
  sign, _, _ = normals
  assert set(np.unique(sign)) == {-1, 1}
  heads = int((sign > 0).sum())
  assert scipy.stats.binomtest(heads, len(sign)).pvalue > P_VALUE


@pytest.mark.parametrize("part", range(3))
def test_fraction_of_a_normal_given_its_integer_part_has_its_law(normals, part):
  _, integer, fraction = normals
  cdf = scipy.stats.norm.cdf
  given_part = fraction[integer == part] * 2.0**-64

  def conditional_cdf(x):
    return (cdf(part + x) - cdf(part)) / (cdf(part + 1) - cdf(part))

  assert scipy.stats.kstest(given_part, conditional_cdf).pvalue > P_VALUE


def test_sign_of_a_normal_says_nothing_about_its_size(normals):
  sign, integer, fraction = normals
  size = integer + fraction * 2.0**-64
  assert abs(np.corrcoef(sign, size)[0, 1]) < 5 / math.sqrt(len(sign))
  assert scipy.stats.kstest(sign * size, scipy.stats.norm.cdf).pvalue > P_VALUE


def test_rounded_gaussian_in_batches_uses_no_random_bits_twice(monkeypatch):
  monkeypatch.setattr(noise, "_BATCH", 1000)
  drawn = rounded_gaussian((5500,), 2.0**40, NoiseSource(seed=3))
  assert len(np.unique(drawn)) == drawn.size
  _, _, fraction, _ = sample_normals(200_500, NoiseSource(seed=3))
  assert len(np.unique(fraction)) == fraction.size


def test_low_bits_of_the_fraction_are_uniform():
  _, _, fraction, _ = sample_normals(200_500, NoiseSource(seed=3))
  seen = np.bincount((fraction & np.uint64(255)).astype(int), minlength=256)
  assert scipy.stats.chisquare(seen).pvalue > P_VALUE


# Independence.


def test_noise_of_classes_and_features_is_independent():
  sd = 50.0
  classes = 8
  features = 40_000
  drawn = rounded_gaussian((classes, features), sd, NoiseSource(seed=5))
  for lag in (1, 2, 512):  # neighboring features
    pairs = np.corrcoef(drawn[:, lag:].ravel(), drawn[:, :-lag].ravel())
    assert abs(pairs[0, 1]) < 5 / math.sqrt(classes * features)
  parts = drawn.reshape(classes * 4, -1)
  correlation = np.corrcoef(parts) - np.eye(classes * 4)
  assert np.abs(correlation).max() < 5.5 / math.sqrt(features / 4)


@pytest.mark.parametrize("seed", [None, 6])
def test_noise_of_calls_is_independent(seed):
  n = 40_000
  sd = 30.0
  source = NoiseSource(seed)
  draws = [rounded_gaussian((n,), sd, source) for _ in range(4)]
  off = np.corrcoef(draws) - np.eye(4)
  # Unseeded too: seven deviations is one in 10^11.
  assert np.abs(off).max() < 7 / math.sqrt(n)
  assert not np.array_equal(draws[0], draws[1])


def test_source_without_a_seed_never_repeats_itself():
  one = NoiseSource()
  other = NoiseSource()
  words = np.concatenate([s.words(1000) for s in (one, other, one)])
  assert len(np.unique(words)) == 3000


def test_source_without_a_seed_has_fair_bits_and_is_private():
  source = NoiseSource()
  bits = source.bits(12_000)
  assert set(np.unique(bits)) == {0, 1}
  assert abs(bits.mean() - 0.5) < 0.05
  assert source.is_private
  assert source.description == "os.urandom"


def test_source_with_a_seed_repeats_its_noise():
  first = rounded_gaussian((100,), 9.0, NoiseSource(seed=7))
  again = rounded_gaussian((100,), 9.0, NoiseSource(seed=7))
  other = rounded_gaussian((100,), 9.0, NoiseSource(seed=8))
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other)


@pytest.mark.parametrize("seed", [0, 7])  # 0 is a seed, although it is false
def test_source_with_a_seed_says_that_it_is_not_private(seed):
  source = NoiseSource(seed=seed)
  assert not source.is_private
  assert source.description == "seeded: NOT PRIVATE"


def test_source_with_a_negative_seed_is_refused():
  with pytest.raises(InputError, match="seed -1 must not be negative"):
    NoiseSource(seed=-1)


# Room and rounding.


@pytest.mark.parametrize("sd", [0.0, -1.0, math.inf, math.nan, 2.0**57.001])
def test_rounded_gaussian_without_noise_or_room_is_refused(sd):
  with pytest.raises(InputError, match=r"at least 0\.000976562, and at most"):
    rounded_gaussian((2,), sd, NoiseSource(seed=11))


@pytest.mark.parametrize("exponent", [-10, -1, 2, 36.1, 50, 52.9, 53, 57])
def test_rounded_is_the_rounding_of_the_exact_value(exponent):
  """Against rationals; half of the values are as near to a half as they get."""
  sd = 2.0**exponent
  n = 300
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
