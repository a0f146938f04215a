r"""An empirical check of the release path: attack it, and bound ε from below.

The rows are synthetic, from a fixed seed, and everything after them is what
`train` runs. Real rows would test no other code, and a bound computed from them
would itself be a private statistic to account for.

What the audit shows, with the confidence that it states: a release is no more
private than the bound. What it cannot show: that it is as private as claimed,
that random bits are hard to predict, or anything about rows that these canaries
do not resemble. The bounds of many runs turn μ into ε as for a Gaussian
mechanism, which is what the claim says that a release is.
"""

import time

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp import audit as bounds
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.pipeline.audit import one_step_attacks as attacks
from oneshot_dp.pipeline.audit.report import AuditReport

_PILOT_RUNS_PER_ENTRY = 4
_CANARIES = range(100, 100_001)
"""Fewer prove nothing; more are rows that fill the memory."""
_SHARES = (0.8, 0.1, 0.1)
"""Share of what may go wrong (Bonferroni), per attack: the first measures
finely, the others look for faults that are gross where they are at all."""


def audit_release(
  grid: ClippedGradientGrid,
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  canaries: int,
  confidence: float,
  seed: int | None = None,
) -> AuditReport:
  """Attacks releases of synthetic rows in three ways.

  1. Many runs, along the canary's own gradient: how much noise hides it?
  2. Many runs, along the direction where the noise of pilot runs is least: is
     there noise of its own in every entry?
  3. One run of many canaries in as many directions.

  Nothing is charged to a ledger, as no private data is read.

  Args:
    grid: the clipping.
    plan: one ε; `num_draws` is the number of runs of each neighbour.
    source: the noise; a seed makes the audit repeatable.
    canaries: how many, in the one run.
    confidence: of all bounds together.
    seed: of the coins of the canaries; None: the operating system's.

  Returns:
    The bounds.

  Raises:
    InputError: too few runs or canaries to say anything, or too many.
  """
  start = time.monotonic()
  bounds.check_confidence(confidence)
  entries = grid.num_classes * grid.row_dim
  enough = attacks.PILOT_SHARE * _PILOT_RUNS_PER_ENTRY * entries
  if plan.num_draws < enough:
    raise InputError(
      f"runs={plan.num_draws} are too few for a gradient of {entries} numbers:"
      f" give at least {enough}, or fewer classes or features."
    )
  if canaries not in _CANARIES:
    raise InputError(
      f"canaries={canaries} must be {_CANARIES[0]} to {_CANARIES[-1]}."
    )
  of_matched, of_whitened, of_one_run = (
    1 - share * (1 - confidence) for share in _SHARES
  )
  claim, matched, whitened = attacks.many_runs(
    grid, plan, source, (of_matched, of_whitened)
  )
  coins = np.random.default_rng(seed)
  one_run, guesses = attacks.one_run(
    grid, plan, source, canaries, of_one_run, coins
  )
  return AuditReport(
    claim=claim,
    lower_bounds={
      "many runs, the canary's direction": matched,
      "many runs, the least noisy direction": whitened,
      "one run, many canaries": one_run,
    },
    runs=plan.num_draws,
    canaries=canaries,
    guesses=guesses,
    confidence=confidence,
    seconds=time.monotonic() - start,
  )
