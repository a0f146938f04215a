r"""What attacks on releases prove about epsilon: counts in, lower bounds out.

An audit can only show that privacy is worse than some bound, for the attacks
that were made; that its bound is low proves nothing. `pipeline.audit` makes the
attacks.
"""

import math

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from jaxtyping import Float, Real
from scipy import special, stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling

_RIDGE = 1e-6
"""Of the mean variance: a direction with less noise than that has none."""
_MAX_EPSILON = 40.0
"""Past it σ(ε) is 1 in float64: every guess right proves no more."""
_GUESSING_RULES = 41
_SAMPLED_NOISES = (0.2, 1e3)
"""Noise multipliers of sampled steps: less hides nothing, more everything."""
_SAMPLED_STEP = 1e-3
"""Between two of them, relative."""
_SAMPLED_GRID = 1e-3
"""Of losses, which are rounded up: a coarser one proves less."""


def gdp_lower_bound(
  *, false_positives: int, false_negatives: int, runs: int, confidence: float
) -> float:
  r"""A lower confidence bound on the μ of a Gaussian-DP mechanism.

      μ ≥ Φ⁻¹(1 − ᾱ) − Φ⁻¹(β̄)

  ᾱ and β̄ are Clopper-Pearson upper bounds on the rates of false positives and
  negatives of a test between two neighbours, each at half of 1 − confidence.

  Formal guarantees: if the mechanism is μ-GDP, runs are independent and the
  test was fixed before them, the bound exceeds μ with probability at most
  1 − confidence.

  >>> bound = gdp_lower_bound(
  ...   false_positives=1587, false_negatives=1587, runs=10_000, confidence=0.95
  ... )
  >>> 1.93 < bound < 2  # Φ(−1) = 0.1587: the truth is 2
  True

  Args:
    false_positives: runs without the canary that the test took for runs with.
    false_negatives: runs with it that the test took for runs without.
    runs: how many there were of each kind.
    confidence: in (0, 1).

  Returns:
    The bound on μ; 0 where the test does no better than a coin.

  Source: Nasr et al., "Tight Auditing of Differentially Private Machine
  Learning", USENIX Security 2023, section 4; Dong, Roth & Su, "Gaussian
  Differential Privacy", JRSS B 2022, equation 6.
  """
  significance = (1 - confidence) / 2
  alpha = _clopper_pearson_upper(false_positives, runs, significance)
  beta = _clopper_pearson_upper(false_negatives, runs, significance)
  return max(0.0, float(stats.norm.isf(alpha) - stats.norm.ppf(beta)))


def mean_error_upper_bound(
  *, errors: int, runs: int, confidence: float
) -> float:
  r"""An upper confidence bound on the mean of both error rates of a test.

      (α + β)/2 ≤ the larger of Clopper-Pearson's and (errors + 1)/(2·runs)

  Formal guarantees: if runs are independent and the test was fixed before them,
  the bound is below (α + β)/2 with probability at most 1 − confidence. Errors
  of two rates are no more often so few than those of their mean: Hoeffding's
  inequality, which holds from one error below the expected number on.

  >>> bound = mean_error_upper_bound(errors=3174, runs=10_000, confidence=0.95)
  >>> 0.1587 < bound < 0.164
  True

  Args:
    errors: false positives and negatives together.
    runs: how many there were of each kind.
    confidence: in (0, 1).

  Returns:
    The bound; ½ where the test does no better than a coin.

  Source: Hoeffding, "On the distribution of the number of successes in
  independent trials", Ann. Math. Statist. 27 (1956), theorem 5.
  """
  upper = _clopper_pearson_upper(errors, 2 * runs, 1 - confidence)
  return min(0.5, max(upper, (errors + 1) / (2 * runs)))


def least_mean_error(
  noise_multiplier: float, sampling: PoissonSampling | None
) -> float:
  """The mean of both error rates of the best test that there is.

  Args:
    noise_multiplier: σ, of a Gaussian mechanism or of a sampled step.
    sampling: of the steps; None is one Gaussian mechanism.

  Returns:
    ½ − half the total variation between neighbours, rounded down.
  """
  if sampling is None:
    return float(stats.norm.sf(0.5 / noise_multiplier))
  one = from_gaussian_mechanism(
    noise_multiplier,
    value_discretization_interval=_SAMPLED_GRID,
    sampling_prob=sampling.probability,
  )
  steps = one.self_compose(sampling.num_steps)
  # Total variation is δ at ε = 0.
  return 0.5 - float(steps.get_delta_for_epsilon(0.0)) / 2


