r"""Heads of several noisy steps, with every choice open.

    W ← W − optimizer( (F(W) + noise)/batch ),   T times

F is the sum of the clipped gradients at W of all rows, or of a random part of
them (`batches`), of integers (`gradient_sum`).
From zero weights, with one step on all rows that keep their norms and a sigmoid
for each class, it is the paper's method; its ablations (table 4) and what De et
al. do (momentum, averaged weights) are other choices.

Source: Mehta et al., "Large Scale Transfer Learning for Differentially Private
Image Classification", TMLR 2023; De et al., "Unlocking High-Accuracy
Differentially Private Image Classification through Scale", 2022.
"""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.descent import (
  descend,
  initial_kernel,
  unit_scale,
)
from oneshot_dp.linear_dp.heads.multi_step.rule import (
  MAX_NORM,
  MultiStepRule,
  make_batches,
  make_rule,
)
from oneshot_dp.linear_dp.heads.own_noise import (
  GRADIENT_SUM,
  Door,
  OwnNoiseTrainer,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  clipped_gradient,
  gradient_step,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.step_rows import StepRows
from oneshot_dp.linear_dp.trainer import NoBar, Progress, TrainingRows


class MultiStepTrainer(OwnNoiseTrainer[MultiStepRule]):
  """Refuses settings that make no sense for so many rows, before it reads."""

  methods = ("multi-step",)
  mechanism = MultiStepRule

  def __init__(
    self,
    rows: TrainingRows,
    configs: Sequence[HeadConfig],
    progress: Progress = NoBar,
  ):
    steps = configs[0].steps
    max_norm = None if steps.unit_norm else MAX_NORM
    super().__init__(rows, configs, progress, max_norm=max_norm)
    self.rule(1.0)  # what it refuses
    self._step_rows = StepRows(self._rows)

  @classmethod
  def sampling(
    cls, config: HeadConfig, num_examples: int
  ) -> PoissonSampling | None:
    if config.steps.sampling != "poisson":
      return None
    return make_batches(config.steps, num_examples, 0.0).poisson

  def read(self) -> None:
    self._step_rows.read()

  def rule(self, sigma: float) -> MultiStepRule:
    return make_rule(
      self._config.steps,
      num_examples=self._rows.num_examples,
      feature_dim=self._rows.feature_dim,
      num_classes=self._rows.num_classes,
      noise_multiplier=sigma,
      clipped=self._given.clipped,
    )

  def train(self, rule: MultiStepRule, door: Door) -> LinearHead:
    return train(self._step_rows, rule, door)


def train(rows: StepRows, rule: MultiStepRule, door: Door) -> LinearHead:
  """Trains one head on rows of the rule's `max_norm`.

  Formal guarantees: see `MultiStepRule`. With rows of norm 1 the head is of
  rows as they are, and its logits are good for ranking only.
  """
  # A baseline samples too; what it does not hide, nobody else must guess.
  chosen = rule.batches.chosen(door.source or NoiseSource(), rows.secret_units)

  def gradient(
    part: Bool[np.ndarray, " n"] | None, kernel: Float64[np.ndarray, "d K"]
  ) -> Float64[np.ndarray, "d K"]:
    sigma = rule.step_noise_multiplier

    def noisy() -> Float64[np.ndarray, "d K"]:
      secret = clipped_gradient(
        rows, kernel, rule.clip_norm, loss=rule.loss, chosen=part
      )
      return release_gradient(secret, sigma, door.relation, door.source)

    released = door.let_out(
      GRADIENT_SUM,
      noisy,
      sigma,
      gradient_step(rule.clip_norm),
      clip_norm=rule.clip_norm,
      kernel=kernel,
      loss=rule.loss,
      max_norm=rule.max_norm,
    )
    return released / rule.batches.mean_size

  optimizer = OneStepOptimizer(
    name=rule.optimizer, learning_rate=rule.learning_rate
  )
  shape = (rule.feature_dim, rule.num_classes)
  kernel = descend(
    initial_kernel(rule.init, rule.init_scale, shape, rule.init_seed),
    (functools.partial(gradient, part) for part in chosen),
    optimizer.transformation(0.0),
    rule.ema_decay,
  )
  if rule.max_norm is None:
    kernel = unit_scale(kernel)
  bias = rule.loss.bias if rule.max_norm else 0.0
  return LinearHead(
    kernel=kernel.astype(np.float32),
    bias=np.full(rule.num_classes, bias, np.float32),
  )
