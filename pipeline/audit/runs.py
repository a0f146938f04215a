"""Whole audits: how many canaries they take, and the runs that attack them."""

import math
import sys
import time

import numpy as np

from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.pipeline.audit.attack import (
  Claim,
  ObservedRelease,
  find_faults,
  observe_training,
  sample_canaries,
  score_canaries,
)
from oneshot_dp.pipeline.audit.bounds import Bounds, bounds_from_scores
from oneshot_dp.pipeline.audit.canaries import Canaries, Coins

SYNTHETIC_RUNS = 10
MAX_CANARIES = 20_000
_SYNTHETIC_CANARIES = 2000
_SYNTHETIC_DIM = 512
_MIN_CANARIES = 1000
"""The fewest canaries in an audit among real rows, unless a flag is given."""
_MAX_REAL_DIM = 2048
_ENOUGH = 20.0
"""With (this / μ)² guesses, the interval is a fifth of μ wide."""


def synthetic_canaries(count: int | None = None) -> Canaries:
  """Canaries without real rows: as many as asked for, or a default number.

  There are twice as many classes as canaries of one direction. Their gradients
  are then nearly orthogonal; those of all classes together add up to zero.
  """
  if count is None:
    count = _SYNTHETIC_CANARIES
  per_direction = math.ceil(count / _SYNTHETIC_DIM)
  return Canaries(
    count=count, dim=_SYNTHETIC_DIM, num_classes=2 * per_direction
  )


def canaries_among(
  real: PrivateDataset, mu_squared: float, count: int | None = None
) -> Canaries:
  """Canaries among real rows: as many as asked for, or as are of use.

  Args:
    real: the rows.
    mu_squared: μ² of the claim: the smaller it is, the more guesses it takes.
    count: how many canaries; None for as many as are of use.

  Raises:
    InputError: so many would hide one another.
  """
  # Gradients of all classes together add up to zero; those of half of them are
  # nearly orthogonal, and hide one another little.
  per_direction = max(1, real.num_classes // 2)
  if count is None:
    # The interval of μ narrows with the root of the number of guesses, and a
    # small μ needs a narrow one.
    most = min(MAX_CANARIES, per_direction * _MAX_REAL_DIM)
    useful = math.ceil(_ENOUGH**2 / mu_squared)
    count = min(most, max(_MIN_CANARIES, useful))
  dim = min(_MAX_REAL_DIM, math.ceil(count / per_direction))
  return Canaries(count=count, dim=dim, num_classes=real.num_classes, real=real)


def audit_synthetic(
  claim: Claim, canaries: Canaries, runs: int = SYNTHETIC_RUNS
) -> tuple[Bounds, list[str]]:
  """Attacks heads that are trained on canaries alone.

  No private row is read, and nothing is charged. Each run is announced on
  standard error.

  Args:
    claim: what is attacked.
    canaries: without real rows, such as `synthetic_canaries` gives.
    runs: how many heads are trained, with new coins and new noise for each.

  Returns:
    The bounds of all runs together, and faults that were found in the noise,
    in words, each once.

  Raises:
    InputError: the claim is not a privacy guarantee.
  """
  scores = []
  blind_scores = []
  all_coins = []
  faults: list[str] = []
  # Coins are tossed anew in each run. Guesses of all runs are counted together:
  # given the coins they are independent, as their noise is.
  # Runs take seconds to minutes each, so each is announced. The rows are made
  # up, so that their running time gives nothing away.
  started = time.monotonic()
  for run in range(runs):
    seconds = time.monotonic() - started
    print(describe_progress(run, runs, seconds), file=sys.stderr)
    rows, coins = sample_canaries(canaries, claim.head)
    observed = observe_training(rows, claim)
    faults += find_faults(observed, coins, rows.data.weight)
    scores.append(score_canaries(observed, coins.astype(np.float64)))
    blind_scores.append(score_canaries(observed, np.full(len(coins), 0.5)))
    all_coins.append(coins)
  bounds = bounds_from_scores(
    np.concatenate(scores),
    np.concatenate(blind_scores),
    np.concatenate(all_coins),
    claim.delta,
  )
  return bounds, list(dict.fromkeys(faults))


def describe_progress(done: int, runs: int, seconds: float) -> str:
  """Says which run begins, and about how long all that is left will take.

  >>> describe_progress(0, 10, 0.0), describe_progress(4, 10, 200.0)
  ('audit: run 1 of 10', 'audit: run 5 of 10, about 5 minutes left')

  Args:
    done: how many runs are done.
    runs: how many there are.
    seconds: what these took.
  """
  line = f"audit: run {done + 1} of {runs}"
  if not done:
    return line
  seconds_left = seconds / done * (runs - done)
  if seconds_left < 90:
    return f"{line}, about {math.ceil(seconds_left)} seconds left"
  return f"{line}, about {math.ceil(seconds_left / 60)} minutes left"


def bounds_among_real_rows(
  observed: list[ObservedRelease], coins: Coins, delta: float
) -> Bounds:
  """Bounds ε by one run among real rows.

  Scores look where real rows are zeros, so they are post-processing of what
  was charged.

  Args:
    observed: the releases of the run.
    coins: whether each canary was there, [m].
    delta: at which ε is bounded.

  Returns:
    The bounds; public, like the releases that they follow from.
  """
  return bounds_from_scores(
    score_canaries(observed, coins.astype(np.float64)),
    score_canaries(observed, np.full(len(coins), 0.5)),
    coins,
    delta,
  )