def epsilon_of_mean_error(
  rate: float, delta: float, sampling: PoissonSampling | None
) -> float:
  """The ε, at δ, of the most noise with which a test could err so seldom.

  It is a lower bound on ε only if the mechanism is what it is said to be, but
  for the size of its noise.

  >>> round(epsilon_of_mean_error(0.15866, 1e-5, None), 2)
  10.0

  Args:
    rate: the mean of both error rates.
    delta: δ.
    sampling: of the steps; None is one Gaussian mechanism.

  Returns:
    ε; 0 where the test does no better than a coin.
  """
  if sampling is None:
    mu = max(0.0, -2 * float(stats.norm.ppf(rate)))
    return epsilon_of_gdp(mu, delta)
  low, high = map(math.log, _SAMPLED_NOISES)
  if least_mean_error(math.exp(high), sampling) <= rate:
    return 0.0
  while high - low > _SAMPLED_STEP:
    middle = (low + high) / 2
    if least_mean_error(math.exp(middle), sampling) <= rate:
      low = middle
    else:
      high = middle
  return sampling.epsilon_of(math.exp(high), delta)


def epsilon_lower_bound(
  *,
  false_positives: int,
  false_negatives: int,
  runs: int,
  delta: float,
  confidence: float,
) -> float:
  r"""A lower confidence bound on the ε of any mechanism at all.

      ε ≥ ln((1 − δ − β̄)/ᾱ)  and  ε ≥ ln((1 − δ − ᾱ)/β̄)

  with ᾱ and β̄ as in `gdp_lower_bound`, and under the same conditions but that
  nothing is assumed of the mechanism: n runs of each kind cannot prove much
  more than ln n.

  >>> bound = epsilon_lower_bound(
  ...   false_positives=0,
  ...   false_negatives=500,
  ...   runs=1000,
  ...   delta=1e-5,
  ...   confidence=0.95,
  ... )
  >>> 4.7 < bound < 4.9
  True

  Args:
    false_positives: see `gdp_lower_bound`.
    false_negatives: see `gdp_lower_bound`.
    runs: see `gdp_lower_bound`.
    delta: δ.
    confidence: see `gdp_lower_bound`.

  Returns:
    The bound on ε; 0 where nothing is refuted.

  Source: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential
  Privacy", ICML 2015, theorem 2.1.
  """
  significance = (1 - confidence) / 2
  alpha = _clopper_pearson_upper(false_positives, runs, significance)
  beta = _clopper_pearson_upper(false_negatives, runs, significance)
  hits = max((1 - delta - beta) / alpha, (1 - delta - alpha) / beta)
  return math.log(max(hits, 1.0))


def epsilon_of_gdp(mu: float, delta: float) -> float:
  """The ε, at δ, of μ-Gaussian DP: a Gaussian of noise multiplier 1/μ.

  >>> round(epsilon_of_gdp(1 / accounting.noise_multiplier(2.0, 1e-5), 1e-5), 6)
  2.0
  """
  return accounting.epsilon_of(1 / mu, delta) if mu > 0 else 0.0


