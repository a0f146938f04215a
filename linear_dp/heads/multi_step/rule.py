"""The settings of a multi-step head: what they cost, what is said of them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  InitName,
  OptimizerName,
  StepsConfig,
)
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.heads.multi_step.batches import Batches
from oneshot_dp.linear_dp.heads.own_noise import StepsRule
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.row_gradient import Loss
from oneshot_dp.linear_dp.trainer import ROW, ROWS_ARE_CLIPPED

MAX_NORM = 2.0**8
"""R, of rows that keep their norms."""
_MOMENTUM = 0.9
_BATCHES = {
  "full": "all rows are in every step: num_steps Gaussian mechanisms",
  "poisson": "every row is in a step with sampling_probability, by itself:"
  " Poisson subsampling",
  "partition": "every row is in one batch of each epoch, which it chooses by"
  " itself: one Gaussian mechanism for each epoch, by parallel composition."
  " Batches of a fixed size, accounted for as though they were Poisson samples,"
  " would have a smaller epsilon, which is not proven",
}


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
  LAMB and Adam divide by the size of the noise themselves: b/√T for Adam, whose
  steps are of that size in every weight, 0.6/√T for LAMB, a part of the weights
  that it changes; chosen as the constants of `whitened` were.
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
class MultiStepRule(StepsRule):
  """The settings of one head; all public.

  Formal guarantees: what `Batches` says, at the noise multiplier
  `step_noise_multiplier` for every step.

  Attributes:
    num_classes, feature_dim: K and d.
    noise_multiplier: σ of the plan: of one mechanism that costs as much as all
      steps; of a step where batches are Poisson samples; 0 without noise.
    clip_norm: C, the largest norm of a row's gradient.
    max_norm: R, of rows that keep their norm; None is for rows of norm 1.
    init, init_scale, init_seed: the first weights; see `initial_kernel`.
    ema_decay: the decay of averaged weights; None is the last ones.
    clipped: "row", or "mean" of units, which are in a batch as a row is.
  """

  KIND = "multi-step"
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
  clipped: str = ROW

  def __post_init__(self):
    if not (math.isfinite(self.init_scale) and self.init_scale >= 0):
      raise InputError(f"init_scale={self.init_scale} is not 0 or more.")
    if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
      raise InputError(f"ema_decay={self.ema_decay} is not in [0, 1).")

  @property
  def step_noise_multiplier(self) -> float:
    """σ_t, rounded up."""
    return self.batches.step_noise_multiplier(self.noise_multiplier)

  @property
  def num_steps(self) -> int:
    return self.batches.num_steps

  @property
  def sampling(self) -> PoissonSampling | None:
    return self.batches.poisson if self.batches.sampling == "poisson" else None

  def as_json(self) -> dict[str, Any]:
    batches, settings = self.batches, dataclasses.asdict(self)
    del settings["clipped"]
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the sum of clipped gradients of a batch,"
      " rounded to the grid, num_steps times",
      "statistic": "rint(F/R) + round(noise) of step_noise_multiplier for"
      " every step",
      "sensitivity": "B + sqrt(K*d) grid steps, as F is of integers; doubled"
      " for REPLACE_ONE. Noise is stated in units of it",
      "batches_in_words": _BATCHES[batches.sampling],
      **settings,
      "num_steps": self.num_steps,
      "sampling_probability": batches.probability,
      "step_noise_multiplier": self.step_noise_multiplier,
      "num_examples": batches.num_examples,
      "grid_radius": GRID_RADIUS,
      **ROWS_ARE_CLIPPED,
      "clipped": self.clipped,
    }

  def in_words(self, training: Mapping[str, Any]) -> str:
    batches = self.batches
    rows = "rows as they are" if self.max_norm else "rows of norm 1"
    of_rows = "full-batch steps"
    if batches.sampling != "full":
      of_rows = f"steps on about {batches.mean_size:.0f} rows each"
      of_rows += f" ({batches.sampling})"
    words = (
      f"{batches.num_steps} {of_rows} of {self.optimizer} from {self.init}"
      f" weights, {self.loss.name} loss, {rows}, gradients clipped to norm"
      f" {self.clip_norm:g}"
    )
    if self.ema_decay is not None:
      words += f", weights averaged (EMA {self.ema_decay:g})"
    return words


def make_rule(
  config: StepsConfig,
  *,
  num_examples: int,
  feature_dim: int,
  num_classes: int,
  noise_multiplier: float,
  clipped: str = ROW,
) -> MultiStepRule:
  """Settles what a config leaves to us, by public numbers alone."""
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
    clipped=clipped,
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
