"""Training heads of several steps, with every choice open."""

import math
from collections.abc import Callable

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, StepsConfig
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.multi_step import multi_step
from oneshot_dp.linear_dp.heads.multi_step.batches import Batches
from oneshot_dp.linear_dp.heads.multi_step.multi_step import (
  MAX_NORM,
  MultiStepRule,
  learning_rate,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.statistics.row_gradient import Loss
from oneshot_dp.pipeline.mechanisms import MultiStep
from oneshot_dp.pipeline.training.independent_training import IndependentTrainer
from oneshot_dp.pipeline.training.trainer import TrainingRows


class MultiStepTrainer(IndependentTrainer[MultiStepRule]):
  """See `IndependentTrainer`.

  Raises:
    InputError: settings that make no sense for so many rows.
  """

  def __init__(self, rows: TrainingRows, config: HeadConfig):
    steps = config.steps
    super().__init__(
      rows, config, max_norm=None if steps.unit_norm else MAX_NORM
    )
    self._rule(1.0)  # what it refuses
    platform = self._rows.mesh.devices.flat[0].platform
    if steps.sampling is not None and platform != "cpu":
      raise InputError(
        f"sampling={steps.sampling!r} needs sums that are the same in every"
        f" run, which a {platform} does not promise: train with"
        " JAX_PLATFORMS=cpu."
      )

  def read(self) -> None:
    """See `Trainer`."""
    for _ in self._rows.secret_chunks():
      pass

  def _rule(self, sigma: float) -> MultiStepRule:
    return make_rule(
      self._config.steps,
      num_examples=self._rows.num_examples,
      feature_dim=self._rows.feature_dim,
      num_classes=self._rows.num_classes,
      noise_multiplier=sigma,
    )

  def _num_steps(self, rule: MultiStepRule) -> int:
    return rule.batches.num_steps

  def _train(
    self,
    rule: MultiStepRule,
    relation: NeighboringRelation,
    source: NoiseSource | None,
    on_step: Callable[[], object],
  ) -> LinearHead:
    return multi_step.train(self._rows, rule, relation, source, on_step)

  def _mechanism(self, rule: MultiStepRule) -> MultiStep:
    return MultiStep(rule=rule)


def make_rule(
  config: StepsConfig,
  *,
  num_examples: int,
  feature_dim: int,
  num_classes: int,
  noise_multiplier: float,
) -> MultiStepRule:
  """Settles what a config leaves to us, by public numbers alone.

  Raises:
    InputError: settings that make no sense for so many rows.
  """
  batches = make_batches(config, num_examples, noise_multiplier)
  clip_norm = config.l2_clip_norm or (0.15 if config.unit_norm else 1.0)
  bias = config.initial_bias
  if bias is None:
    bias = (
      -math.log(max(num_classes - 1, 1)) if config.loss == "sigmoid" else 0.0
    )
  rate = config.learning_rate or learning_rate(
    config.optimizer,
    num_classes=num_classes,
    clip_norm=clip_norm,
    batches=batches,
    step_noise_multiplier=batches.step_noise_multiplier(noise_multiplier),
  )
  return MultiStepRule(
    num_classes=num_classes,
    feature_dim=feature_dim,
    noise_multiplier=noise_multiplier,
    optimizer=config.optimizer,
    learning_rate=rate,
    clip_norm=clip_norm,
    loss=Loss(name=config.loss, bias=bias),
    max_norm=None if config.unit_norm else MAX_NORM,
    init=config.init,
    init_scale=config.init_scale or 0.0,
    init_seed=config.init_seed,
    ema_decay=config.ema_decay,
    batches=batches,
  )


def make_batches(
  config: StepsConfig, num_examples: int, noise_multiplier: float
) -> Batches:
  """The steps of a head; with few passes over all rows where noise is high."""
  of_rule = 10
  if config.batch_size is None:
    of_rule = 60 if noise_multiplier > 1 else 100
  return Batches(
    sampling=config.sampling or "full",
    num_examples=num_examples,
    batch_size=config.batch_size or num_examples,
    epochs=config.epochs or of_rule,
  )


def planned_sampling(
  config: HeadConfig, num_examples: int
) -> PoissonSampling | None:
  """What a plan has to know of a head's batches."""
  if config.head != "multi-step" or config.steps.sampling != "poisson":
    return None
  return make_batches(config.steps, num_examples, 0.0).poisson
