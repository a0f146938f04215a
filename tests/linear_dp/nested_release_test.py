"""The joint law of a nested sweep, and that it costs its largest ε once.

All heads of a draw are post-processing of the one real vector G + Z_1: the j-th
is round((G + Z_1) + Z_2 + … + Z_j), with Z_2 … Z_j independent of the data.
noise_test has the law of each rounding; here is how heads hang together.
"""

import itertools
import math

import hypothesis
import numpy as np
import pytest
import scipy.stats
from dp_accounting import NeighboringRelation
from hypothesis import strategies as st

from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum
from oneshot_dp.linear_dp.one_step.release import (
  baseline_without_privacy,
  release,
)

K, D = 4, 10_000
DELTA = 1e-6
EPSILONS = (0.5, 8.0, 2.0, 1.0)
P_VALUE = 1e-4  # seeds are fixed: a test passes always or never


def make_plan(epsilons=EPSILONS, **changes) -> ReleasePlan:
  return ReleasePlan(epsilons=epsilons, delta=DELTA, **changes)


def make_secret() -> SecretSum:
  grid = ClippedGradientGrid(num_classes=K, feature_dim=D)
  sums = np.random.default_rng(0).integers(-(2**40), 2**40, (K, D))
  return SecretSum(grid=grid, num_examples=5000, secret_class_sums=sums)


def heads(plan, seed=1):
  """The releases of a plan, and the noise in each, [heads, K·D]."""
  secret = make_secret()
  releases = list(
    release(secret, plan, NoiseSource(seed), charge=lambda plan, source: None)
  )
  exact = baseline_without_privacy(secret, plan).noisy_sum
  return releases, np.array([(r.noisy_sum - exact).ravel() for r in releases])


def test_heads_of_a_draw_are_one_chain_of_growing_noise():
  """To the bit: nothing else is drawn, nothing is drawn twice."""
  plan = make_plan(num_draws=2)
  releases, noise = heads(plan, seed=2)
  source = NoiseSource(seed=2)
  for draw in range(2):
    chain = GaussianChain((K, D), source)
    for r, found in zip(releases, noise, strict=True):
      if r.draw == draw:
        expected = chain.extend(r.statement.noise_sd).ravel()
        np.testing.assert_array_equal(found, expected)
  of_first_draw = [r.statement.noise_sd for r in releases if r.draw == 0]
  assert of_first_draw == sorted(of_first_draw)


def test_all_increments_are_independent_normals():
  """The joint law, not only pairs: whitened, the heads are white."""
  releases, noise = heads(make_plan())
  increments = np.diff(noise, axis=0, prepend=0)
  sds = [r.statement.noise_sd for r in releases]
  added = np.sqrt(np.diff(np.square(sds), prepend=0))
  white = increments / added[:, None]
  for row in white:
    assert scipy.stats.kstest(row, "norm").pvalue > P_VALUE
  radius = (white**2).sum(axis=0)
  law = scipy.stats.chi2(len(sds)).cdf
  assert scipy.stats.kstest(radius, law).pvalue > P_VALUE
  # Independent, not merely uncorrelated.
  for a, b in itertools.combinations(white**2, 2):
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / math.sqrt(K * D)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("order", ["nested", "independent"])
@pytest.mark.parametrize(
  "relation",
  [NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE],
)
def test_all_heads_together_tell_what_was_charged(relation, order, draws):
  """Whoever combines all heads as well as can be learns Σσ⁻², no more.

  Shifting G by the sensitivity Δ moves every head by Δ, and the best linear
  test of that has the squared signal-to-noise ratio Δ²·1ᵀ Cov⁻¹ 1, which is μ²
  of their joint Gaussian mechanism: 1/σ² of the least noisy head of each draw
  when they are nested, of every head when they are not.
  """
  plan = make_plan(order=order, num_draws=draws, neighboring_relation=relation)
  releases, noise = heads(plan)
  sensitivity = releases[0].statement.sensitivity
  ones = np.ones(len(noise))
  found = sensitivity**2 * ones @ np.linalg.solve(np.cov(noise), ones)
  charged = sum(s**-2 for s in plan.charged_noise_multipliers)
  assert found == pytest.approx(charged, rel=5 * math.sqrt(2 / (K * D)))


def test_each_head_rounds_the_real_sum_once():
  """The joint law of two heads, cell by cell, where rounding is coarse."""
  n, (first, second) = 400_000, (0.6, 1.1)
  chain = GaussianChain((n,), NoiseSource(seed=3))
  a, b = chain.extend(first), chain.extend(second)
  joint = scipy.stats.multivariate_normal(
    cov=[[first**2, first**2], [first**2, second**2]]
  )
  cells = list(itertools.product(range(-2, 3), range(-4, 5)))
  share = np.array(
    [
      joint.cdf([i + 0.5, j + 0.5], lower_limit=[i - 0.5, j - 0.5])
      for i, j in cells
    ]
  )
  seen = np.array([np.sum((a == i) & (b == j)) for i, j in cells])
  likely = share * n > 5
  assert likely.sum() > 25
  rest = 1 - share[likely].sum()
  expected = np.append(share[likely], rest) * n
  counts = np.append(seen[likely], n - seen[likely].sum())
  assert scipy.stats.chisquare(counts, expected).pvalue > P_VALUE


@hypothesis.given(
  epsilons=st.lists(
    st.floats(0.05, 20), min_size=1, max_size=5, unique_by=lambda e: round(e, 2)
  ),
  draws=st.integers(1, 4),
)
@hypothesis.settings(max_examples=15, deadline=None)
def test_the_largest_epsilon_is_charged_once_for_each_draw(epsilons, draws):
  plan = make_plan(tuple(epsilons), num_draws=draws)
  sigma = accounting.noise_multiplier(max(epsilons), DELTA)
  assert plan.charged_noise_multipliers == (sigma,) * draws
  one = make_plan(tuple(epsilons)).composed_epsilon
  assert one == pytest.approx(max(epsilons), rel=1e-8)
  assert plan.composed_epsilon == pytest.approx(
    accounting.epsilon_of(sigma / math.sqrt(draws), DELTA), rel=1e-8
  )
