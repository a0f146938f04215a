"""The joint vector of moments: its sensitivity, and the law of its noise."""

import itertools
import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import (
  SecretClassMoments,
  class_moments,
)
from oneshot_dp.linear_dp.statistics.joint_release import (
  ClassMoments,
  Releases,
  Shares,
  joint_sensitivity,
  part_sd,
  without_noise,
)
from tests.linear_dp.blocks import Block, make_block, random_block, rows_of

NULL_ROW = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D = 4, 6
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4


def moments_of(block: Block) -> SecretClassMoments:
  return class_moments(rows_of(block))


# Sensitivity.


def released_vector(secret: SecretClassMoments) -> list[tuple[Fraction, int]]:
  """The exact joint vector: (share, entry), entries beside the diagonal twice.

  Written out in integers of Python, with no code of the module but the shares.
  """
  sums = secret.secret_class_sums.astype(object)
  d, shares = len(secret.secret_moment), Shares.of(len(sums))
  half = GRID_RADIUS // 2
  rounded = (secret.secret_moment.astype(object) + half) // GRID_RADIUS
  counts = secret.secret_class_counts.astype(object) * GRID_RADIUS
  return [
    *((Fraction(shares.moment), rounded[i, j])
      for i, j in itertools.product(range(d), repeat=2)),
    *((Fraction(shares.class_sums), entry) for entry in sums.ravel()),
    *((Fraction(shares.total), entry) for entry in sums.sum(axis=0)),
    *((Fraction(shares.class_counts), entry) for entry in counts),
  ]  # fmt: skip


def squared_distance(
  one: SecretClassMoments, other: SecretClassMoments
) -> Fraction:
  pairs = zip(released_vector(one), released_vector(other), strict=True)
  return sum(((s * (a - b) ** 2) for (s, a), (_, b) in pairs), Fraction(0))


@hypothesis.settings(
  max_examples=15,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  n=st.integers(2, 40),
  d=st.sampled_from([1, 2, D]),
  seed=st.integers(0, 2**32),
  apart=st.booleans(),
)
def test_a_row_moves_the_vector_by_at_most_the_sensitivity(
  small_chunks, n, d, seed, apart
):
  one = random_block(n, d, K, seed=seed)
  other = random_block(n, d, K, seed=seed + 1)
  rows, label = one.embedding.copy(), one.label.copy()
  rows[0], label[0] = other.embedding[0], other.label[0]
  if apart:  # at a right angle and of another class: what moves it furthest
    one.embedding[0], rows[0] = np.eye(d)[-1], -np.eye(d)[0]
    label[0] = (one.label[0] + 1) % K
  one = make_block(one.embedding, one.label)
  replaced = moments_of(make_block(rows, label))
  whole, removed = moments_of(one), moments_of(one[1:])
  moved = squared_distance(whole, removed)
  limit = Fraction(joint_sensitivity(NULL_ROW, d, K))
  assert moved <= limit**2
  # And it is attained, but for rounding.
  assert moved >= limit**2 * Fraction(1 - 1e-4)
  moved = squared_distance(whole, replaced)
  assert moved <= Fraction(joint_sensitivity(REPLACE, d, K)) ** 2
  if apart and d > 1:
    assert moved >= 2 * limit**2 * Fraction(1 - 1e-3)


@pytest.mark.parametrize(
  ("num_classes", "d"), [(2, 192), (10, 4096), (11, 1), (1000, 192)]
)
def test_the_sensitivity_is_of_all_four_parts(d, num_classes):
  shares = Shares.of(num_classes)
  parts = [
    (shares.moment, GRID_RADIUS + d * (1 + Fraction(1, 2**10))),
    (shares.class_sums, GRID_RADIUS),
    (shares.total, GRID_RADIUS),
    (shares.class_counts, GRID_RADIUS),
  ]
  squares = sum((Fraction(s) * Fraction(p) ** 2 for s, p in parts), Fraction(0))
  found = Fraction(joint_sensitivity(NULL_ROW, d, num_classes))
  assert squares <= found**2 <= squares * (1 + Fraction(1, 10**12))
  assert joint_sensitivity(REPLACE, d, num_classes) == 2 * joint_sensitivity(
    NULL_ROW, d, num_classes
  )


@hypothesis.given(num_classes=st.integers(2, 10**6))
def test_shares_are_positive_and_no_more_than_all(num_classes):
  shares = Shares.of(num_classes)
  parts = (
    shares.moment,
    shares.class_sums,
    shares.total,
    shares.class_counts,
  )
  assert min(parts) > 0
  assert abs(sum(map(Fraction, parts)) - 1) < Fraction(1, 2**51)


# The release.


def make_secret(d=D, num_classes=K, seed=0) -> SecretClassMoments:
  """Nobody's rows: whole steps, which rounding leaves as they are."""
  rng = np.random.default_rng(seed)
  upper = np.triu(rng.integers(-(2**20), 2**20, (d, d)))
  return SecretClassMoments(
    num_examples=1000,
    secret_moment=(upper + np.triu(upper, 1).T) * GRID_RADIUS,
    secret_class_sums=rng.integers(-(2**40), 2**40, (num_classes, d)),
    secret_class_counts=rng.integers(0, 2**20, num_classes),
  )


