r"""Heads by private centring and whitening, then noisy steps.

1. The mean m of the unit-norm rows is released once, and taken off every row:
   what all images share tells no classes apart.
2. Where there are enough rows for it, their second moment is released once,
   and the inverse square root A of their covariance (with a ridge of the size
   of the noise) becomes public. Rows are mapped by A and brought to unit norm,
   which spreads what tells classes apart over all directions instead of a few.
3. T full-batch steps of gradient descent with momentum follow, each on a
   clipped and noised gradient of the softmax cross-entropy, from zero weights.

Everything that a user would tune follows from n, d, K and the noise, none of
which is private. The constants were chosen by test accuracy on features of
CIFAR-10 and EuroSAT, of CIFAR-10 in several styles, and on synthetic ones, so
that nothing is chosen on yours.

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

from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.descent import descend, unit_scale
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import row_radius
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.class_moments import SecretClassMoments
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import (
  clipped_gradient,
  release_gradient,
)
from oneshot_dp.linear_dp.statistics.second_moment import (
  mean_sensitivity,
  moment_sensitivity,
  release_mean,
  release_moment,
)

MEAN_SHARE = 0.005
"""Of the budget (of 1/σ²) for the mean."""
MOMENT_SHARE = 0.03
"""Of the budget for the second moment; the rest is for the steps."""
ROWS_TO_WHITEN = 80.0
"""With fewer rows of a class than so many times σ, the noise in the gradients
does more harm in directions of little variance than these are worth."""
CLIP_NORM = 0.15
"""C, of a gradient that could be √2 long: rows that are nearly right already
matter as much as those that are quite wrong."""
MOMENTUM = 0.9
_RIDGE = 2.5
_LEAST_RIDGE = 1e-6
"""Of n: where there is no noise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhiteningRule:
  r"""The settings of one head, from public sizes and its noise multiplier.

  Formal guarantees: Gaussian mechanisms of noise multipliers
  `mean_noise_multiplier` and `moment_noise_multiplier` (where they are used),
  and `num_steps` of `step_noise_multiplier`, however each depends on the
  results of those before, are together as private as one of noise multiplier σ:
  σ_1⁻² + σ_2⁻² + T·σ_t⁻² ≤ σ⁻².

  Attributes:
    num_examples: n.
    feature_dim: d.
    num_classes: K.
    noise_multiplier: σ of the whole head; 0 for a baseline without noise.
    centres: whether the mean is released; not where public rows gave one.
  """

  num_examples: int
  feature_dim: int
  num_classes: int
  noise_multiplier: float
  centres: bool = True

  @classmethod
  def of(
    cls, rows: SecretRows, noise_multiplier: float, *, centres: bool = True
  ) -> "WhiteningRule":
    """The rule for rows, by their public sizes."""
    return cls(
      num_examples=rows.num_examples,
      feature_dim=rows.feature_dim,
      num_classes=rows.num_classes,
      noise_multiplier=noise_multiplier,
      centres=centres,
    )

  @property
  def whitens(self) -> bool:
    """Whether the moment is released: where n/(K·σ) is 80 or more."""
    noise = ROWS_TO_WHITEN * self.noise_multiplier
    return self.num_examples >= noise * self.num_classes

  @property
  def mean_share(self) -> float:
    """Of the budget, for the mean."""
    return MEAN_SHARE if self.centres else 0.0

  @property
  def moment_share(self) -> float:
    """Of the budget, for the second moment."""
    return MOMENT_SHARE if self.whitens else 0.0

  @property
  def step_share(self) -> float:
    """Of the budget, for all steps."""
    return 1 - self.mean_share - self.moment_share

  @property
  def num_steps(self) -> int:
    """T: more where there is little noise to be averaged away."""
    return 60 if self.noise_multiplier > 1 else 100

  @property
  def mean_noise_multiplier(self) -> float | None:
    """σ_1 = σ/√share, rounded up; None where there is no such release."""
    return self._of_share(self.mean_share)

  @property
  def moment_noise_multiplier(self) -> float | None:
    """σ_2 = σ/√share, rounded up; None where there is no such release."""
    return self._of_share(self.moment_share)

  @property
  def step_noise_multiplier(self) -> float:
    """σ_t = σ·√(T/share), rounded up."""
    of_steps = self.num_steps / self.step_share
    return self.noise_multiplier * math.sqrt(of_steps) * (1 + 2**-50)

  @property
  def ridge(self) -> float:
    """What is added to the eigenvalues of the moment, in rows."""
    spread = math.sqrt(self.num_classes * self.feature_dim)
    noise = _RIDGE * self.noise_multiplier * spread
    return max(noise, _LEAST_RIDGE * self.num_examples)

  @property
  def learning_rate(self) -> float:
    r"""lr of the mean gradient.

        lr = b·n·(1 − momentum)/(T·C·max(σ', 1)),   σ' = σ/√(share of the steps)

    At this lr the noise alone, walking freely, would move a logit by about b =
    1 + log₁₀(K)/2; without much noise it stops growing.
    """
    walk = 1 + math.log10(self.num_classes) / 2
    noise = max(self.noise_multiplier, 1.0) / math.sqrt(self.step_share)
    per_step = (1 - MOMENTUM) / (self.num_steps * CLIP_NORM)
    return walk * self.num_examples * per_step / noise

  def _of_share(self, share: float) -> float | None:
    if share == 0:
      return None
    return self.noise_multiplier / math.sqrt(share) * (1 + 2**-50)


