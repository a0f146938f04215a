import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import scipy.stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.noise import normals as exact_normals
from oneshot_dp.linear_dp.noise import rounded_gaussian as noise
from oneshot_dp.linear_dp.noise.normals import sample_normals
from oneshot_dp.linear_dp.noise.rounded_gaussian import (
  GaussianChain,
  rounded_gaussian,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource

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
  normals = sample_normals(n, NoiseSource(seed=2))
  k = normals.integer.astype(int)
  cdf = scipy.stats.norm.cdf
  share = 2 * (cdf(np.arange(1, 5)) - cdf(np.arange(4)))
  share = np.append(share, 1 - share.sum())
  seen = np.bincount(np.minimum(k, 4), minlength=5)
  assert scipy.stats.chisquare(seen, share * n).pvalue > P_VALUE

  signs = int((normals.sign > 0).sum())
  assert set(np.unique(normals.sign)) == {-1, 1}
  assert scipy.stats.binomtest(signs, n).pvalue > P_VALUE
  for part in range(3):  # the fraction given each integer part
    of_part = normals.fraction[k == part] * 2.0**-64

    def conditional(x, part=part):
      whole = cdf(part + 1) - cdf(part)
      return (cdf(part + x) - cdf(part)) / whole

    assert scipy.stats.kstest(of_part, conditional).pvalue > P_VALUE
  # The sign says nothing of the size.
  size = normals.approximate() * normals.sign
  assert abs(np.corrcoef(normals.sign, size)[0, 1]) < 5 / math.sqrt(n)
  assert scipy.stats.kstest(normals.approximate(), cdf).pvalue > P_VALUE


def test_low_bits_of_the_fraction_are_uniform_and_batches_join(monkeypatch):
  monkeypatch.setattr(exact_normals, "_BATCH", 1000)
  normals = sample_normals(200_500, NoiseSource(seed=3))
  fraction = normals.fraction
  assert len(np.unique(fraction)) == fraction.size  # not one value used twice
  assert str(int(fraction[0])) not in repr(normals)
  values = normals.approximate()
  assert scipy.stats.kstest(values, scipy.stats.norm.cdf).pvalue > P_VALUE
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
def test_calls_and_chains_have_noise_of_their_own(seed):
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


# Chains.


def test_each_level_of_a_chain_has_its_own_deviation():
  n, sds = 100_000, (5.0, 8.0, 8.5, 40.0)
  chain = GaussianChain((n,), NoiseSource(seed=9))
  levels = np.array([chain.extend(sd) for sd in sds])
  for level, sd in zip(levels, sds, strict=True):
    expected = sd**2 + 1 / 12
    assert level.var() == pytest.approx(expected, rel=5 * math.sqrt(2 / n))
    standard = (level + np.random.default_rng(0).uniform(-0.5, 0.5, n)) / sd
    assert scipy.stats.kstest(standard, scipy.stats.norm.cdf).pvalue > P_VALUE
  correlation = np.corrcoef(levels)
  for i, j in itertools.combinations(range(len(sds)), 2):
    expected = sds[i] / sds[j]
    assert correlation[i, j] == pytest.approx(expected, abs=5 / math.sqrt(n))
  # What is added is independent of what was there.
  for i, j in itertools.pairwise(range(len(sds))):
    added = levels[j] - levels[i]
    assert abs(np.corrcoef(added, levels[i])[0, 1]) < 5 / math.sqrt(n)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 1e3, 2.0**24])
def test_a_chain_rounds_the_exact_sum_of_its_terms(scale):
  """Redone in rationals, from the same bits."""
  chain = GaussianChain((300,), NoiseSource(seed=10))
  half = Fraction(1, 2)
  for sd in (1 * scale, 1.1 * scale, 7 * scale):
    rounded = chain.extend(sd)
    for i, value in enumerate(rounded.tolist()):
      ends = [(n.interval(i), Fraction(a)) for n, a in chain._terms]
      low = sum(a * interval[0] for interval, a in ends)
      high = sum(a * interval[1] for interval, a in ends)
      assert value - half <= low <= high <= value + half
    variance = sum(Fraction(a) ** 2 for _, a in chain._terms)
    assert Fraction(sd) ** 2 <= variance
    assert variance <= Fraction(sd) ** 2 * (1 + Fraction(1, 2**40))


