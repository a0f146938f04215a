r"""Heads by private centring and whitening, then noisy steps.

1. The mean m of the unit-norm rows is released once, and taken off every row:
   what all images share tells no classes apart.
2. Where there are enough rows for it, their second moment is released once,
   and the inverse square root A of their covariance (with a ridge of the size
   of the noise) becomes public. Rows are mapped by A and brought to unit norm,
   which spreads what tells classes apart over all directions instead of a few.
3. T full-batch steps of gradient descent with momentum follow, each on a
   clipped and noised gradient of the softmax cross-entropy, from zero weights.

From a public start S, rows are not centred, so that A·W₀ = S ranks classes as
S does, and steps only add to what it knows.

Where classes are of very different sizes (`balanced`), their rows are counted
with noise first, and the steps are taken with the log of their shares added to
the logits, which the head leaves out.

The constants of `rule` were chosen by test accuracy on features of CIFAR-10, in
several styles, of EuroSAT and on synthetic ones: nothing is chosen on yours.

Source: private whitening and few full-batch steps are near Mehta et al.,
"Differentially Private Image Classification from Features" (TMLR 2023, DP-FC);
composition of Gaussians: Dong, Roth & Su (2022).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.descent import descend, unit_scale
from oneshot_dp.linear_dp.heads.own_noise import (
  GRADIENT_SUM,
  OwnNoiseTrainer,
  gradient_released,
  once,
)
from oneshot_dp.linear_dp.heads.whitened.rule import (
  BALANCED_CLIP_NORM,
  WhiteningRule,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.public_start import SETTING, PublicStart
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import (
  SecretClassMoments,
  class_moments,
)
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  clipped_gradient,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.second_moment import (
  count_sensitivity,
  mean_sensitivity,
  moment_sensitivity,
  release_counts,
  release_mean,
  release_moment,
  release_units,
)
from oneshot_dp.linear_dp.statistics.step_rows import StepRows
from oneshot_dp.linear_dp.trainer import OnRelease, Released


class WhitenedTrainer(OwnNoiseTrainer[WhiteningRule]):
  """Spends on the mean, too, unless public rows gave one."""

  methods = ("whitened",)
  mechanism = WhiteningRule
  takes_start = True

  def read(self) -> None:
    if self._given.start is not None and self._given.are_centred:
      raise InputError(
        "start is of rows as they are, not of such that public rows centred:"
        " leave out the one or the other."
      )
    self._moment = class_moments(self._rows)

  def notes(self, plan: ReleasePlan) -> Iterator[str]:
    for epsilon, sigma in plan.noise_multipliers.items():
      yield f"epsilon {epsilon:g}: {self.rule(sigma).why()}"

  def rule(self, sigma: float) -> WhiteningRule:
    asked: dict[str, Any] = {}
    if self._config.balanced:
      asked = {"balances": True, "clip_norm": BALANCED_CLIP_NORM}
    start = self._given.start
    if start is not None:
      asked[SETTING] = start.sha256
    return WhiteningRule(
      num_examples=self._rows.num_examples,
      feature_dim=self._rows.feature_dim,
      num_classes=self._rows.num_classes,
      noise_multiplier=sigma,
      centres=not self._given.are_centred and start is None,
      clipped=self._given.clipped,
      **asked,
    )

  def settled(
    self,
    rule: WhiteningRule,
    relation: NeighboringRelation,
    source: NoiseSource | None,
    on_release: OnRelease,
  ) -> WhiteningRule:
    """Spends the budget of the number of units, if they may have many rows."""
    sigma = rule.unit_noise_multiplier
    if sigma is None:
      return rule
    noise_sd = math.nextafter(sigma * count_sensitivity(relation), math.inf)
    make = functools.partial(release_units, self._moment, noise_sd, source)
    units = once(source, "units", make)
    on_release(
      Released(
        name="units",
        value=units,
        noise_multiplier=sigma,
        grid_step=1 / GRID_RADIUS,
      )
    )
    return dataclasses.replace(rule, noisy_units=round(units.item()))

  def train(
    self,
    rule: WhiteningRule,
    relation: NeighboringRelation,
    source: NoiseSource | None,
    on_release: OnRelease,
  ) -> LinearHead:
    """Trains one head, of embeddings at norm 1 where it centres.

    Formal guarantees: see `WhiteningRule`, with n and the number of classes
    public. Logits are good for ranking only: the model is of rows that were
    normalised once more after the map.
    """
    released_map = _released_map(
      self._moment, rule, relation, source, on_release
    )
    log_prior = _released_log_prior(
      self._moment, rule, relation, source, on_release
    )
    rows = StepRows(self._rows, released_map)

    def gradient(
      kernel: Float64[np.ndarray, "d K"],
    ) -> Float64[np.ndarray, "d K"]:
      sigma = rule.step_noise_multiplier

      def noisy() -> Float64[np.ndarray, "d K"]:
        secret = clipped_gradient(
          rows, kernel, rule.clip_norm, log_prior=log_prior
        )
        return release_gradient(secret, sigma, relation, source)

      released = once(source, GRADIENT_SUM, noisy)
      at = {"map": released_map, "kernel": kernel, "log_prior": log_prior}
      on_release(gradient_released(released, sigma, rule.clip_norm, at))
      return released / rule.size

    kernel = descend(
      _first_weights(self._given.start, rule, released_map.matrix),
      itertools.repeat(gradient, rule.num_steps),
      optax.sgd(rule.learning_rate, momentum=rule.momentum),
    )
    if released_map.matrix is not None:
      kernel = released_map.matrix @ kernel
    kernel = unit_scale(kernel)
    bias = np.zeros(rule.num_classes)
    if released_map.real_centre is not None:
      bias = -released_map.real_centre @ kernel
    return LinearHead(
      kernel=kernel.astype(np.float32),
      bias=bias.astype(np.float32),
      unit_norm=rule.centres,
    )


def _released_map(
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


def _released_log_prior(
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


def _first_weights(
  start: PublicStart | None,
  rule: WhiteningRule,
  matrix: Float64[np.ndarray, "d d"] | None,
) -> Float64[np.ndarray, "d K"]:
  """W₀: zeros, or A⁻¹S, with columns of norm `start_norm` on average."""
  if start is None:
    return np.zeros((rule.feature_dim, rule.num_classes))
  kernel = start.kernel
  if matrix is not None:  # without noise, it may be all but singular
    kernel = np.linalg.lstsq(matrix, kernel, rcond=1e-3)[0]
  length = np.linalg.norm(kernel, axis=0).mean()
  return kernel * (rule.start_norm / length) if length > 0 else kernel


def inverse_square_root(
  moment: Float64[np.ndarray, "d d"], ridge: float
) -> Float64[np.ndarray, "d d"]:
  """(max(M, 0) + ridge)^(−1/2) of a symmetric matrix."""
  values, vectors = np.linalg.eigh(moment)
  return (vectors / np.sqrt(np.maximum(values, 0) + ridge)) @ vectors.T
