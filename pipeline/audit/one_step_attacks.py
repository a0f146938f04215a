"""Attacks on releases of synthetic rows, and the bounds on ε that they prove.

The rows are made up from a fixed seed. Everything after them is what `train`
runs: the clipped sum, its sensitivity, the noise and the release. The adversary
sees releases and knows all but the coin about the canary. Heads are functions
of releases, so who sees only heads can do no better.
"""

import dataclasses
import math

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Float, Int64

from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp import audit as bounds
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import (
  baseline_without_privacy,
  release,
)
from oneshot_dp.linear_dp.rows.arrays import ArrayRows

PILOT_SHARE = 10
"""One run in ten chooses the least noisy direction; the others test it."""
_BASE_ROWS = 64
_BASE_SEED = 0
_CANARY_LENGTH = 100
"""In lengths at which clipping starts: without it, all would see the canary."""


def many_runs(
  grid: ClippedGradientGrid,
  plan: ReleasePlan,
  source: NoiseSource,
  confidences: tuple[float, float],
) -> tuple[PrivacyStatement, float, float]:
  """Many releases with a canary, and as many without it.

  Args:
    grid: the clipping.
    plan: one ε; `num_draws` is the number of runs of each kind.
    source: the noise.
    confidences: of the two bounds.

  Returns:
    What the releases claim; a lower bound on ε along the canary's own gradient;
    another along the direction in which pilot runs are the least noisy, which
    finds noise that entries share.
  """
  rng = np.random.default_rng(_BASE_SEED)
  base = rng.standard_normal((_BASE_ROWS, grid.feature_dim))
  label = np.arange(_BASE_ROWS) % grid.num_classes
  canary = _canary_norm(grid) * _unit(rng.standard_normal(grid.feature_dim))
  # Against no example at all; the null example of REPLACE_SPECIAL adds nothing
  # either. REPLACE_ONE costs most against the opposite example.
  replaced = plan.neighboring_relation is NeighboringRelation.REPLACE_ONE
  others = [-canary] if replaced else []

  def releases(
    rows: list[np.ndarray],
  ) -> tuple[np.ndarray, PrivacyStatement, np.ndarray]:
    labels = np.append(label, np.zeros(len(rows), np.int64))
    return _releases(grid, plan, source, np.array([*base, *rows]), labels)

  exact, _, absent = releases(others)
  _, claim, present = releases([canary])
  direction = _unit(
    _gradient(grid, canary) - sum(_gradient(grid, o) for o in others)
  )
  signal = claim.sensitivity * direction
  matched = _bound_on_epsilon(
    absent @ direction,
    present @ direction,
    # Half-way between what the claim makes of the two neighbours.
    threshold=float((exact + signal / 2) @ direction),
    delta=plan.delta,
    confidence=confidences[0],
  )
  pilot, absent = np.split(absent, [len(absent) // PILOT_SHARE])
  direction = _unit(bounds.whitened_direction(pilot, signal))
  whitened = _bound_on_epsilon(
    absent @ direction,
    present[len(pilot) :] @ direction,
    threshold=float((pilot.mean(axis=0) + signal / 2) @ direction),
    delta=plan.delta,
    confidence=confidences[1],
  )
  return claim, matched, whitened


def _bound_on_epsilon(
  absent: Float[np.ndarray, " runs"],
  present: Float[np.ndarray, " runs"],
  *,
  threshold: float,
  delta: float,
  confidence: float,
) -> float:
  """What telling two neighbours apart by a threshold proves."""
  errors = bounds.ErrorCounts.at(threshold, absent, present)
  return bounds.epsilon_of_gdp(errors.gdp_lower_bound(confidence), delta)


def one_run(
  grid: ClippedGradientGrid,
  plan: ReleasePlan,
  source: NoiseSource,
  canaries: int,
  confidence: float,
  coins: np.random.Generator,
) -> tuple[float, int]:
  """One release of many canaries, each there or not by the toss of a coin.

  Each has an entry of the gradient to itself: a class and a feature.

  Args:
    grid: the clipping; its classes and features are made as many as it takes.
    plan: one ε.
    source: the noise.
    canaries: how many.
    confidence: of the bound.
    coins: tosses.

  Returns:
    A lower bound on ε, and how many coins were guessed for it.
  """
  num_classes = math.isqrt(canaries - 1) + 1
  grid = dataclasses.replace(
    grid,
    num_classes=num_classes,
    feature_dim=-(-canaries // num_classes),
  )
  feature, label = np.divmod(np.arange(canaries), num_classes)
  heads = coins.integers(0, 2, canaries).astype(bool)
  rows = np.zeros((canaries, grid.feature_dim))
  rows[np.arange(canaries), feature] = _canary_norm(grid)
  rows[~heads] *= -1
  replaced = plan.neighboring_relation is NeighboringRelation.REPLACE_ONE
  kept = heads | replaced
  plan = dataclasses.replace(plan, num_draws=1)
  _, claim, (noisy,) = _releases(grid, plan, source, rows[kept], label[kept])
  # The gradient of class y is (p0 − 1)·x: a canary makes its entry smaller.
  score = -noisy.reshape(num_classes, grid.row_dim)[label, feature]
  guesses = bounds.best_number_of_guesses(
    canaries=canaries,
    noise_multiplier=claim.noise_multiplier,
    delta=plan.delta,
    confidence=confidence,
  )
  order = np.argsort(score)
  low, high = order[: guesses // 2], order[-(guesses // 2) :]
  run = bounds.OneRun(
    canaries=canaries,
    guesses=guesses,
    correct=int(heads[high].sum() + (~heads[low]).sum()),
  )
  return run.epsilon_lower_bound(plan.delta, confidence), guesses


def _releases(
  grid: ClippedGradientGrid,
  plan: ReleasePlan,
  source: NoiseSource,
  embedding: Float[np.ndarray, "rows d"],
  label: Int64[np.ndarray, " rows"],
) -> tuple[
  Int64[np.ndarray, " n"], PrivacyStatement, Int64[np.ndarray, "runs n"]
]:
  """What the product makes of rows: exact, what it claims, and noisy."""
  rows = ArrayRows.of(embedding, label, num_classes=grid.num_classes)
  secret = exact_clipped_sum([rows], grid, num_examples=len(label))
  # No private data, so nothing is charged.
  made = release(secret, plan, source, charge=lambda plan, source: None)
  with step_bar("releases", "run", plan.num_draws) as bar:
    releases = []
    for each in made:
      releases.append(each)
      bar.update()
  exact = baseline_without_privacy(secret, plan).noisy_sum.ravel()
  noisy = np.array([r.noisy_sum.ravel() for r in releases])
  return exact, releases[0].statement, noisy


def _canary_norm(grid: ClippedGradientGrid) -> float:
  # Never near zero, so that the 1 of a trained bias is lost beside it.
  return _CANARY_LENGTH * max(grid.l2_clip_norm / grid.residual_norm, 1.0)


def _gradient(
  grid: ClippedGradientGrid, embedding: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " n"]:
  """The gradient of an example of class 0, at length 1."""
  row = np.append(embedding, 1.0) if grid.train_bias else embedding
  residual = np.full(grid.num_classes, grid.initial_probability)
  residual[0] -= 1
  return _unit(np.outer(residual, row).ravel())


def _unit(vector: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
  return vector / np.linalg.norm(vector)
