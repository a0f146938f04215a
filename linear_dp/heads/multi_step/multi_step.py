r"""Heads of several noisy steps, with every choice open.

    W ← W − optimizer( (F(W) + noise)/batch ),   T times

F is the sum of the clipped gradients at W of all rows, or of a random part of
them (`batches`). From zero weights, with one step on all rows that keep their
norms and a sigmoid for each class, it is the paper's method; its ablations
(table 4) and what De et al. do (momentum, averaged weights) are other choices.

Each sum is in float64, with an error that is bounded and paid for
(`gradient_sum`): exact sums of integers are for the first step from zero alone,
where a row's gradient is a multiple of the row.

Source: Mehta et al., "Large Scale Transfer Learning for Differentially Private
Image Classification", TMLR 2023; De et al., "Unlocking High-Accuracy
Differentially Private Image Classification through Scale", 2022.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Bool, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import InitName, OptimizerName
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.descent import (
  descend,
  initial_kernel,
  unit_scale,
)
from oneshot_dp.linear_dp.heads.multi_step.batches import Batches
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  clipped_gradient,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.row_gradient import Loss

MAX_NORM = 2.0**8
"""R, of rows that keep their norms."""
_MOMENTUM = 0.9


def learning_rate(
  optimizer: OptimizerName,
  *,
  num_classes: int,
  clip_norm: float,
  batches: Batches,
  step_noise_multiplier: float,
) -> float:
  r"""A learning rate for rows of norm 1, from public numbers.

  With momentum m, the noise alone, walking freely for all steps, would move a
  logit by about b = 1 + log₁₀(K)/2:

      lr = b·(1 − m)·batch/(C·√T·max(σ_t, σ₁)),   σ₁ = √T·batch/n

  and without much noise (σ₁ is that of σ = 1 on full batches) it stops growing.
  LAMB and Adam divide by the size of the noise themselves, so that it cancels:
  b/√T for Adam, whose steps are of that size in every weight. Those of LAMB
  are a part, 0.6/√T, of the weights they change. What LAMB and Adam get was
  chosen as the constants of `whitened` were.
  """
  walk = 1 + math.log10(num_classes) / 2
  root = math.sqrt(batches.num_steps)
  if optimizer == "adam":
    return walk / root
  if optimizer == "lamb":
    return 0.6 / root
  batch = batches.mean_size
  least_noise = root * batch / batches.num_examples
  noise = max(step_noise_multiplier, least_noise)
  return walk * (1 - _MOMENTUM) * batch / (clip_norm * root * noise)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiStepRule:
  """The settings of one head; all public.

  Formal guarantees: what `Batches` says, at the noise multiplier
  `step_noise_multiplier` for every step.

  Attributes:
    num_classes: K.
    feature_dim: d.
    noise_multiplier: σ of the plan: of one mechanism that costs as much as all
      steps; of a step where batches are Poisson samples; 0 without noise.
    optimizer: "lamb", "adam" or "momentum".
    learning_rate: lr.
    clip_norm: C, the largest norm of a row's gradient.
    loss: what the gradients are of.
    max_norm: R, of rows that keep their norm; None is for rows of norm 1.
    init: how the weights begin.
    init_scale: standard deviation of "normal".
    init_seed: of random weights; public.
    ema_decay: of averaged weights; None is the last ones.
    batches: which rows each step sees.
  """

  num_classes: int
  feature_dim: int
  noise_multiplier: float
  optimizer: OptimizerName
  learning_rate: float
  clip_norm: float
  loss: Loss
  max_norm: float | None
  init: InitName
  init_scale: float
  init_seed: int
  ema_decay: float | None
  batches: Batches

  def __post_init__(self):
    if not (math.isfinite(self.init_scale) and self.init_scale >= 0):
      raise InputError(f"init_scale={self.init_scale} is not 0 or more.")
    if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
      raise InputError(f"ema_decay={self.ema_decay} is not in [0, 1).")

  @property
  def step_noise_multiplier(self) -> float:
    """σ_t, rounded up."""
    return self.batches.step_noise_multiplier(self.noise_multiplier)


def train(
  rows: SecretRows,
  rule: MultiStepRule,
  relation: NeighboringRelation,
  source: NoiseSource | None,
  on_step: Callable[[], object] = lambda: None,
) -> LinearHead:
  """Trains one head.

  Formal guarantees: see `MultiStepRule`. With rows of norm 1 the head is of
  rows as they are, and its logits are good for ranking only.

  Args:
    rows: the private rows, of the rule's `max_norm`.
    rule: the settings.
    relation: which data sets count as neighbours.
    source: the random bits, of samples and noise; None adds no noise, which is
      NOT PRIVATE.
    on_step: called after each step (progress).

  Returns:
    The head.
  """
  # A baseline samples too; what it does not hide, nobody else must guess.
  chosen = rule.batches.chosen(source or NoiseSource())

  def gradient(
    part: Bool[np.ndarray, " n"] | None, kernel: Float64[np.ndarray, "d K"]
  ) -> Float64[np.ndarray, "d K"]:
    secret = clipped_gradient(
      rows, None, kernel, rule.clip_norm, loss=rule.loss, chosen=part
    )
    released = release_gradient(
      secret, rule.step_noise_multiplier, relation, source
    )
    on_step()
    return released / rule.batches.mean_size

  optimizer = OneStepOptimizer(
    name=rule.optimizer, learning_rate=rule.learning_rate
  )
  kernel = descend(
    initial_kernel(
      rule.init,
      rule.init_scale,
      (rule.feature_dim, rule.num_classes),
      rule.init_seed,
    ),
    (functools.partial(gradient, part) for part in chosen),
    optimizer.transformation(0.0),
    rule.ema_decay,
  )
  if rule.max_norm is None:
    kernel = unit_scale(kernel)
  return LinearHead(
    kernel=kernel.astype(np.float32),
    bias=np.full(
      rule.num_classes, rule.loss.bias if rule.max_norm else 0.0
    ).astype(np.float32),
  )
