"""What whitened heads release but for their steps, and what is made of it."""

import math

import numpy as np
from jaxtyping import Float64

from oneshot_dp.linear_dp.heads.own_noise import Door
from oneshot_dp.linear_dp.heads.whitened.budget import FROM_START
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import SecretClassMoments
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gains import (
  count_gains,
  gain_sensitivity,
  release_gains,
)
from oneshot_dp.linear_dp.statistics.second_moment import (
  count_sensitivity,
  mean_sensitivity,
  moment_sensitivity,
  release_counts,
  release_mean,
  release_moment,
)
from oneshot_dp.linear_dp.statistics.step_rows import StepRows


def released_rows_map(
  moment: SecretClassMoments, rule: WhiteningRule, door: Door
) -> ReleasedMap:
  """Spends the budget of the mean and of the moment: (u − mean)·A."""
  mean = matrix = None
  if (sigma := rule.mean_noise_multiplier) is not None:
    of_mean = sigma * mean_sensitivity(door.relation) * (1 + 2**-50)
    mean = door.let_out(
      "mean",
      lambda: release_mean(moment, of_mean, door.source, rule.size),
      sigma,
      1 / (GRID_RADIUS * rule.size),
    )
  if (sigma := rule.moment_noise_multiplier) is not None:
    sensitivity = moment_sensitivity(door.relation, rule.feature_dim)
    of_moment = sigma * sensitivity * (1 + 2**-50)
    noisy = door.let_out(
      "second moment",
      lambda: release_moment(moment, of_moment, door.source),
      sigma,
      1 / GRID_RADIUS,
    )
    if mean is not None:
      noisy = noisy - rule.size * np.outer(mean, mean)
    matrix = inverse_square_root(noisy, rule.ridge)
  return ReleasedMap.of(matrix, mean)


def released_log_prior(
  moment: SecretClassMoments, rule: WhiteningRule, door: Door
) -> Float64[np.ndarray, " K"] | None:
  """Spends the budget of the class counts, if there is one: log of N/ΣN.

  A count is taken for the deviation of its noise at least, and for 1.

  Source: Menon et al., "Long-tail learning via logit adjustment" (ICLR 2021),
  equation 10: adjusted while training, so that the head's own logits are for
  classes of one size.
  """
  if not rule.balances:
    return None
  sigma = rule.count_noise_multiplier or 0.0
  noise_sd = math.nextafter(sigma * count_sensitivity(door.relation), math.inf)
  counts = door.let_out(
    "class counts",
    lambda: release_counts(moment, noise_sd, door.source),
    sigma,
    1 / moment.count_steps,
  )
  counts = np.maximum(counts, max(noise_sd, 1.0))
  return np.log(counts / counts.sum())


def released_way(
  rows: StepRows,
  first: Float64[np.ndarray, "p K"],
  last: Float64[np.ndarray, "p K"],
  rule: WhiteningRule,
  door: Door,
) -> float:
  """Spends the budget of comparing: how far from the start to go, 0 to 1.

  Weights are taken for better than the start where the count says so by more
  than the deviation s of its noise. Of weights that get x rows less right, that
  loses x·Φ(−1 − x/s) < 0.04·s on average.
  """
  sigma = rule.compared_noise_multiplier or 0.0
  count = len(FROM_START)
  sensitivity = gain_sensitivity(door.relation, count)
  noise_sd = math.nextafter(sigma * sensitivity, math.inf)
  kernels = np.stack(
    [first + far * (last - first) for far in (0.0, *FROM_START)]
  )
  gains = door.let_out(
    "gains",
    lambda: release_gains(count_gains(rows, kernels), noise_sd, door.source),
    sigma,
    1 / GRID_RADIUS,
    kernels=kernels,
  )
  best = int(gains.argmax())
  return FROM_START[best] if gains[best] > noise_sd else 0.0


def inverse_square_root(
  moment: Float64[np.ndarray, "d d"], ridge: float
) -> Float64[np.ndarray, "d d"]:
  """(max(M, 0) + ridge)^(−1/2) of a symmetric matrix."""
  values, vectors = np.linalg.eigh(moment)
  return (vectors / np.sqrt(np.maximum(values, 0) + ridge)) @ vectors.T
