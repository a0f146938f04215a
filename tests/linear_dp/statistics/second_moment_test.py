import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics import second_moment as module
from oneshot_dp.linear_dp.statistics.class_moments import (
  SecretClassMoments,
)
from oneshot_dp.linear_dp.statistics.second_moment import (
  mean_sensitivity,
  moment_sensitivity,
  release_counts,
  release_mean,
  release_moment,
  release_units,
)

NULL_ROW = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
K, D = 4, 6
# Seeds are fixed, so that a test passes always or never.
P_VALUE = 1e-4


def released_steps(moment: np.ndarray) -> np.ndarray:
  """What noise is added to, as integers of Python."""
  secret = SecretClassMoments(
    num_examples=1,
    secret_moment=moment,
    secret_class_sums=np.zeros((K, len(moment)), np.int64),
    secret_class_counts=np.zeros(K, np.int64),
  )
  exact = release_moment(secret, 1.0, None) * GRID_RADIUS
  assert (exact == np.rint(exact)).all()
  return exact.astype(np.int64)


def test_the_sensitivity_of_the_total_is_the_radius():
  assert mean_sensitivity(NULL_ROW) == GRID_RADIUS
  assert mean_sensitivity(REPLACE) == 2 * GRID_RADIUS


def test_it_is_rounded_to_the_nearest_step():
  moment = np.array([[3 * GRID_RADIUS // 2 - 1, -5], [-5, 2**62 + 7]])
  steps = [[1, 0], [0, 2**62 // GRID_RADIUS]]
  np.testing.assert_array_equal(released_steps(moment), steps)


def test_the_sensitivity_is_the_radius_and_the_rounding():
  least = GRID_RADIUS + D
  assert least < moment_sensitivity(NULL_ROW, D) < least * (1 + 1e-6)
  # What the ledger takes it for.
  assert moment_sensitivity(REPLACE, D) == 2 * moment_sensitivity(NULL_ROW, D)


# The release.

# Whole steps of the release, which rounding leaves as they are.
MOMENT_LIMIT = 2**42


def make_secret(d: int, seed=0) -> SecretClassMoments:
  rng = np.random.default_rng(seed)
  upper = np.triu(rng.integers(-MOMENT_LIMIT, MOMENT_LIMIT, (d, d)))
  moment = upper + np.triu(upper, 1).T
  return SecretClassMoments(
    num_examples=1000,
    secret_moment=moment * GRID_RADIUS,
    secret_class_sums=rng.integers(-MOMENT_LIMIT, MOMENT_LIMIT, (K, d)),
    secret_class_counts=np.zeros(K, np.int64),
  )


def noise_of(d: int, sd: float, seed: int | None) -> np.ndarray:
  """Released minus exact, in steps of 1/B."""
  secret = make_secret(d)
  released = release_moment(secret, sd, NoiseSource(seed))
  assert released.dtype == np.float64
  steps = released * GRID_RADIUS  # a power of two: exact
  assert (steps == np.rint(steps)).all()
  np.testing.assert_array_equal(released, released.T)
  return steps.astype(np.int64) - secret.secret_moment // GRID_RADIUS


@pytest.mark.slow
@pytest.mark.parametrize("sd", [40.0, 1e9])
def test_law_of_the_noise(sd):
  """sd on the diagonal and sd/√2 beside it, each entry on its own."""
  d, draws = 30, 150
  noise = np.array([noise_of(d, sd, seed) for seed in range(draws)])
  above = np.triu_indices(d, 1)
  diagonal = noise[:, np.arange(d), np.arange(d)].ravel()
  beside = noise[:, above[0], above[1]].ravel()
  for values, expected in [(diagonal, sd), (beside, sd / math.sqrt(2))]:
    # Rounding adds the variance of a step.
    total = (values.astype(float) ** 2).sum() / (expected**2 + 1 / 12)
    law = scipy.stats.chi2(values.size)
    assert P_VALUE < law.cdf(total) < 1 - P_VALUE
    spread = np.random.default_rng(0).uniform(-0.5, 0.5, values.size)
    normal = scipy.stats.norm(scale=expected)
    assert scipy.stats.kstest(values + spread, normal.cdf).pvalue > P_VALUE


def test_entries_have_noise_of_their_own():
  d, draws = 12, 500
  sd = 1e9
  triangle = np.triu_indices(d)
  noise = np.array([noise_of(d, sd, seed)[triangle] for seed in range(draws)])
  correlation = np.corrcoef(noise.T) - np.eye(len(triangle[0]))
  assert np.abs(correlation).max() < 5.5 / math.sqrt(draws)
  # Nor does one release say anything of the next.
  lagged = np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1]
  assert abs(lagged) < 5 / math.sqrt(noise.size)


def mean_noise(d: int, sd: float, seed: int | None) -> np.ndarray:
  """n·released minus exact, in steps of 1/B: integers."""
  secret = make_secret(d)
  released = release_mean(secret, sd, NoiseSource(seed), 1000)
  assert released.dtype == np.float64
  steps = released * GRID_RADIUS * secret.num_examples
  whole = np.rint(steps)
  np.testing.assert_allclose(steps, whole, rtol=2**-52, atol=0)
  return whole.astype(np.int64) - secret.secret_total


@pytest.mark.parametrize("steps", [1, GRID_RADIUS])
def test_law_of_the_noise_of_counts_and_of_units(steps):
  """The deviation is in rows, also where counts are in steps of 1/B."""
  sd = 40.0
  secret = SecretClassMoments(
    num_examples=400,
    secret_moment=np.zeros((1, 1), np.int64),
    secret_class_sums=np.zeros((400, 1), np.int64),
    secret_class_counts=np.full(400, steps),
    count_steps=steps,
  )
  counts = release_counts(secret, sd, NoiseSource(0)) - 1
  units = [release_units(secret, sd, NoiseSource(i)) - 400 for i in range(400)]
  law = scipy.stats.chi2(400)
  for noise in (counts, np.concatenate(units)):
    total = (noise**2).sum() / sd**2
    assert P_VALUE < law.cdf(total) < 1 - P_VALUE


@pytest.mark.parametrize("sd", [40.0, 1e9])
def test_law_of_the_noise_of_the_mean(sd):
  d, draws = 40, 200
  noise = np.array([mean_noise(d, sd, seed) for seed in range(draws)])
  total = (noise.astype(float) ** 2).sum() / (sd**2 + 1 / 12)
  law = scipy.stats.chi2(noise.size)
  assert P_VALUE < law.cdf(total) < 1 - P_VALUE
  spread = np.random.default_rng(0).uniform(-0.5, 0.5, noise.size)
  normal = scipy.stats.norm(scale=sd)
  found = scipy.stats.kstest(noise.ravel() + spread, normal.cdf)
  assert found.pvalue > P_VALUE
  # Each entry on its own, and each release.
  correlation = np.corrcoef(noise.T) - np.eye(d)
  assert np.abs(correlation).max() < 5.5 / math.sqrt(draws)
  lagged = np.corrcoef(noise[1:].ravel(), noise[:-1].ravel())[0, 1]
  assert abs(lagged) < 5 / math.sqrt(noise.size)


def test_without_noise_the_mean_is_the_exact_one():
  secret = make_secret(D)
  found = release_mean(secret, 1e9, None, 1000)
  for value, total in zip(found, secret.secret_total, strict=True):
    exact = Fraction(int(total), GRID_RADIUS * 1000)
    assert value == float(exact)


@hypothesis.settings(
  max_examples=25,
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(sd=st.floats(1.0, 2.0**46))
def test_the_deviation_is_never_rounded_down(monkeypatch, sd):
  """The normals are multiplied by it; compared in rationals."""
  chains = []

  def watched(shape, sd, source):
    chains.append((shape, GaussianChain(shape, source)))
    return chains[-1][1].extend(sd)

  monkeypatch.setattr(module, "rounded_gaussian", watched)
  release_moment(make_secret(2), sd, NoiseSource(1))
  variance = {
    shape: sum(Fraction(added) ** 2 for _, added in chain._terms)
    for shape, chain in chains
  }
  assert variance[(2,)] >= Fraction(sd) ** 2
  assert 2 * variance[(1,)] >= Fraction(sd) ** 2
  assert 2 * variance[(1,)] <= Fraction(sd * (1 + 1e-14)) ** 2
