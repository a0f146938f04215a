import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax_privacy import auditing as oracle
from scipy import special, stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.audit import (
  ErrorCounts,
  OneRun,
  best_number_of_guesses,
  check_confidence,
  epsilon_of_gdp,
  whitened_direction,
)

DELTA = 1e-5
REPEATS = 500


def scores(ones, size):
  """`ones` canaries that look included, and the others, which do not."""
  return np.arange(size) < ones


@pytest.mark.parametrize(
  ("false_positives", "false_negatives", "runs"),
  [(0, 0, 10_000), (1587, 1587, 10_000), (200, 40, 1000), (4400, 4400, 10_000)],
)
def test_gdp_bound_is_that_of_jax_privacy(
  false_positives, false_negatives, runs
):
  auditor = oracle.CanaryScoreAuditor(
    scores(runs - false_negatives, runs), scores(false_positives, runs)
  )
  # It shares its significance among the thresholds that it sees.
  thresholds = len(auditor._thresholds)
  errors = ErrorCounts(
    false_positives=false_positives,
    false_negatives=false_negatives,
    runs=runs,
  )
  mu = errors.gdp_lower_bound(1 - 0.05 / thresholds)
  assert epsilon_of_gdp(mu, DELTA) == pytest.approx(
    auditor.epsilon_from_gdp(0.05, DELTA), abs=1e-5
  )


@pytest.mark.parametrize(
  ("mu", "threshold"), [(0.1, 0.5), (0.5, 0.2), (2.0, 0.5), (0.5, 1.0)]
)
def test_gdp_bound_is_below_the_truth_and_near_it(mu, threshold):
  rng = np.random.default_rng(0)
  runs = 10_000
  false_positives = rng.binomial(runs, stats.norm.sf(threshold * mu), REPEATS)
  false_negatives = rng.binomial(
    runs, stats.norm.sf((1 - threshold) * mu), REPEATS
  )
  found = [
    ErrorCounts(
      false_positives=int(p), false_negatives=int(n), runs=runs
    ).gdp_lower_bound(0.95)
    for p, n in zip(false_positives, false_negatives, strict=True)
  ]
  assert np.mean(np.array(found) > mu) <= 0.05
  assert np.median(found) > mu - 0.1


def test_gdp_bound_of_a_coin_is_nothing():
  for wrong in (5000, 10_000):
    errors = ErrorCounts(
      false_positives=wrong, false_negatives=wrong, runs=10_000
    )
    assert errors.gdp_lower_bound(0.95) == 0
  assert epsilon_of_gdp(0.0, DELTA) == 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_epsilon_of_gdp_inverts_the_noise_multiplier(epsilon):
  mu = 1 / accounting.noise_multiplier(epsilon, DELTA)
  assert epsilon_of_gdp(mu, DELTA) == pytest.approx(epsilon)


@settings(max_examples=40)
@given(
  correct=st.integers(20, 300),
  wrong=st.integers(0, 40),
  silent=st.integers(0, 500),
  delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
)
def test_one_run_bound_is_that_of_jax_privacy(correct, wrong, silent, delta):
  auditor = oracle.CanaryScoreAuditor(
    scores(correct, correct + silent), scores(wrong, wrong + silent + 1)
  )
  expected = auditor.epsilon_one_run(
    0.05, delta, threshold_strategy=oracle.Explicit(0.5)
  )
  run = OneRun(
    canaries=correct + wrong + 2 * silent + 1,
    guesses=correct + wrong,
    correct=correct,
  )
  assert run.epsilon_lower_bound(delta, 0.95) == pytest.approx(
    expected, abs=1e-5
  )


