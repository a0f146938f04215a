r"""What the scores of canaries prove about epsilon: lower bounds.

A canary is a row that is there or not by the toss of a fair coin; a score is
what an attack makes of the releases, higher where the canary seems to be there.
An audit can only show that privacy is worse than some bound, for the attacks
that were made; that its bound is low proves nothing. `pipeline.audit` makes the
attacks.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from jaxtyping import Float
from scipy import optimize, special, stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling

_MAX_EPSILON = 40.0
"""Past it σ(ε) is 1 in float64: every guess right proves no more."""
_EPSILON_STEP = 1e-6
_MAX_MU = 40.0
_MOST_GUESSES = 5000
"""More take long, and prove hardly more."""
_GUESSING_RULES = (1.0, 1.5, 2.0, 2.5, 3.0)
"""Standard deviations from the middle from which on coins may be guessed."""
_SAMPLED_NOISES = (0.2, 1e3)
"""Noise multipliers of sampled steps: less hides nothing, more everything."""
_SAMPLED_STEP = 1e-3
"""Between the logarithms of two noise multipliers."""
_SAMPLED_GRID = 1e-3
"""Between two losses, which are rounded up: a coarser one proves less."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CanaryScoreAuditor:
  """Bounds ε by the scores of canaries that are there or not.

  Formal guarantees: each bound exceeds the truth with probability at most 1 −
  confidence, if the mechanism is of the kind that the bound names, every coin
  was fair and independent, and what is passed beside the scores was fixed
  before the releases. Several runs with coins of their own are one run of all
  their canaries.

  >>> rng = np.random.default_rng(0)
  >>> absent, present = rng.normal(0, 1.0, (2, 5000))
  >>> auditor = CanaryScoreAuditor(absent=absent - 0.5, present=present + 0.5)
  >>> truth = epsilon_of_gdp(1.0, delta=1e-5)
  >>> 0.9 * truth < auditor.epsilon_of_noise(1e-5, 0.95) < truth
  True

  Attributes:
    absent: scores of canaries that are not there.
    present: of those that are.
  """

  absent: Float[np.ndarray, " absent"]
  present: Float[np.ndarray, " present"]

  @property
  def canaries(self) -> int:
    """m."""
    return self.absent.size + self.present.size

  def mean_error_upper_bound(self, confidence: float) -> float:
    r"""The mean of both error rates of the test "score > 0" is at most this.

        (α + β)/2 ≤ the larger of Clopper-Pearson's and (errors + 1)/m

    Errors of many rates are no more often so few than those of their mean:
    Hoeffding's inequality, which holds from one error below the expected number
    on.

    Source: Hoeffding, "On the distribution of the number of successes in
    independent trials", Ann. Math. Statist. 27 (1956), theorem 5.
    """
    m = self.canaries
    errors = int((self.absent > 0).sum() + (self.present <= 0).sum())
    upper = 1.0
    if errors < m:
      upper = float(stats.beta.isf(1 - confidence, errors + 1, m - errors))
    return min(0.5, max(upper, (errors + 1) / m))

  def epsilon_of_noise(
    self,
    delta: float,
    confidence: float,
    sampling: PoissonSampling | None = None,
  ) -> float:
    """ε, if the mechanism is what it claims, but for the size of its noise."""
    rate = self.mean_error_upper_bound(confidence)
    return epsilon_of_mean_error(rate, delta, sampling)

  def epsilon_of_any(
    self, delta: float, confidence: float, guesses: int
  ) -> float:
    r"""ε of any mechanism: the largest that the guesses refute.

    With v of r guesses right, an (ε, δ)-DP mechanism does so well or better
    with probability at most

        p = f(v) + 2mδ·max_{1≤i≤v} (f(v − i) − f(v))/i,   f(v) = P(W ≥ v),
        W ~ Binomial(r, e^ε/(1 + e^ε))

    Of `guesses`, r, which is even, the r/2 highest scores are taken for
    canaries that are there, the r/2 lowest for such that are not.

    Source: Steinke, Nasr & Jagielski, "Privacy Auditing with One (1) Training
    Run", NeurIPS 2023, theorem 5.2.
    """
    counts = (self.canaries, *self.guessed(guesses))
    return _epsilon_of_any(*counts, delta, 1 - confidence)

  def epsilon_of_gdp(
    self, delta: float, confidence: float, guesses: int
  ) -> float:
    """ε of any mechanism that is μ-Gaussian DP: the largest that is refuted.

    The arguments are those of `epsilon_of_any`.

    Source: Mahloujifar, Melis & Chaudhuri, "Auditing f-Differential Privacy in
    One Run", ICML 2025, theorem 3.2 and algorithm 3.
    """
    counts = (self.canaries, *self.guessed(guesses))
    return epsilon_of_gdp(_mu_of_guesses(*counts, 1 - confidence), delta)

  def guessed(self, guesses: int) -> tuple[int, int]:
    """How many coins are guessed, and how many of the guesses are right."""
    half = min(guesses, self.canaries) // 2
    is_present = np.repeat([False, True], [self.absent.size, self.present.size])
    # Ties, which only a fault makes, are broken without a look at the coins.
    scores = np.concatenate([self.absent, self.present])
    mixed = np.random.default_rng(0).permutation(scores.size)
    order = is_present[mixed[np.argsort(scores[mixed], kind="stable")]]
    right = int(order[order.size - half :].sum() + (~order[:half]).sum())
    return 2 * half, right