@pytest.mark.parametrize("sd", [4.0, 3.0, 0.0, -1.0, math.inf, math.nan])
def test_noise_only_grows(sd):
  chain = GaussianChain((2,), NoiseSource(seed=11))
  chain.extend(4.0)
  with pytest.raises(InputError, match="must be finite and larger"):
    chain.extend(sd)


def test_noise_that_has_room_in_int64_and_more_that_has_not():
  """A plan asks for less than 2⁵⁷; others may not."""
  sd = 2.0**57
  drawn = GaussianChain((200,), NoiseSource(seed=18)).extend(sd)
  scaled = drawn / sd
  assert scipy.stats.kstest(scaled, scipy.stats.norm.cdf).pvalue > P_VALUE
  chain = GaussianChain((2,), NoiseSource(seed=18))
  chain.extend(1.0)
  for more in (math.nextafter(sd, math.inf), 2.0**63, 1e300):
    with pytest.raises(InputError, match="int64 has room for: ask for less"):
      chain.extend(more)


# Decisions too close to call in float64.


def chain_values(seed):
  chain = GaussianChain((250,), NoiseSource(seed))
  return [chain.extend(sd).tolist() for sd in (0.7, 40.0, 2.0**23)]


@pytest.mark.parametrize(
  ("constant", "value", "owner", "exact"),
  [
    ("_TABLE_GUARD", WORD // 2, exact_normals, "_integer_of"),
    ("_ACCEPT_ERROR", 2.0, exact_normals, "_accept_exactly"),
    ("_ROUND_ERROR", 1.0, GaussianChain, "_round_exactly"),
  ],
)
def test_exact_decisions_are_the_same_as_the_fast_ones(
  monkeypatch, constant, value, owner, exact
):
  fast = chain_values(seed=13)
  calls = counted(monkeypatch, owner, exact)
  assert chain_values(seed=13) == fast
  few = len(calls)
  module = noise if owner is GaussianChain else owner
  monkeypatch.setattr(module, constant, value)
  assert chain_values(seed=13) == fast
  assert few < 5
  assert len(calls) > 350


@pytest.mark.parametrize("k", range(10))
def test_table_of_thresholds(k):
  threshold = int(exact_normals._thresholds()[k])
  with mpmath.workdps(60):
    assert threshold == int(mpmath.floor(share_at_most(k) * WORD))
  below, above = threshold - 1, min(threshold + 1, WORD - 1)
  # No more words are needed on either side: ScriptedSource would fail.
  assert exact_normals._sample_integers(1, ScriptedSource([below])).item() <= k
  if above > threshold and k < 8:
    source = ScriptedSource([above])
    assert exact_normals._sample_integers(1, source).item() == k + 1


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
  found = exact_normals._sample_integers(1, source).item()
  assert found == (k if side < 0 else k + 1)
  assert not source.script


@pytest.mark.parametrize("k", [10, 11, 14])
def test_integer_parts_past_the_table(k):
  with mpmath.workdps(200):
    between = (share_at_most(k - 1) + share_at_most(k)) / 2
    bits = int(mpmath.floor(between * mpmath.mpf(2) ** 320))
  words = [(bits >> 64 * (4 - i)) % WORD for i in range(5)]
  assert words[0] == WORD - 1 == exact_normals._thresholds()[9]
  source = ScriptedSource(words)
  assert exact_normals._sample_integers(1, source).item() == k


def accept_one(k, x, v, more=()):
  source = ScriptedSource(more)
  accepted, tails = exact_normals._accept(
    np.array([k], np.int8),
    np.array([x], np.uint64),
    np.array([v], np.uint64),
    source,
  )
  assert not source.script
  return accepted.item(), tails


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
          assert accept_one(k, x, edge - distance) == (True, {})
        if edge + distance < WORD:
          assert accept_one(k, x, edge + distance) == (False, {})


def test_bits_drawn_to_accept_are_in_the_sample():
  """`sample_normals` keeps them, under the index of whom they belong to."""
  # Words on which k is 3 and 0, and candidates with x = 1/3 that are on the
  # edge of acceptance, to 64 bits and to 128.
  three, zero = int(exact_normals._thresholds()[3]) - 1, 0
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
  normals = sample_normals(4, source)
  assert not source.script
  assert normals.integer.tolist() == [0, 0, 3, 3]
  assert normals.fraction.tolist() == [7, 9, x, x]
  assert normals.tail == {2: (0, 64), 3: ((1 << 64) | (WORD // 2), 128)}
  low_end, high_end = normals.interval(3)
  assert high_end - low_end == Fraction(1, 2**192)


def test_bits_drawn_later_belong_to_the_sample():
  """Where x took more bits, its interval is narrower and rounding sees it."""
  source = NoiseSource(seed=15)
  normals = sample_normals(3, source)
  wide = [normals.interval(i) for i in range(3)]
  normals.extend(1, source)
  low, high = normals.interval(1)
  assert wide[1][0] <= low < high <= wide[1][1]
  assert high - low == Fraction(1, 2**128)
  assert normals.interval(0) == wide[0]
  tail = normals.tail[1][0]
  normals.extend(1, source)
  assert normals.tail[1][0] >> 64 == tail
  assert normals.tail[1][1] == 128


@pytest.mark.parametrize(
  ("sign", "fraction", "sd", "words", "expected"),
  [
    (1, WORD // 2, 1.0, [], 1),  # from 1/2 on
    (-1, WORD // 2, 1.0, [3], -1),  # down from −1/2: 64 bits allow a tie
    (1, WORD // 2 - 1, 1.0, [3], 0),  # up to 1/2
    (-1, WORD // 2 - 1, 1.0, [], 0),
    # 3·x straddles 1/2 after 64 bits, and the next word settles it.
    (1, WORD // 6, 3.0, [0], 0),
    (1, WORD // 6, 3.0, [WORD - 1], 1),
    (-1, WORD // 6, 3.0, [WORD - 1], -1),
  ],
)
def test_rounding_beside_a_half_draws_more_bits(
  sign, fraction, sd, words, expected
):
  normals = exact_normals.ExactNormals(
    np.array([sign], np.int8),
    np.array([0], np.int8),
    np.array([fraction], np.uint64),
    {},
  )
  source = ScriptedSource(words)
  chain = GaussianChain((1,), source)
  chain._terms = [(normals, sd)]
  chain._sum = sd * normals.approximate()
  assert chain._round().item() == expected
  assert not source.script
  # They are part of the sample from now on.
  assert normals.tail == ({0: (words[0], 64)} if words else {})


# The stated errors of float64.


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
  assert worst < exact_normals._ACCEPT_ERROR / 8
  assert worst > 2.0**-60  # it is a real error


def test_stated_error_of_rounding():
  rng = np.random.default_rng(17)
  n = 600
  normals = exact_normals.ExactNormals(
    rng.choice(np.array([-1, 1], np.int8), n),
    rng.integers(0, 11, n).astype(np.int8),
    rng.integers(0, WORD, n, dtype=np.uint64),
    {},
  )
  approximate = normals.approximate()
  for sd in (1.0, 0.1, math.pi * 1e7):
    product = sd * approximate
    for i in range(n):
      for end in normals.interval(i):
        assert abs(Fraction(approximate[i]) - end) <= Fraction(1, 2**49)
        error = abs(Fraction(product[i]) - Fraction(sd) * end)
        assert error <= Fraction(sd) * Fraction(noise._ROUND_ERROR)