def train(
  rows: SecretRows,
  moment: SecretClassMoments,
  rule: WhiteningRule,
  relation: NeighboringRelation,
  source: NoiseSource | None,
  on_step: Callable[[], object] = lambda: None,
) -> LinearHead:
  """Trains one head.

  Formal guarantees: see `WhiteningRule`, with n and the number of classes
  public. Logits are good for ranking only: the model is of rows that were
  normalised once more after the map.

  Args:
    rows: the private rows.
    moment: their exact moments.
    rule: the settings.
    relation: which data sets count as neighbours.
    source: the random bits; None adds no noise, which is NOT PRIVATE.
    on_step: called after each step (progress).

  Returns:
    The head; of embeddings at norm 1 where it centres.
  """
  released_map = _released_map(moment, rule, relation, source)

  def gradient(
    kernel: Float64[np.ndarray, "d K"],
  ) -> Float64[np.ndarray, "d K"]:
    secret = clipped_gradient(rows, released_map, kernel, CLIP_NORM)
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
  if released_map.matrix is not None:
    kernel = released_map.matrix @ kernel
  kernel = unit_scale(kernel)
  bias = np.zeros(rule.num_classes)
  if released_map.centre is not None:
    bias = -(released_map.centre / row_radius(rule.feature_dim)) @ kernel
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
) -> ReleasedMap:
  """Spends the budget of the mean and of the moment."""
  mean = matrix = None
  if rule.mean_noise_multiplier is not None:
    noise_sd = rule.mean_noise_multiplier * mean_sensitivity(relation)
    mean = release_mean(moment, noise_sd * (1 + 2**-50), source)
  if rule.moment_noise_multiplier is not None:
    sensitivity = moment_sensitivity(relation, rule.feature_dim)
    noise_sd = rule.moment_noise_multiplier * sensitivity
    noisy = release_moment(moment, noise_sd * (1 + 2**-50), source)
    if mean is not None:
      noisy = noisy - rule.num_examples * np.outer(mean, mean)
    matrix = inverse_square_root(noisy, rule.ridge)
  return ReleasedMap.of(matrix, mean)


def inverse_square_root(
  moment: Float64[np.ndarray, "d d"], ridge: float
) -> Float64[np.ndarray, "d d"]:
  """(max(M, 0) + ridge)^(−1/2) of a symmetric matrix."""
  values, vectors = np.linalg.eigh(moment)
  return (vectors / np.sqrt(np.maximum(values, 0) + ridge)) @ vectors.T
