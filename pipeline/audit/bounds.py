r"""From right guesses to lower bounds of ε, each too high in 2.5 % at most.

**By the Gaussian law.** Let each release be of Gaussian noise with the claimed
σ_r, on a sum that a canary moves by at most 1. Then the number of right guesses
among N is no larger in law than a binomial of N and Φ(μ/2), so that Clopper and
Pearson's interval for a binomial is one for them:

- The noise along the probes, ⟨Z_r, b_ir⟩, is independent over canaries i and
  releases r and of variance σ_r², as the b_ir of a release are orthonormal and
  were fixed before its noise, however they depend on earlier releases. So is
  N_i = Σ_r ⟨Z_r, b_ir⟩/σ_r², over i, of variance m² = Σ_r σ_r⁻² ≤ μ².
- Canary i moves its own score by S_i = Σ_r ⟨a_ir, b_ir⟩/σ_r² ≤ m², whatever the
  other canaries are. So s_i = ±S_i/2 + N_i, the guess is right where the sign
  of the coin times N_i is above −S_i/2, and then it is above −m²/2 as well.
- That event has the probability Φ(m/2) ≤ Φ(μ/2), and is independent over i.

A head with several steps may choose each by what came before: the argument
holds for any number of them. It does not hold for scores along the a_i instead:
these share noise, of which many guesses are right or wrong together, and an
interval that counts guesses says too much (at 20,000 canaries in 128 dimensions
a third of sound runs at ε = 8 were called false).

**Blind, by differential privacy alone.** The guesses of an adversary that knows
no coin are bounded for any mechanism and any dependence between them: see
Mahloujifar et al., "Auditing f-differential privacy in one run" (2024).

Two bounds of 2.5 % are together wrong in 5 % at most.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from oneshot_dp.linear_dp.accounting import epsilon_of
from oneshot_dp.pipeline.audit.attack import Scores
from oneshot_dp.pipeline.audit.canaries import Coins

ERROR = 0.025
"""How often each bound may be above the true ε."""
_BLIND_GUESSES = 0.05
"""Share of canaries of which the blind adversary guesses that they are there;
of the others it guesses nothing."""


class Bounds(NamedTuple):
  """Lower bounds of ε at δ.

  Attributes:
    gaussian: if the noise of releases is Gaussian and independent.
    blind: of any mechanism, by guesses that know no coin.
    auroc: area under the ROC curve of the scores: how good the attack was.
  """

  gaussian: float
  blind: float
  auroc: float


def bounds_from_scores(
  scores: Scores, blind_scores: Scores, coins: Coins, delta: float
) -> Bounds:
  """Bounds ε by the guesses of all runs together.

  Args:
    scores: of all canaries, by an adversary that knows the other coins, [m].
    blind_scores: by one that knows no coin, [m].
    coins: whether each canary was there, [m].
    delta: at which ε is bounded.

  Returns:
    Lower bounds, each of which is above the true ε in 2.5 % of audits at most.
  """
  from jax_privacy.auditing import CanaryScoreAuditor, Explicit

  # Scores of canaries that were in the data, and of those that were not.
  auditor = CanaryScoreAuditor(scores[coins], scores[~coins])
  blind = CanaryScoreAuditor(blind_scores[coins], blind_scores[~coins])
  # The threshold is a function of the scores alone: it knows no coin either.
  threshold = float(np.quantile(blind_scores, 1 - _BLIND_GUESSES))
  blind_epsilon = blind.epsilon_one_run_fdp(
    ERROR, delta, threshold_strategy=Explicit(threshold)
  )
  # Every canary is guessed, at the threshold 0 that was fixed beforehand: to
  # choose the best threshold afterwards would need a wider interval.
  right = int(((scores > 0) == coins).sum())
  return Bounds(
    gaussian=epsilon_from_guesses(right, len(coins), delta),
    blind=float(blind_epsilon),
    auroc=float(auditor.attack_auroc()),
  )


def epsilon_from_guesses(right: int, total: int, delta: float) -> float:
  """ε at δ of the least μ at which so many guesses may be right.

  Clopper and Pearson's lower bound p of the probability of a right guess, and
  μ = 2Φ⁻¹(p), as of all tests between N(0, 1) and N(μ, 1) none is right more
  often than Φ(μ/2) at even odds (Dong, Roth & Su, "Gaussian Differential
  Privacy", 2022).

  >>> epsilon_from_guesses(500, 1000, 1e-5)
  0.0
  >>> round(epsilon_from_guesses(800, 1000, 1e-5), 2)
  7.07

  Args:
    right: how many guesses were right.
    total: how many there were, 1 at least, each of a fair coin.
    delta: at which ε is bounded.

  Returns:
    A lower bound of ε, wrong in 2.5 % of audits at most; 0 where guesses were
    right about as often as by chance.
  """
  test = stats.binomtest(right, total, alternative="greater")
  probability = test.proportion_ci(1 - ERROR, method="exact").low
  mu = 2 * float(stats.norm.ppf(probability))
  # No more right guesses than by chance: nothing was shown.
  if mu <= 0:
    return 0.0
  return epsilon_of(mu**2, delta)
