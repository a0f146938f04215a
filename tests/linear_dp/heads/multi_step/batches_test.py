"""Which rows each step sees, and what noise it needs."""

import itertools
import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import SamplingName
from oneshot_dp.linear_dp.heads.multi_step.batches import Batches
from oneshot_dp.linear_dp.noise.source import NoiseSource

# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4


def batches_of(
  sampling: SamplingName, n: int, batch_size: int, epochs: int = 1
) -> Batches:
  return Batches(
    sampling=sampling, num_examples=n, batch_size=batch_size, epochs=epochs
  )


def masks(batches: Batches, seed: int | None = 1) -> np.ndarray:
  """[T, n]."""
  found = list(batches.chosen(NoiseSource(seed), batches.num_examples))
  assert len(found) == batches.num_steps
  return np.array(found)


def within(value: float, law) -> bool:
  return P_VALUE < law.cdf(value) < 1 - P_VALUE


# Sizes.


@pytest.mark.parametrize(
  ("sampling", "n", "batch_size", "steps"),
  [
    ("poisson", 100, 100, 3),
    ("poisson", 100, 67, 4),
    ("poisson", 100, 30, 10),
    ("poisson", 10**6, 1, 3 * 10**6),
    ("partition", 100, 60, 6),
    ("partition", 100, 30, 9),
    ("partition", 10**6, 1, 3 * 10**6),
  ],
)
def test_steps(sampling, n, batch_size, steps):
  assert batches_of(sampling, n, batch_size, epochs=3).num_steps == steps


@hypothesis.given(
  n=st.integers(1, 2 * 10**9),
  share=st.floats(0, 1),
  epochs=st.integers(1, 1000),
)
def test_a_probability_is_exactly_on_the_grid(n, share, epochs):
  """It is that of batch/n, which is accounted for and divided by."""
  size = max(1, int(n * share))
  batches = batches_of("poisson", n, size, epochs)
  exact = Fraction(batches.probability)
  assert (exact * 2**32).denominator == 1
  assert abs(exact - Fraction(size, n)) <= Fraction(1, 2**33) * (
    1 + Fraction(1, 2**19)
  )
  assert batches.poisson.probability == batches.probability
  assert batches.poisson.num_steps == batches.num_steps
  assert batches.mean_size == pytest.approx(float(exact * n), rel=1e-15)


@pytest.mark.parametrize(
  ("sampling", "n", "batch_size", "epochs", "said"),
  [
    ("poisson", 10, 0, 1, "batch_size=0 is not between 1 and the 10 rows"),
    ("partition", 10, 11, 1, "batch_size=11 is not between 1 and the 10 rows"),
    ("full", 10, 9, 1, "batch_size=9 is not all rows: give a sampling"),
    ("partition", 10, 9, 1, "batch_size=9 leaves the 10 rows in one part"),
    ("full", 10, 10, 0, "epochs=0 must be at least 1"),
  ],
)
def test_sizes_that_cannot_be_are_refused(
  sampling, n, batch_size, epochs, said
):
  with pytest.raises(InputError, match=said) as caught:
    batches_of(sampling, n, batch_size, epochs)
  assert "\n" not in str(caught.value)


# Noise.