def test_one_run_p_value_is_the_binomial_tail_and_delta_adds_to_it():
  run = OneRun(canaries=100, guesses=50, correct=45)
  tail = stats.binomtest(45, 50, special.expit(1.0), "greater").pvalue
  assert run.p_value(1.0, delta=0.0) == pytest.approx(tail)
  # By hand: the largest (f(45 − i) − f(45))/i over i.
  pmf = stats.binom.pmf(np.arange(44, -1, -1), 50, special.expit(1.0))
  slope = max(np.cumsum(pmf) / np.arange(1, 46))
  assert run.p_value(1.0, delta=1e-4) == pytest.approx(
    tail + 2 * 100 * 1e-4 * slope
  )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.01), (2.0, 0.0)])
def test_one_run_bound_of_randomized_response(epsilon, delta):
  """Each coin leaks with probability δ, and else is told with ε-DP."""
  rng = np.random.default_rng(0)
  canaries, repeats = 500, 100
  right = delta + (1 - delta) * special.expit(epsilon)
  hits = rng.binomial(canaries, right, repeats)
  distinct, place = np.unique(hits, return_inverse=True)
  bounds = [
    OneRun(
      canaries=canaries, guesses=canaries, correct=int(v)
    ).epsilon_lower_bound(delta, 0.95)
    for v in distinct
  ]
  found = np.array(bounds)[place]
  assert np.mean(found > epsilon) <= 0.05 + 2 * np.sqrt(0.05 / repeats)
  if delta == 0:
    assert np.median(found) > 0.7 * epsilon


def test_one_run_bound_where_every_guess_is_right_or_there_is_none():
  def bound(guesses, correct):
    run = OneRun(canaries=1000, guesses=guesses, correct=correct)
    return run.epsilon_lower_bound(delta=0.0, confidence=0.95)

  # q^r = 0.05 at the bound.
  assert special.expit(bound(1000, 1000)) ** 1000 == pytest.approx(
    0.05, rel=1e-4
  )
  assert bound(0, 0) == 0
  assert bound(1000, 500) == 0


@pytest.mark.parametrize("sigma", [0.5, 2.0, 8.0])
def test_best_number_of_guesses_beats_guessing_all(sigma):
  counts = {"canaries": 1000, "delta": DELTA, "confidence": 0.95}
  guesses = best_number_of_guesses(**counts, noise_multiplier=sigma)
  assert guesses % 2 == 0
  assert 2 <= guesses <= 1000

  def expected(share):
    """The bound of what a Gaussian adversary gets right of its best guesses."""
    z = stats.norm.isf(share / 2)
    hit, miss = (stats.norm.sf(z - s * 0.5 / sigma) for s in (1, -1))
    r = int(1000 * (hit + miss) / 2) * 2
    v = int(r * hit / (hit + miss))
    run = OneRun(canaries=1000, guesses=r, correct=v)
    return run.epsilon_lower_bound(DELTA, 0.95)

  assert expected(guesses / 1000) >= 0.9 * expected(1.0)


def test_whitened_direction_follows_a_signal_through_even_noise():
  rng = np.random.default_rng(0)
  noise = 1e6 * rng.standard_normal((20_000, 6))
  signal = np.arange(6.0)
  found = whitened_direction(noise, signal)
  assert np.corrcoef(found, signal)[0, 1] > 0.999


def test_whitened_direction_is_where_shared_noise_cancels():
  rng = np.random.default_rng(0)
  shared = 1e6 * rng.standard_normal((2000, 3))
  noise = np.concatenate([shared, shared], axis=1)
  signal = np.array([1.0, 0, 0, 0, 0, 0])
  found = whitened_direction(noise, signal)
  assert np.std(noise @ found) < 1e-3 * abs(1e6 * signal @ found)


def test_whitened_direction_without_any_noise():
  signal = np.array([3.0, 4.0])
  found = whitened_direction(np.zeros((10, 2)), signal)
  assert found / np.linalg.norm(found) == pytest.approx(signal / 5)


@pytest.mark.parametrize("confidence", [0.5, 1.0, 95.0, float("nan")])
def test_refuses_a_confidence_that_is_none(confidence):
  with pytest.raises(InputError, match="confidence="):
    check_confidence(confidence)
