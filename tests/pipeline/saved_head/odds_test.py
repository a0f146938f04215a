import math

import pytest
from scipy.stats import norm

from oneshot_dp.linear_dp.accounting.gaussian import epsilon_of
from oneshot_dp.pipeline.saved_head.odds import found, right_guesses


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_best_attack_on_gaussian_noise_keeps_both_bounds(
  noise_multiplier, delta
):
  """Its error rates are known: those of telling N(0, σ²) from N(1, σ²)."""
  epsilon, mu = epsilon_of(noise_multiplier, delta), 1 / noise_multiplier
  assert norm.cdf(mu / 2) <= right_guesses(epsilon, delta)
  for alarms in (0.001, 0.01, 0.3):
    power = norm.cdf(norm.ppf(alarms) + mu)
    assert power <= found(epsilon, delta, alarms) + 1e-12


def test_the_bounds_are_reached():
  """By the release that answers truly with probability e^ε / (1 + e^ε)."""
  epsilon, truth = 1.5, 1 / (1 + math.exp(-1.5))
  assert right_guesses(epsilon, 0.0) == pytest.approx(truth)
  assert found(epsilon, 0.0, 1 - truth) == pytest.approx(truth)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 40.0, 1e5])
def test_they_are_probabilities_and_never_below_chance(epsilon):
  assert 0.5 <= right_guesses(epsilon, 1e-5) <= 1
  assert 0.01 <= found(epsilon, 1e-5, 0.01) <= 1