@hypothesis.given(
  sigma=st.floats(-7, 20).map(lambda e: 2.0**e),
  epochs=st.integers(1, 5000),
  n=st.integers(2, 10**6),
)
def test_the_noise_of_a_step_is_rounded_up(sigma, epochs, n):
  """Σ σ_t⁻² in rationals: never more than it may be, and hardly less.

  Over all steps where all see a row, and over the epochs, each of which sees it
  once, where they part the rows.
  """
  for sampling, batch_size in (("full", n), ("partition", max(1, n // 7))):
    batches = batches_of(sampling, n, batch_size, epochs)
    step = Fraction(batches.step_noise_multiplier(sigma))
    spent = epochs * step**-2
    assert spent <= Fraction(sigma) ** -2
    assert spent >= Fraction(sigma) ** -2 * (1 - Fraction(1, 10**14))
  poisson = batches_of("poisson", n, max(1, n // 7), epochs)
  assert poisson.step_noise_multiplier(sigma) == sigma
  assert batches.step_noise_multiplier(0.0) == 0


# Choices.


def test_full_batches_are_all_rows_and_need_no_bits():
  source = NoiseSource(1)
  batches = batches_of("full", 20, 20, epochs=4)
  assert batches.mean_size == 20
  assert list(batches.chosen(source, batches.num_examples)) == [None] * 4
  np.testing.assert_array_equal(source.words(9), NoiseSource(1).words(9))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("k", [2, 7, 100])
def test_a_partition_has_every_row_once_in_every_epoch(k, seed):
  found = masks(batches_of("partition", 700, 700 // k, epochs=5), seed)
  assert found.shape == (5 * k, 700)
  assert batches_of("partition", 700, 700 // k).mean_size == 700 / k
  epochs = found.reshape(5, k, 700)
  assert (epochs.sum(axis=1) == 1).all()
  # Each epoch afresh: rows meet their batch again by chance alone.
  law = scipy.stats.binom(700, 1 / k)
  for one, other in itertools.combinations(epochs.argmax(axis=1), 2):
    again = (one == other).sum()
    # Of bits that differ from run to run, one in 10^10.
    luck = 1e-10 if seed is None else 1e-6
    assert luck < law.cdf(again) < 1 - luck


@pytest.mark.parametrize("k", [2, 3, 16])
def test_rows_choose_their_batches_evenly_and_by_themselves(k):
  n = 20_000
  epochs = masks(batches_of("partition", n, n // k, epochs=3)).reshape(3, k, n)
  batch = epochs.argmax(axis=1)
  for counts in epochs.sum(axis=2):
    assert scipy.stats.chisquare(counts).pvalue > P_VALUE
  # What the next row, or the next epoch, chose is as good as independent.
  for a, b in [
    (batch[0, 1:], batch[0, :-1]),
    (batch[1], batch[0]),
    (batch[2, 1:], batch[1, :-1]),
  ]:
    table = np.zeros((k, k))
    np.add.at(table, (a, b), 1)
    assert scipy.stats.chi2_contingency(table).pvalue > P_VALUE


@pytest.mark.parametrize("k", [1, 3, 50])
def test_poisson_samples_take_every_row_with_q_by_itself(k):
  n, steps = 4000, 150
  batches = batches_of("poisson", n, n // k, epochs=steps // k)
  found = masks(batches)
  q = batches.probability
  if k == 1:
    assert q == 1
    assert found.all()
    return
  assert within(found.sum(), scipy.stats.binom(found.size, q))
  # The same q in every step and for every row: no more spread than by chance.
  for axis in (0, 1):
    counts = found.sum(axis=axis)
    most = found.shape[axis]
    total = ((counts - most * q) ** 2).sum() / (most * q * (1 - q))
    assert within(total, scipy.stats.chi2(counts.size))
  # Neighbouring rows, and the same row in consecutive steps.
  centred = found - q
  for products in (
    centred[:, 1:] * centred[:, :-1],
    centred[1:] * centred[:-1],
    centred[1:, 1:] * centred[:-1, :-1],
    centred[:, : n // 2] * centred[:, n // 2 :],
  ):
    z = products.sum() / (math.sqrt(products.size) * q * (1 - q))
    assert within(z, scipy.stats.norm())


class FixedSource(NoiseSource):
  """Words that a test chooses."""

  def __init__(self, words: list[int]):
    super().__init__(0)
    self._left = words

  def words(self, count):
    taken, self._left = self._left[:count], self._left[count:]
    return np.array(taken, np.uint64)


def test_poisson_is_by_the_upper_half_of_a_word():
  """Exactly q of the words are taken: those below q·2⁶⁴."""
  threshold = round(2**32 / 3) << 32
  words = [0, threshold - 1, threshold, 2**64 - 1]
  batches = batches_of("poisson", 6, 2)
  found = list(
    batches.chosen(
      FixedSource([*words, 0, threshold] * 3), batches.num_examples
    )
  )
  assert [np.asarray(mask).tolist() for mask in found] == [
    [True, True, False, False, True, False]
  ] * 3


@pytest.mark.parametrize("sampling", ["poisson", "partition"])
def test_choices_are_of_the_source_that_was_given(sampling, monkeypatch):
  """The same seed, the same choice; the system's own bits, never the same."""
  batches = batches_of(sampling, 500, 100, epochs=2)
  first = masks(batches, 1)
  np.testing.assert_array_equal(first, masks(batches, 1))
  others = [masks(batches, seed) for seed in (2, None, None)]
  for one, other in itertools.combinations([first, *others], 2):
    assert not (one == other).all(axis=1).any()

  def no_seeded_bits(*args):
    raise AssertionError

  for name in ("default_rng", "Generator", "Philox", "PCG64", "random", "rand"):
    monkeypatch.setattr(np.random, name, no_seeded_bits)
  assert masks(batches, None).any()


@pytest.mark.parametrize("sampling", ["poisson", "partition"])
def test_bits_are_drawn_when_a_step_or_epoch_begins(sampling):
  """And no two steps or epochs share any."""
  drawn = []

  class Watched(NoiseSource):
    def words(self, count):
      drawn.append(count)
      return super().words(count)

  batches = batches_of(sampling, 60, 20, epochs=2)
  for step, _ in enumerate(batches.chosen(Watched(1), batches.num_examples)):
    each = step + 1 if sampling == "poisson" else step // 3 + 1
    assert drawn == [60] * each
