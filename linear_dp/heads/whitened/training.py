r"""Heads by private centring and whitening, then noisy steps.

1. The mean m of the unit-norm rows is released once, and taken off every row:
   what all images share tells no classes apart.
2. Where there are enough rows for it, their second moment is released once,
   and the inverse square root A of their covariance (with a ridge of the size
   of the noise) becomes public. Rows are mapped by A and brought to unit norm,
   which spreads what tells classes apart over all directions instead of a few.
3. T full-batch steps of gradient descent with momentum follow, each on a
   clipped and noised gradient of the softmax cross-entropy, from zero weights.

In a nested sweep the head of the smallest ε is trained first, and that of each
larger one goes on from the last with new noise, paid for by what its ε has more
(σ⁻² less that of the last): each costs its own ε, and all of them the largest.

From a public start S, rows are not centred, so that A·W₀ = S ranks classes as
S does, and steps only add to what it knows. A noisy count of the rows that they
got right says how far of their way the head goes: all, a quarter or none.

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
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import optax
from jaxtyping import Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import ReleaseOrder
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.descent import descend, unit_scale
from oneshot_dp.linear_dp.heads.own_noise import (
  GRADIENT_SUM,
  Door,
  OwnNoiseTrainer,
)
from oneshot_dp.linear_dp.heads.whitened.budget import (
  BALANCED_CLIP_NORM,
  COMPARES,
)
from oneshot_dp.linear_dp.heads.whitened.releases import (
  released_log_prior,
  released_rows_map,
  released_way,
)
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.public_start import SETTING
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  clipped_gradient,
  gradient_step,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.second_moment import (
  count_sensitivity,
  release_units,
)
from oneshot_dp.linear_dp.statistics.step_rows import StepRows


class WhitenedTrainer(OwnNoiseTrainer[WhiteningRule]):
  """Spends on the mean, too, unless public rows gave one."""

  methods = ("whitened",)
  mechanism = WhiteningRule
  takes_start = True
  _last: tuple[WhiteningRule, Float64[np.ndarray, "d K"], float]
  """How the last head was trained, its weights, and how long they were."""
  _map: ReleasedMap

  @classmethod
  def order(cls, asked: ReleaseOrder | None = None) -> ReleaseOrder:
    return asked or "independent"

  def read(self) -> None:
    if self._given.start is not None and self._given.are_centred:
      raise InputError(
        "start is of rows as they are, not of such that public rows centred:"
        " leave out the one or the other."
      )
    self._moment = class_moments(self._rows)

  def notes(self, plan: ReleasePlan) -> Iterator[str]:
    for epsilon, rule in self.rules(plan).items():
      yield f"epsilon {epsilon:g}: {rule.why()}"

  def rules(self, plan: ReleasePlan) -> dict[float, WhiteningRule]:
    rules = {
      epsilon: dataclasses.replace(
        self.rule(sigma), before_noise_multiplier=plan.noise_before(epsilon)
      )
      for epsilon, sigma in plan.noise_multipliers.items()
    }
    nested = plan.order == "nested"
    return dict(reversed(rules.items())) if nested else rules

  def rule(self, sigma: float) -> WhiteningRule:
    asked: dict[str, Any] = {}
    if self._config.balanced:
      asked = {"balances": True, "clip_norm": BALANCED_CLIP_NORM}
    start = self._given.start
    if start is not None:
      asked |= {SETTING: start.sha256, COMPARES: not self._config.balanced}
    return WhiteningRule(
      num_examples=self._rows.num_examples,
      feature_dim=self._rows.feature_dim,
      num_classes=self._rows.num_classes,
      noise_multiplier=sigma,
      centres=not self._given.are_centred and start is None,
      clipped=self._given.clipped,
      **asked,
    )

  def settled(self, rule: WhiteningRule, door: Door) -> WhiteningRule:
    """Spends the budget of the number of units, if they may have many rows."""
    if rule.goes_on:
      return dataclasses.replace(rule, noisy_units=self._last[0].noisy_units)
    sigma = rule.unit_noise_multiplier
    if sigma is None:
      return rule
    sensitivity = count_sensitivity(door.relation)
    noise_sd = math.nextafter(sigma * sensitivity, math.inf)
    units = door.let_out(
      "units",
      lambda: release_units(self._moment, noise_sd, door.source),
      sigma,
      1 / GRID_RADIUS,
    )
    return dataclasses.replace(rule, noisy_units=round(units.item()))

  def train(self, rule: WhiteningRule, door: Door) -> LinearHead:
    """Trains one head, of embeddings at norm 1 where it centres.

    Formal guarantees: see `WhiteningRule`, with n and the number of classes
    public. Logits are good for ranking only: the model is of rows that were
    normalised once more after the map.
    """
    if rule.maps:
      self._map = released_rows_map(self._moment, rule, door)
    released_map = self._map
    log_prior = released_log_prior(self._moment, rule, door)
    rows = StepRows(self._rows, released_map)

    def gradient(
      kernel: Float64[np.ndarray, "d K"],
    ) -> Float64[np.ndarray, "d K"]:
      sigma = rule.step_noise_multiplier

      def noisy() -> Float64[np.ndarray, "d K"]:
        secret = clipped_gradient(
          rows, kernel, rule.clip_norm, log_prior=log_prior
        )
        return release_gradient(secret, sigma, door.relation, door.source)

      released = door.let_out(
        GRADIENT_SUM,
        noisy,
        sigma,
        gradient_step(rule.clip_norm),
        clip_norm=rule.clip_norm,
        map=released_map,
        kernel=kernel,
        log_prior=log_prior,
      )
      return released / rule.size

    before, wanted = self._before(rule)
    first = _behind(released_map.matrix, before, wanted)
    kernel = descend(
      first,
      itertools.repeat(gradient, rule.num_steps),
      optax.sgd(rule.learning_rate, momentum=rule.momentum),
    )
    far = 1.0
    if rule.compares:
      far = released_way(rows, first, kernel, rule, door)
      kernel = first + far * (kernel - first)
    length = _length(kernel)
    if far == 0:  # as it was, not there and back through the map
      kernel = before
    elif released_map.matrix is not None:
      kernel = released_map.matrix @ kernel
    self._last = rule, kernel, length
    kernel = unit_scale(kernel)
    bias = np.zeros(rule.num_classes)
    if released_map.real_centre is not None:
      bias = -released_map.real_centre @ kernel
    return LinearHead(
      kernel=kernel.astype(np.float32),
      bias=bias.astype(np.float32),
      unit_norm=rule.centres,
    )

  def _before(
    self, rule: WhiteningRule
  ) -> tuple[Float64[np.ndarray, "d K"], float]:
    """Where steps begin, not yet behind a map, and how long it is there.

    A start is as long as `start_norm`, a head as it was behind its own map.
    """
    if rule.goes_on:
      return self._last[1:]
    if self._given.start is not None:
      return self._given.start.kernel, rule.start_norm
    return np.zeros((rule.feature_dim, rule.num_classes)), 0.0


def _behind(
  matrix: Float64[np.ndarray, "d d"] | None,
  kernel: Float64[np.ndarray, "d K"],
  wanted: float,
) -> Float64[np.ndarray, "d K"]:
  """W₀ = A⁻¹·S, of the length that is wanted."""
  if matrix is not None and kernel.any():
    # Without noise, it may be all but singular.
    kernel = np.linalg.lstsq(matrix, kernel, rcond=1e-3)[0]
  length = _length(kernel)
  return kernel * (wanted / length) if length > 0 else kernel


def _length(kernel: Float64[np.ndarray, "d K"]) -> float:
  """The mean length of its columns."""
  return float(np.linalg.norm(kernel, axis=0).mean())