PARTS = ("moment", "class_sums", "total", "class_counts")


def steps_of(released: ClassMoments) -> dict[str, np.ndarray]:
  found = {}
  for name in PARTS:
    steps = getattr(released, name) * GRID_RADIUS  # a power of two: exact
    assert (steps == np.rint(steps)).all()
    found[name] = steps.astype(np.int64)
  return found


def noise_between(
  one: ClassMoments, other: ClassMoments
) -> dict[str, np.ndarray]:
  """By kinds of entries; one of each pair of the moment."""
  after, before = steps_of(one), steps_of(other)
  noise = {name: after[name] - before[name] for name in PARTS}
  moment = noise.pop("moment")
  np.testing.assert_array_equal(moment, moment.T)
  above = moment[np.triu_indices(len(moment), 1)]
  return noise | {"diagonal": np.diag(moment), "beside": above}


def expected_sd(sd: float, num_classes: int) -> dict[str, float]:
  shares = Shares.of(num_classes)
  return {
    "diagonal": sd / math.sqrt(shares.moment),
    "beside": sd / math.sqrt(2 * shares.moment),
    "class_sums": sd / math.sqrt(shares.class_sums),
    "total": sd / math.sqrt(shares.total),
    "class_counts": sd / math.sqrt(shares.class_counts),
  }


def test_exact_moments_in_rows():
  secret = make_secret()
  found = steps_of(without_noise(secret))
  assert without_noise(secret).noise_sd == 0
  moment = secret.secret_moment // GRID_RADIUS
  np.testing.assert_array_equal(found["moment"], moment)
  sums = secret.secret_class_sums
  np.testing.assert_array_equal(found["class_sums"], sums)
  np.testing.assert_array_equal(found["total"], sums.sum(axis=0))
  counts = secret.secret_class_counts * GRID_RADIUS
  np.testing.assert_array_equal(found["class_counts"], counts)


def test_all_entries_have_noise_of_their_own():
  draws, sd = 300, 1e9
  secret = make_secret(5, 3)
  exact = without_noise(secret)
  rows = []
  for seed in range(draws):
    noise = noise_between(Releases(secret, NoiseSource(seed)).extend(sd), exact)
    rows.append(np.concatenate([noise[name].ravel() for name in sorted(noise)]))
  correlation = np.corrcoef(np.array(rows).T)
  correlation -= np.eye(len(correlation))
  assert len(correlation) == 5 + 10 + 15 + 5 + 3
  assert np.abs(correlation).max() < 5.5 / math.sqrt(draws)


def test_more_noise_is_added_to_what_was_released():
  """The first, and the step to the second, are independent Gaussians."""
  draws, small, large = 100, 3e8, 5e8  # 4e8 between them
  secret = make_secret(6, 4)
  exact = without_noise(secret)
  first, added = [], []
  for seed in range(draws):
    releases = Releases(secret, NoiseSource(seed))
    one, two = releases.extend(small), releases.extend(large)
    assert (one.noise_sd, two.noise_sd) == (small, large)
    first.append(noise_between(one, exact))
    added.append(noise_between(two, one))
  for name in expected_sd(1, 4):
    before = np.array([noise[name].ravel() for noise in first], float)
    after = np.array([noise[name].ravel() for noise in added], float)
    law = scipy.stats.chi2(before.size)
    for values, sd in [(before, small), (after, 4e8)]:
      total = (values**2).sum() / expected_sd(sd, 4)[name] ** 2
      assert P_VALUE < law.cdf(total) < 1 - P_VALUE, name
    related = np.corrcoef(before.ravel(), after.ravel())[0, 1]
    assert abs(related) < 5 / math.sqrt(before.size)


@hypothesis.settings(
  max_examples=25,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
  sds=st.lists(st.floats(1.0, 2.0**44), min_size=1, max_size=3, unique=True)
)
def test_what_the_noise_hides_is_never_less_than_was_paid_for(sds):
  """Σ (Δ_p/sd_p)² of what normals are multiplied by, in rationals."""
  releases = Releases(make_secret(2), NoiseSource(1))
  beside, diagonal, *others = releases._chains
  limit = Fraction(joint_sensitivity(NULL_ROW, 2, K)) ** 2
  rounded = Fraction(GRID_RADIUS) + 2 * (1 + Fraction(1, 2**10))
  for sd in sorted(sds):
    releases.extend(sd)
    variance = [
      sum(Fraction(added) ** 2 for _, added in chain._terms)
      for chain in (beside, diagonal, *others)
    ]
    of_moment = rounded**2 / min(2 * variance[0], variance[1])
    of_sums = sum(Fraction(GRID_RADIUS) ** 2 / v for v in variance[2:])
    spent = of_moment + of_sums
    assert spent <= limit / Fraction(sd) ** 2
    assert spent >= limit / Fraction(sd) ** 2 * (1 - Fraction(1, 10**9))


def test_part_sd_is_rounded_up():
  for share in (0.05, 0.3, 1 / 3, 0.6):
    assert Fraction(part_sd(7.3, share)) ** 2 * Fraction(share) >= (
      Fraction(7.3) ** 2
    )
