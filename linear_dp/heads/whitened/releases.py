"""What whitened heads release before their steps, and what is made of it."""

import functools
import math

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Float64

from oneshot_dp.linear_dp.heads.own_noise import once
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import SecretClassMoments
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.second_moment import (
  count_sensitivity,
  mean_sensitivity,
  moment_sensitivity,
  release_counts,
  release_mean,
  release_moment,
)
from oneshot_dp.linear_dp.trainer import OnRelease, Released


def released_rows_map(
  moment: SecretClassMoments,
  rule: WhiteningRule,
  relation: NeighboringRelation,
  source: NoiseSource | None,
  on_release: OnRelease,
) -> ReleasedMap:
  """Spends the budget of the mean and of the moment: (u − mean)·A."""
  mean = matrix = None
  if rule.mean_noise_multiplier is not None:
    noise_sd = rule.mean_noise_multiplier * mean_sensitivity(relation)
    noise_sd *= 1 + 2**-50
    make = functools.partial(release_mean, moment, noise_sd, source, rule.size)
    mean = once(source, "mean", make)
    on_release(
      Released(
        name="mean",
        value=mean,
        noise_multiplier=rule.mean_noise_multiplier,
        grid_step=1 / (GRID_RADIUS * rule.size),
      )
    )
  if rule.moment_noise_multiplier is not None:
    sensitivity = moment_sensitivity(relation, rule.feature_dim)
    noise_sd = rule.moment_noise_multiplier * sensitivity * (1 + 2**-50)
    make = functools.partial(release_moment, moment, noise_sd, source)
    noisy = once(source, "second moment", make)
    on_release(
      Released(
        name="second moment",
        value=noisy,
        noise_multiplier=rule.moment_noise_multiplier,
        grid_step=1 / GRID_RADIUS,
      )
    )
    if mean is not None:
      noisy = noisy - rule.size * np.outer(mean, mean)
    matrix = inverse_square_root(noisy, rule.ridge)
  return ReleasedMap.of(matrix, mean)


def released_log_prior(
  moment: SecretClassMoments,
  rule: WhiteningRule,
  relation: NeighboringRelation,
  source: NoiseSource | None,
  on_release: OnRelease,
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
  noise_sd = math.nextafter(sigma * count_sensitivity(relation), math.inf)
  make = functools.partial(release_counts, moment, noise_sd, source)
  counts = once(source, "class counts", make)
  on_release(
    Released(
      name="class counts",
      value=counts,
      noise_multiplier=sigma,
      grid_step=1 / moment.count_steps,
    )
  )
  counts = np.maximum(counts, max(noise_sd, 1.0))
  return np.log(counts / counts.sum())


def inverse_square_root(
  moment: Float64[np.ndarray, "d d"], ridge: float
) -> Float64[np.ndarray, "d d"]:
  """(max(M, 0) + ridge)^(−1/2) of a symmetric matrix."""
  values, vectors = np.linalg.eigh(moment)
  return (vectors / np.sqrt(np.maximum(values, 0) + ridge)) @ vectors.T