def whitened_direction(
  noise: Real[np.ndarray, "runs n"], signal: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
  r"""The direction in which a signal stands out most from the noise.

      w = (Σ + λ·1)⁻¹·signal

  with Σ the sample covariance: Fisher's discriminant. Where noise is shared by
  entries (of two classes, say), some difference of them has none, and w is that
  difference. λ keeps the inverse finite there.

  Args:
    noise: releases of one data set; many more than entries.
    signal: how the canary moves the release.

  Returns:
    w, up to scale.
  """
  covariance = np.atleast_2d(np.cov(noise, rowvar=False))
  # Relative, for noise of any unit; absolute, for no noise at all.
  ridge = _RIDGE * max(float(np.trace(covariance)) / len(signal), 1.0)
  return np.linalg.solve(covariance + ridge * np.eye(len(signal)), signal)


def one_run_p_value(
  *,
  canaries: int,
  guesses: int,
  correct: int,
  epsilon: float,
  delta: float,
) -> float:
  r"""How likely an (ε, δ)-DP mechanism lets as many guesses be right.

      p = f(v) + 2mδ·max_{1≤i≤v} (f(v − i) − f(v))/i,   f(v) = P(W ≥ v),
      W ~ Binomial(r, e^ε/(1 + e^ε))

  Args:
    canaries: m, each included or not (or swapped) by a fair coin of its own.
    guesses: r of the coins that were guessed; about others one abstains.
    correct: v of the guesses that were right.
    epsilon: ε ≥ 0.
    delta: δ in [0, 1).

  Returns:
    An upper bound on the probability of v or more, given r.

  Source: Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training
  Run", NeurIPS 2023, theorem 5.2.
  """
  probability = special.expit(epsilon)
  tail = stats.binom.sf(correct - 1, guesses, probability)
  fewer = np.arange(1, correct + 1)
  nearer = stats.binom.sf(correct - fewer - 1, guesses, probability) - tail
  slope = np.max(nearer / fewer, initial=0.0)
  return min(1.0, float(tail + 2 * canaries * delta * slope))


def one_run_lower_bound(
  *,
  canaries: int,
  guesses: int,
  correct: int,
  delta: float,
  confidence: float,
) -> float:
  """The largest ε that guesses about one run refute.

  Formal guarantees: if the mechanism is (ε, δ)-DP and the number of guesses
  does not depend on the coins, the bound exceeds ε with probability at most
  1 − confidence.

  >>> bound = one_run_lower_bound(
  ...   canaries=1000, guesses=1000, correct=731, delta=0.0, confidence=0.95
  ... )
  >>> 0.8 < bound < 1  # of coins told rightly with probability e/(1 + e)
  True

  Args:
    canaries: see `one_run_p_value`.
    guesses: see `one_run_p_value`.
    correct: see `one_run_p_value`.
    delta: see `one_run_p_value`.
    confidence: in (0, 1).

  Returns:
    The bound, at most 40; 0 where nothing is refuted.
  """

  def refuted(epsilon: float) -> bool:
    p_value = one_run_p_value(
      canaries=canaries,
      guesses=guesses,
      correct=correct,
      epsilon=epsilon,
      delta=delta,
    )
    return p_value <= 1 - confidence

  low, high = 0.0, _MAX_EPSILON
  if not refuted(low):
    return low
  while high - low > 1e-6:
    middle = (low + high) / 2
    low, high = (middle, high) if refuted(middle) else (low, middle)
  return low


def best_number_of_guesses(
  *,
  canaries: int,
  noise_multiplier: float,
  delta: float,
  confidence: float,
) -> int:
  """How many coins to guess, where the noise is Gaussian and as claimed.

  Few guesses are nearly all right, many prove more each. Chosen from the claim
  alone, never from the run, so the bound stays valid.

  Args:
    canaries: m.
    noise_multiplier: σ of the claim.
    delta: δ of the claim.
    confidence: of the bound to come.

  Returns:
    r, even: half of them "included", half "not".
  """
  best, best_bound = 2, 0.0
  for z in np.linspace(0, 4, _GUESSING_RULES):
    # Guess where a score is z standard deviations from the middle, or more.
    hit = stats.norm.sf(z - 0.5 / noise_multiplier)
    miss = stats.norm.sf(z + 0.5 / noise_multiplier)
    guesses = 2 * math.floor(canaries * (hit + miss) / 2)
    bound = one_run_lower_bound(
      canaries=canaries,
      guesses=guesses,
      correct=math.floor(guesses * hit / (hit + miss)),
      delta=delta,
      confidence=confidence,
    )
    if bound > best_bound:
      best, best_bound = guesses, bound
  return best


def check_confidence(confidence: float) -> None:
  """Refuses a confidence that is none.

  Raises:
    InputError: it is not in (0.5, 1).
  """
  if not 0.5 < confidence < 1:
    raise InputError(
      f"confidence={confidence} must lie between 0.5 and 1, such as 0.95."
    )


def _clopper_pearson_upper(
  count: int, trials: int, significance: float
) -> float:
  if count >= trials:
    return 1.0
  return float(stats.beta.isf(significance, count + 1, trials - count))
