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
  sign, k, x, _ = sample_normals(n, NoiseSource(seed=2))
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
  values = sign * (k + x * 2.0**-64)
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
