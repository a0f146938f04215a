r"""An empirical check of heads of several steps and of closed form.

What `one_step` is for the release of one step: its words on what an audit
can show hold here too. Two bounds come of the same runs. The first takes the
mechanism for what it claims to be, but for the size of its noise: Gaussian, or
Gaussian on Poisson samples. The second assumes nothing, and so proves no more
than about ln(runs).
"""

import math
import time

import numpy as np
from scipy import stats

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp import audit as bounds
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.audit.head_attack import (
  Scores,
  attack_heads,
  pilot_runs,
)
from oneshot_dp.pipeline.audit.report import AuditReport

_SHARES = (0.9, 0.1)
"""Share of what may go wrong (Bonferroni), per bound."""
_LEAST_PILOT_RUNS = 4
"""Runs of each kind: the covariance is of four weights."""
_MOST_RUNS = 10**8
_RULES = 81


def default_runs(config: HeadConfig) -> int:
  """Runs of each kind: a closed form takes about 2 ms, many steps about 100."""
  return 10_000 if config.head == "least-squares" else 600


def audit_head(
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  confidence: float,
) -> AuditReport:
  """Attacks published heads of synthetic rows.

  Nothing is charged to a ledger, as no private data is read.

  Args:
    config: the head; not of one step.
    plan: one ε; `num_draws` is the number of runs of each neighbour.
    source: the random bits; a seed makes the audit repeatable.
    confidence: of both bounds together.

  Returns:
    The bounds.

  Raises:
    InputError: too few runs to say anything, or settings that make no sense.
  """
  start = time.monotonic()
  bounds.check_confidence(confidence)
  of_noise, of_any = (1 - share * (1 - confidence) for share in _SHARES)
  _check_runs(plan, of_noise)
  scores = attack_heads(config, plan, source)
  return AuditReport(
    claim=scores.claim,
    lower_bounds={
      "published heads, noise of another size": noise_bound(
        scores, plan, of_noise
      ),
      "published heads, any mechanism": any_bound(scores, plan.delta, of_any),
    },
    runs=plan.num_draws,
    confidence=confidence,
    seconds=time.monotonic() - start,
  )


def noise_bound(scores: Scores, plan: ReleasePlan, confidence: float) -> float:
  """ε, if the mechanism is the plan's with noise of another size."""
  absent, present = (float(pilot.mean()) for pilot in scores.pilot)
  # As many deviations from either mean, which can differ much: heads without
  # their scale are all alike where the canary drowns the noise.
  sds = [float(pilot.std()) for pilot in scores.pilot]
  part = sds[0] / sum(sds) if sum(sds) > 0 else 0.5
  threshold = absent + part * (present - absent)
  errors = bounds.ErrorCounts.at(threshold, *scores.tested)
  rate = errors.mean_rate_upper_bound(confidence)
  return bounds.epsilon_of_mean_error(rate, plan.delta, plan.sampling)


def any_bound(scores: Scores, delta: float, confidence: float) -> float:
  """ε, whatever the mechanism is."""
  runs = len(scores.tested[0])

  # The threshold that would prove most, were scores Gaussian.
  absent, present = (float(pilot.mean()) for pilot in scores.pilot)
  sd = float(np.mean([pilot.std() for pilot in scores.pilot]))
  thresholds = np.linspace(absent - 4 * sd, present + 4 * sd, _RULES)
  scale = max(sd, float(np.finfo(np.float64).tiny))
  with np.errstate(over="ignore"):
    above = stats.norm.sf((thresholds - absent) / scale)
    below = stats.norm.cdf((thresholds - present) / scale)
  expected = [
    bounds.ErrorCounts(
      false_positives=round(runs * float(a)),
      false_negatives=round(runs * float(b)),
      runs=runs,
    ).epsilon_lower_bound(delta, confidence)
    for a, b in zip(above, below, strict=True)
  ]
  best = float(thresholds[np.argmax(expected)])
  errors = bounds.ErrorCounts.at(best, *scores.tested)
  return errors.epsilon_lower_bound(delta, confidence)


def _check_runs(plan: ReleasePlan, confidence: float) -> None:
  """Refuses runs of which the best attack could be expected to prove nothing.

  Raises:
    InputError: they are too few.
  """
  (sigma,) = plan.noise_multipliers.values()
  rate = bounds.least_mean_error(sigma, plan.sampling)

  def proves(runs: int) -> bool:
    tested = runs - pilot_runs(runs)
    errors = bounds.ErrorCounts(
      false_positives=min(2 * tested, math.ceil(2 * tested * rate)),
      false_negatives=0,
      runs=tested,
    )
    upper = errors.mean_rate_upper_bound(confidence)
    return pilot_runs(runs) >= _LEAST_PILOT_RUNS and upper < 0.5

  if proves(plan.num_draws):
    return
  enough = 10
  while not proves(enough) and enough < _MOST_RUNS:
    enough = enough * 11 // 10
  (epsilon,) = plan.epsilons
  raise InputError(
    f"runs={plan.num_draws} prove nothing at epsilon={epsilon:g}, whatever the"
    f" attack: give at least {enough}, or a larger epsilon."
  )