def _epsilon_of_any(
  canaries: int, guesses: int, correct: int, delta: float, significance: float
) -> float:
  def surplus(epsilon: float) -> float:
    probability = special.expit(epsilon)
    tail = stats.binom.sf(correct - 1, guesses, probability)
    fewer = np.arange(1, correct + 1)
    nearer = stats.binom.sf(correct - fewer - 1, guesses, probability)
    slope = np.max((nearer - tail) / fewer, initial=0.0)
    return float(tail + 2 * canaries * delta * slope) - significance

  if surplus(0.0) > 0:
    return 0.0
  root = _root(surplus, 0.0, _MAX_EPSILON, _EPSILON_STEP)
  return max(0.0, root - _EPSILON_STEP)


def _mu_of_guesses(
  canaries: int, guesses: int, correct: int, significance: float
) -> float:
  """The largest μ that guesses refute; 0 where they refute none."""

  def surplus(mu: float) -> float:
    """Positive where so many right guesses are too unlikely.

    `right` and `wrong` are the least parts of all canaries that are guessed
    rightly and wrongly, in runs with i right guesses or more.
    """
    right = significance * correct / canaries
    wrong = significance * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
      least = float(special.ndtr(special.ndtri(right) - mu))
      if least <= wrong:
        break
      right = min(1.0, right + i / (guesses - i) * (least - wrong))
      wrong = least
    return right + wrong - guesses / canaries

  if guesses == 0 or surplus(0.0) <= 0:
    return 0.0
  if surplus(_MAX_MU) > 0:
    return _MAX_MU
  root = _root(surplus, 0.0, _MAX_MU, _EPSILON_STEP)
  return max(0.0, root - _EPSILON_STEP)


def best_number_of_guesses(
  *, canaries: int, mu: float, confidence: float, delta: float | None = None
) -> int:
  """How many coins to guess, where the mechanism is as it claims.

  Few guesses are nearly all right, many prove more each. Chosen from the claim
  alone, never from the run, so the bound stays valid.

  It is even, half of them "there", half "not". With δ it is for
  `epsilon_of_any`, without for `epsilon_of_gdp`.
  """
  best, best_bound = 2, -1.0
  for z in _GUESSING_RULES:
    # Guess where a score is z standard deviations from the middle, or more.
    hit, miss = stats.norm.sf(z - mu / 2), stats.norm.sf(z + mu / 2)
    guesses = 2 * math.floor(canaries * (hit + miss) / 2)
    # What luck leaves of it, three times of four.
    correct = guesses * hit / (hit + miss)
    correct = math.floor(correct - 0.7 * math.sqrt(correct * (1 - hit)))
    if not 2 <= guesses <= _MOST_GUESSES or correct < 1:
      continue
    counts = (canaries, guesses, correct)
    if delta is None:
      bound = _mu_of_guesses(*counts, 1 - confidence)
    else:
      bound = _epsilon_of_any(*counts, delta, 1 - confidence)
    if bound > best_bound:
      best, best_bound = guesses, bound
  return best


def mu_of_claim(
  noise_multiplier: float, sampling: PoissonSampling | None
) -> float:
  """μ of the Gaussian that the best test tells from nothing as often."""
  return -2 * float(special.ndtri(least_mean_error(noise_multiplier, sampling)))


@functools.cache  # every search begins at the same two ends
def least_mean_error(
  noise_multiplier: float, sampling: PoissonSampling | None
) -> float:
  """The mean of both error rates of the best test that there is.

  It is ½ − half the total variation between neighbours, rounded down.

  `sampling` is of the steps; None is one Gaussian mechanism.
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

  For the arguments see `least_mean_error`; a rate of ½ is a coin's.

  >>> round(epsilon_of_mean_error(0.15866, 1e-5, None), 2)
  10.0
  """
  if sampling is None:
    return epsilon_of_gdp(max(0.0, -2 * float(special.ndtri(rate))), delta)

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


def check_confidence(confidence: float) -> None:
  """InputError where it is not in (0.5, 1)."""
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
