r"""What attacks on releases prove about epsilon: counts in, lower bounds out.

An audit can only show that privacy is worse than some bound, for the attacks
that were made; that its bound is low proves nothing. `pipeline.audit` makes the
attacks.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from jaxtyping import Float, Real
from scipy import optimize, special, stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling

_RIDGE = 1e-6
"""A direction with less than this part of the mean variance has no noise."""
_MAX_EPSILON = 40.0
"""Past it σ(ε) is 1 in float64: every guess right proves no more."""
_EPSILON_STEP = 1e-6
_GUESSING_RULES = 41
_SAMPLED_NOISES = (0.2, 1e3)
"""Noise multipliers of sampled steps: less hides nothing, more everything."""
_SAMPLED_STEP = 1e-3
"""Between the logarithms of two noise multipliers."""
_SAMPLED_GRID = 1e-3
"""Between two losses, which are rounded up: a coarser one proves less."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorCounts:
  """The errors of a test that tells runs with a canary from runs without it.

  Formal guarantees: if the runs are independent and the test was fixed before
  them, each lower bound exceeds the truth, and each upper bound is below it,
  with probability at most 1 − confidence. ᾱ and β̄ are Clopper-Pearson upper
  bounds on the rates of false positives and negatives, each at half of that.

  Attributes:
    false_positives: runs without the canary, taken for runs with it.
    false_negatives: runs with it, taken for runs without.
    runs: how many there were of each kind.
  """

  false_positives: int
  false_negatives: int
  runs: int

  @classmethod
  def at(
    cls,
    threshold: float,
    absent: Float[np.ndarray, " runs"],
    present: Float[np.ndarray, " runs"],
  ) -> "ErrorCounts":
    """The errors of taking scores above a threshold for the canary's."""
    return cls(
      false_positives=int((absent > threshold).sum()),
      false_negatives=int((present <= threshold).sum()),
      runs=len(absent),
    )

  def _rates(self, confidence: float) -> tuple[float, float]:
    """ᾱ and β̄."""
    significance = (1 - confidence) / 2
    return (
      _clopper_pearson_upper(self.false_positives, self.runs, significance),
      _clopper_pearson_upper(self.false_negatives, self.runs, significance),
    )

  def gdp_lower_bound(self, confidence: float) -> float:
    r"""A lower bound on μ, if the mechanism is μ-Gaussian DP.

        μ ≥ Φ⁻¹(1 − ᾱ) − Φ⁻¹(β̄)

    >>> errors = ErrorCounts(
    ...   false_positives=1587, false_negatives=1587, runs=10_000
    ... )
    >>> 1.93 < errors.gdp_lower_bound(0.95) < 2  # Φ(−1) = 0.1587: it is 2
    True

    Source: Nasr et al., "Tight Auditing of Differentially Private Machine
    Learning", USENIX Security 2023, section 4; Dong, Roth & Su, "Gaussian
    Differential Privacy", JRSS B 2022, equation 6.
    """
    alpha, beta = self._rates(confidence)
    return max(0.0, float(stats.norm.isf(alpha) - stats.norm.ppf(beta)))

  def epsilon_lower_bound(self, delta: float, confidence: float) -> float:
    r"""A lower bound on the ε, at δ, of any mechanism at all.

        ε ≥ ln((1 − δ − β̄)/ᾱ)  and  ε ≥ ln((1 − δ − ᾱ)/β̄)

    n runs of each kind cannot prove much more than ln n.

    >>> errors = ErrorCounts(false_positives=0, false_negatives=500, runs=1000)
    >>> 4.7 < errors.epsilon_lower_bound(delta=1e-5, confidence=0.95) < 4.9
    True

    Source: Kairouz, Oh & Viswanath, "The Composition Theorem for Differential
    Privacy", ICML 2015, theorem 2.1.
    """
    alpha, beta = self._rates(confidence)
    hits = max((1 - delta - beta) / alpha, (1 - delta - alpha) / beta)
    return math.log(max(hits, 1.0))

  def mean_rate_upper_bound(self, confidence: float) -> float:
    r"""An upper bound on the mean of both error rates.

        (α + β)/2 ≤ the larger of Clopper-Pearson's and (errors + 1)/(2·runs)

    Errors of two rates are no more often so few than those of their mean:
    Hoeffding's inequality, which holds from one error below the expected number
    on.

    >>> errors = ErrorCounts(
    ...   false_positives=1587, false_negatives=1587, runs=10_000
    ... )
    >>> 0.1587 < errors.mean_rate_upper_bound(0.95) < 0.164
    True

    Source: Hoeffding, "On the distribution of the number of successes in
    independent trials", Ann. Math. Statist. 27 (1956), theorem 5.
    """
    errors = self.false_positives + self.false_negatives
    upper = _clopper_pearson_upper(errors, 2 * self.runs, 1 - confidence)
    return min(0.5, max(upper, (errors + 1) / (2 * self.runs)))


