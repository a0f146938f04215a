import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_privacy import auditing as oracle
from scipy import special, stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.audit import (
  CanaryScoreAuditor,
  best_number_of_guesses,
  check_confidence,
  epsilon_of_gdp,
  least_mean_error,
  mu_of_claim,
)

DELTA = 1e-5


def gaussian_scores(mu: float, m: int, seed: int) -> CanaryScoreAuditor:
  """Scores of m canaries, each there by a fair coin; half-way is 0."""
  rng = np.random.default_rng(seed)
  there = rng.integers(0, 2, m).astype(bool)
  scores = rng.standard_normal(m) + mu * (there - 0.5)
  return CanaryScoreAuditor(absent=scores[~there], present=scores[there])


def counted(correct: int, wrong: int, silent: int) -> CanaryScoreAuditor:
  """Scores of which `correct` and `wrong` are guessed, half of them high."""
  guesses = correct + wrong
  high, low = guesses // 2, guesses - guesses // 2
  right_high = min(high, correct)
  right_low = correct - right_high
  present = [3.0] * right_high + [-3.0] * (low - right_low) + [0.0] * silent
  absent = [3.0] * (high - right_high) + [-3.0] * right_low + [0.0] * silent
  return CanaryScoreAuditor(absent=np.array(absent), present=np.array(present))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
  correct=st.integers(10, 150),
  wrong=st.integers(0, 30),
  silent=st.integers(1, 300),
  delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
)
def test_bounds_of_guesses_are_those_of_jax_privacy(
  correct, wrong, silent, delta
):
  """As many guesses, as often right, of as many canaries."""
  correct, wrong = 2 * correct, 2 * wrong
  ours = counted(correct, wrong, silent)
  theirs = oracle.CanaryScoreAuditor(
    np.arange(correct + silent) < correct, np.arange(wrong + silent) < wrong
  )
  explicit = {"threshold_strategy": oracle.Explicit(0.5)}
  guesses = correct + wrong
  assert ours.guessed(guesses) == (guesses, correct)
  assert ours.epsilon_of_any(delta, 0.95, guesses) == pytest.approx(
    theirs.epsilon_one_run(0.05, delta, **explicit), abs=1e-5
  )
  assert ours.epsilon_of_gdp(delta, 0.95, guesses) == pytest.approx(
    theirs.epsilon_one_run_fdp(0.05, delta, **explicit), abs=1e-4
  )


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_bound_of_noise_is_below_the_truth_and_near_it(mu):
  truth = epsilon_of_gdp(mu, DELTA)
  found = np.array(
    [
      gaussian_scores(mu, 10_000, seed).epsilon_of_noise(DELTA, 0.95)
      for seed in range(200)
    ]
  )
  assert np.mean(found > truth) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)
  assert np.median(found) > 0.8 * truth


def test_bound_of_noise_of_coins_is_nothing():
  nothing = gaussian_scores(0.0, 1000, seed=1)
  assert nothing.epsilon_of_noise(DELTA, 0.95) == 0
  wrong = CanaryScoreAuditor(absent=nothing.present + 9, present=nothing.absent)
  assert wrong.epsilon_of_noise(DELTA, 0.95) == 0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.01), (2.0, 0.0)])
def test_bound_of_any_mechanism_holds_for_randomized_response(epsilon, delta):
  """Each coin leaks with probability δ, and else is told with ε-DP."""
  rng = np.random.default_rng(0)
  m, repeats = 500, 100
  right = delta + (1 - delta) * special.expit(epsilon)

  @functools.cache
  def bound(hits: int) -> float:
    return counted(hits, m - hits, 0).epsilon_of_any(delta, 0.95, m)

  found = np.array([bound(h) for h in rng.binomial(m, right, repeats)])
  assert np.mean(found > epsilon) <= 0.05 + 2 * np.sqrt(0.05 / repeats)
  if delta == 0:
    assert np.median(found) > 0.7 * epsilon


def test_bound_of_any_where_every_guess_is_right_or_there_is_none():
  # q^r = 0.05 at the bound.
  bound = counted(1000, 0, 0).epsilon_of_any(0.0, 0.95, 1000)
  assert special.expit(bound) ** 1000 == pytest.approx(0.05, rel=1e-4)
  assert counted(0, 0, 10).epsilon_of_any(0.0, 0.95, 0) == 0
  assert counted(0, 0, 10).epsilon_of_gdp(DELTA, 0.95, 0) == 0
  assert counted(50, 50, 0).epsilon_of_gdp(DELTA, 0.95, 100) == 0


def test_ties_are_not_broken_by_a_look_at_the_coins():
  alike = CanaryScoreAuditor(absent=np.zeros(5000), present=np.zeros(5000))
  guesses, right = alike.guessed(10_000)
  assert stats.binomtest(right, guesses).pvalue > 1e-3


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0])
def test_best_number_of_guesses_beats_guessing_all(mu):
  guesses = best_number_of_guesses(
    canaries=1000, mu=mu, confidence=0.95, delta=DELTA
  )
  assert guesses % 2 == 0
  assert 2 <= guesses < 1000
  bounds = [
    [a.epsilon_of_any(DELTA, 0.95, g) for g in (guesses, 1000)]
    for a in (gaussian_scores(mu, 1000, seed) for seed in range(20))
  ]
  few, every = np.mean(bounds, axis=0)
  assert few >= every


def test_mean_error_of_the_best_test():
  assert least_mean_error(1.0, None) == pytest.approx(stats.norm.cdf(-0.5))
  assert mu_of_claim(0.5, None) == pytest.approx(2.0)
  # Of one step on half of the rows, half of the total variation is left.
  sampled = least_mean_error(1.0, PoissonSampling(probability=0.5, num_steps=1))
  full = 0.5 - least_mean_error(1.0, None)
  assert 0.5 - sampled == pytest.approx(full / 2, rel=1e-2)


@pytest.mark.parametrize("confidence", [0.5, 1.0, 95.0, float("nan")])
def test_refuses_a_confidence_that_is_none(confidence):
  with pytest.raises(InputError, match="confidence="):
    check_confidence(confidence)
