"""Simulates sound audits, and counts how often a bound is above the claim.

    python -m tests.pipeline.audit.simulate [AUDITS]

Each audit is ten runs of exactly Gaussian noise on what the command's own
canaries add to class sums, through the product's scores and bounds. No more
than 5 % may be false: 2.5 % by each of the two bounds.
"""

import sys

import numpy as np

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.audit.attack import ObservedRelease, score_canaries
from oneshot_dp.pipeline.audit.bounds import (
  bounds_from_scores,
  epsilon_from_guesses,
)
from oneshot_dp.pipeline.audit.canaries import (
  Canaries,
  Contribution,
  make_probes,
  orthonormal_basis,
)
from oneshot_dp.pipeline.audit.runs import SYNTHETIC_RUNS, synthetic_canaries

DELTA = 1e-5
SETTINGS = [
  (count, epsilon)
  for count in (100, 512, 2000, 20_000)
  for epsilon in (0.1, 1.0, 8.0, 20.0, 100.0)
]


def class_sums_of(canaries: Canaries) -> ObservedRelease:
  """A release of class sums, without its value."""
  left = np.eye(canaries.num_classes)
  label = np.arange(canaries.count) % canaries.num_classes
  # Rows as `train` rounds them: orthogonal but for their last digits.
  row = np.rint(canaries.directions() * 2**14) / 2**14
  added = Contribution(left[label], row, canaries.direction)
  probes = make_probes(added, orthonormal_basis(row))
  return ObservedRelease("class sums", np.zeros(0), 1.0, added, probes)


def simulate_audit(
  rng: np.random.Generator, release: ObservedRelease, epsilon: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Scores, blind scores and coins of all runs of one audit."""
  sigma = mu_squared_from_epsilon(epsilon, DELTA) ** -0.5
  added = release.added
  shape = (added.left.shape[1], added.row.shape[1])
  scores = []
  blind_scores = []
  all_coins = []
  for _ in range(SYNTHETIC_RUNS):
    coins = rng.random(len(added.left)) < 0.5
    value = added.total(coins * 1.0) + sigma * rng.standard_normal(shape)
    observed = [release._replace(value=value, noise_multiplier=sigma)]
    scores.append(score_canaries(observed, coins * 1.0))
    blind_scores.append(score_canaries(observed, np.full(len(coins), 0.5)))
    all_coins.append(coins)
  return (
    np.concatenate(scores),
    np.concatenate(blind_scores),
    np.concatenate(all_coins),
  )


def main(audits: int) -> None:
  """Prints a line for each setting.

  The blind bound takes a second or more, so it is of every tenth audit alone.
  """
  print("canaries  epsilon  audits  gaussian too high  median  blind too high")
  for count, epsilon in SETTINGS:
    rng = np.random.default_rng(0)
    release = class_sums_of(synthetic_canaries(count))
    gaussian = []
    blind = []
    for i in range(audits):
      scores, blind_scores, coins = simulate_audit(rng, release, epsilon)
      right = int(((scores > 0) == coins).sum())
      gaussian.append(epsilon_from_guesses(right, len(coins), DELTA))
      if i % 10 == 0:
        bounds = bounds_from_scores(scores, blind_scores, coins, DELTA)
        blind.append(bounds.blind)
    print(
      f"{count:8}  {epsilon:7g}  {audits:6}"
      f"  {np.mean(np.array(gaussian) > epsilon):17.1%}"
      f"  {np.median(gaussian):6.3f}"
      f"  {sum(bound > epsilon for bound in blind):3} of {len(blind)}",
      flush=True,
    )


if __name__ == "__main__":
  main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