def least_mean_error(
  noise_multiplier: float, sampling: PoissonSampling | None
) -> float:
  """The mean of both error rates of the best test that there is.

  It is ½ − half the total variation between neighbours, rounded down.

  Args:
    noise_multiplier: σ, of a Gaussian mechanism or of a sampled step.
    sampling: the steps; None is one Gaussian mechanism.
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
    rate: the mean of both error rates; ½ is a coin's, where ε is 0.
    delta: δ.
    sampling: the steps; None is one Gaussian mechanism.
  """
  if sampling is None:
    mu = max(0.0, -2 * float(stats.norm.ppf(rate)))
    return epsilon_of_gdp(mu, delta)

  def surplus(log_noise: float) -> float:
    return least_mean_error(math.exp(log_noise), sampling) - rate

  low, high = map(math.log, _SAMPLED_NOISES)
  if surplus(high) <= 0:
    return 0.0
  if surplus(low) < 0:
    low = _root(surplus, low, high, _SAMPLED_STEP)
  return sampling.epsilon_of(math.exp(low + _SAMPLED_STEP), delta)


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
  """
  covariance = np.atleast_2d(np.cov(noise, rowvar=False))
  # Relative, for noise of any unit; absolute, for no noise at all.
  ridge = _RIDGE * max(float(np.trace(covariance)) / len(signal), 1.0)
  return np.linalg.solve(covariance + ridge * np.eye(len(signal)), signal)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRun:
  """Guesses about the canaries of one run, their number fixed before it.

  Attributes:
    canaries: m, each included or not (or swapped) by a fair coin of its own.
    guesses: r of the coins that were guessed; about others one abstains.
    correct: v of the guesses that were right.
  """

  canaries: int
  guesses: int
  correct: int

  def p_value(self, epsilon: float, delta: float) -> float:
    r"""How likely an (ε, δ)-DP mechanism lets v guesses or more be right.

        p = f(v) + 2mδ·max_{1≤i≤v} (f(v − i) − f(v))/i,   f(v) = P(W ≥ v),
        W ~ Binomial(r, e^ε/(1 + e^ε))

    Source: Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training
    Run", NeurIPS 2023, theorem 5.2.
    """
    probability = special.expit(epsilon)
    tail = stats.binom.sf(self.correct - 1, self.guesses, probability)
    fewer = np.arange(1, self.correct + 1)
    nearer = stats.binom.sf(self.correct - fewer - 1, self.guesses, probability)
    slope = np.max((nearer - tail) / fewer, initial=0.0)
    return min(1.0, float(tail + 2 * self.canaries * delta * slope))

  def epsilon_lower_bound(self, delta: float, confidence: float) -> float:
    """The largest ε that the guesses refute.

    Formal guarantees: if the mechanism is (ε, δ)-DP and r does not depend on
    the coins, the bound exceeds ε with probability at most 1 − confidence.

    >>> run = OneRun(canaries=1000, guesses=1000, correct=731)
    >>> bound = run.epsilon_lower_bound(delta=0.0, confidence=0.95)
    >>> 0.8 < bound < 1  # of coins told rightly with probability e/(1 + e)
    True

    """

    def surplus(epsilon: float) -> float:
      return self.p_value(epsilon, delta) - (1 - confidence)

    if surplus(0.0) > 0:
      return 0.0
    root = _root(surplus, 0.0, _MAX_EPSILON, _EPSILON_STEP)
    return max(0.0, root - _EPSILON_STEP)


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
    confidence: that of the bound to come.

  Returns:
    r, even: half of them "included", half "not".
  """
  best, best_bound = 2, 0.0
  for z in np.linspace(0, 4, _GUESSING_RULES):
    # Guess where a score is z standard deviations from the middle, or more.
    hit = stats.norm.sf(z - 0.5 / noise_multiplier)
    miss = stats.norm.sf(z + 0.5 / noise_multiplier)
    guesses = 2 * math.floor(canaries * (hit + miss) / 2)
    run = OneRun(
      canaries=canaries,
      guesses=guesses,
      correct=math.floor(guesses * hit / (hit + miss)),
    )
    bound = run.epsilon_lower_bound(delta, confidence)
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


def _root(
  function: Callable[[float], float], low: float, high: float, within: float
) -> float:
  found = optimize.root_scalar(
    function, bracket=(low, high), method="brentq", xtol=within
  )
  return found.root


def _clopper_pearson_upper(
  count: int, trials: int, significance: float
) -> float:
  if count >= trials:
    return 1.0
  return float(stats.beta.isf(significance, count + 1, trials - count))
