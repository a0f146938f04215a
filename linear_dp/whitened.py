r"""Heads by private whitening: a noisy second moment, then noisy steps.

1. The second moment of the unit-norm rows is released once, and its inverse
   square root A (with a ridge of the size of the noise) becomes public.
2. Rows are mapped by A and brought to unit norm again, which spreads what tells
   classes apart over all directions instead of the few that all images share.
3. T full-batch steps of gradient descent with momentum follow, each on a
   clipped and noised gradient of the softmax cross-entropy, from zero weights.

Everything that a user would tune follows from n, d, K and the noise, none of
which is private. The constants were chosen by test accuracy on features of
CIFAR-10 and EuroSAT and on synthetic ones, so that nothing is chosen on yours.

Source: private whitening and few full-batch steps are near Mehta et al.,
"Differentially Private Image Classification from Features" (TMLR 2023, DP-FC);
composition of Gaussians: Dong, Roth & Su (2022).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
import optax
from dp_accounting import NeighboringRelation
from jaxtyping import Float64

from linear_dp.descent import descend, unit_scale
from linear_dp.gradient_sum import (
  PublicMap,
  clipped_gradient,
  release_gradient,
)
from linear_dp.head import LinearHead
from linear_dp.noise_source import NoiseSource
from linear_dp.second_moment import (
  SecretMoment,
  moment_sensitivity,
  release_moment,
)
from linear_dp.secret_rows import SecretRows

MOMENT_SHARE = 0.03
"""Of the budget (of 1/σ²) for the second moment; the rest is for the steps."""
CLIP_NORM = 0.15
"""C, of a gradient that could be √2 long: rows that are nearly right already
matter as much as those that are quite wrong."""
MOMENTUM = 0.9
_RIDGE = 8.0
_LEAST_RIDGE = 1e-6
"""Of n: where there is no noise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhiteningRule:
  r"""The settings of one head, from public sizes and its noise multiplier.

  Formal guarantees: one Gaussian mechanism of noise multiplier
  `moment_noise_multiplier` and `num_steps` of `step_noise_multiplier`, however
  each depends on the results of those before, are together as private as one of
  noise multiplier σ:  σ_m⁻² + T·σ_t⁻² ≤ σ⁻².

  Attributes:
    num_examples: n.
    feature_dim: d.
    num_classes: K.
    noise_multiplier: σ of the whole head; 0 for a baseline without noise.
  """

  num_examples: int
  feature_dim: int
  num_classes: int
  noise_multiplier: float

  @property
  def num_steps(self) -> int:
    """T: more where there is little noise to be averaged away."""
    return 60 if self.noise_multiplier > 1 else 100

  @property
  def moment_noise_multiplier(self) -> float:
    """σ_m = σ/√share, rounded up."""
    return self.noise_multiplier / math.sqrt(MOMENT_SHARE) * (1 + 2**-50)

  @property
  def step_noise_multiplier(self) -> float:
    """σ_t = σ·√(T/(1 − share)), rounded up."""
    of_steps = self.num_steps / (1 - MOMENT_SHARE)
    return self.noise_multiplier * math.sqrt(of_steps) * (1 + 2**-50)

  @property
  def ridge(self) -> float:
    """What is added to the eigenvalues of the moment, in rows."""
    noise = _RIDGE * self.noise_multiplier * math.sqrt(self.feature_dim)
    return max(noise, _LEAST_RIDGE * self.num_examples)

  @property
  def learning_rate(self) -> float:
    r"""lr of the mean gradient.

        lr = b·n·(1 − momentum)/(T·C·max(σ', 1)),   σ' = σ/√(1 − share)

    At this lr the noise alone, walking freely, would move a logit by about b =
    1 + log₁₀(K)/2; without much noise it stops growing.
    """
    walk = 1 + math.log10(self.num_classes) / 2
    noise = max(self.noise_multiplier, 1.0) / math.sqrt(1 - MOMENT_SHARE)
    per_step = (1 - MOMENTUM) / (self.num_steps * CLIP_NORM)
    return walk * self.num_examples * per_step / noise


def train(
  rows: SecretRows,
  moment: SecretMoment,
  rule: WhiteningRule,
  relation: NeighboringRelation,
  source: NoiseSource | None,
  on_step: Callable[[], object] = lambda: None,
) -> LinearHead:
  """Trains one head.

  Formal guarantees: see `WhiteningRule`, with n and the number of classes
  public. Logits are good for ranking only, as the model is of rows that were
  normalised, mapped and normalised again, and the head of rows as they are.

  Args:
    rows: the private rows.
    moment: their exact second moment.
    rule: the settings.
    relation: which data sets count as neighbours.
    source: the random bits; None adds no noise, which is NOT PRIVATE.
    on_step: called after each step (progress).

  Returns:
    The head.
  """
  sensitivity = moment_sensitivity(relation, rule.feature_dim)
  noise_sd = rule.moment_noise_multiplier * sensitivity * (1 + 2**-50)
  noisy = release_moment(moment, noise_sd, source)
  public_map = PublicMap.of(inverse_square_root(noisy, rule.ridge))

  def gradient(
    kernel: Float64[np.ndarray, "d K"],
  ) -> Float64[np.ndarray, "d K"]:
    secret = clipped_gradient(rows, public_map, kernel, CLIP_NORM)
    released = release_gradient(
      secret, rule.step_noise_multiplier, relation, source
    )
    on_step()
    return released / rule.num_examples

  kernel = descend(
    np.zeros((rule.feature_dim, rule.num_classes)),
    itertools.repeat(gradient, rule.num_steps),
    optax.sgd(rule.learning_rate, momentum=MOMENTUM),
  )
  return LinearHead(
    kernel=unit_scale(public_map.matrix @ kernel).astype(np.float32),
    bias=np.zeros(rule.num_classes, np.float32),
  )


def inverse_square_root(
  moment: Float64[np.ndarray, "d d"], ridge: float
) -> Float64[np.ndarray, "d d"]:
  """(max(M, 0) + ridge)^(−1/2) of a symmetric matrix."""
  values, vectors = np.linalg.eigh(moment)
  return (vectors / np.sqrt(np.maximum(values, 0) + ridge)) @ vectors.T
