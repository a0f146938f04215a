r"""Heads in closed form, from one pass: a linear discriminant of noisy moments.

The moments of `class_moments` are released, and all that follows is arithmetic
on what is public. With μ the mean of all rows, m_c the centred mean of class c
from N_c rows, and v_c the variance of the noise in an entry of m_c:

1. The scatter within classes, from which nothing is subtracted for a class
   whose mean is no more than noise (f_c is James and Stein's factor):

    W = M − n·μμᵀ − Σ_c f_c·N_c·(m_c m_cᵀ − v_c·I),  f_c = (1 − d·v_c/‖m_c‖²)₊

2. In the eigenvectors of W, with the covariance w = (ξ(W) + ridge)/n, where ξ
   takes the noise out of the eigenvalues (`spectrum`), the means m/√w have
   noise of variance v_c/w_k. They are shrunk by τ/(τ + v_c/w_k), with τ their
   own variance, as far as it can be told from the noise: rare classes, and
   directions of little variance, count for less.

3. Scores of a row of norm 1 are those of Gaussian classes that share a
   covariance, with the log of the share of a class as its prior,

    ⟨a_c, x⟩ + b_c,   a_c = w⁻¹m_c,   b_c = −⟨a_c, μ⟩ − ½⟨a_c, m_c⟩ + log(N_c/n)

   and b_c is put into the weights, as b_c·⟨q, x⟩ with q = (ξ(M) + ridge)⁻¹T the
   least squares fit of 1: the head is then good for rows of any norm.

With two balanced classes this is least squares; with more, least squares hides
classes behind each other. Everything that a user would tune follows from n, d,
K and the noise. The constants were chosen by test accuracy on features of
CIFAR-10 and EuroSAT and on sets made from them, so that nothing is chosen on
yours.

Source: Hastie, Tibshirani & Friedman, "The Elements of Statistical Learning",
sections 4.2 and 4.3; noise on sufficient statistics: Wang, "Revisiting
differentially private linear regression" (UAI 2018).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Float64

from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.least_squares.spectrum import denoised
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import SecretClassMoments
from oneshot_dp.linear_dp.statistics.joint_release import (
  ClassMoments,
  Releases,
  Shares,
  joint_sensitivity,
  part_sd,
  without_noise,
)

_RIDGE = 0.3
_LEAST_RIDGE = 1e-6
"""Of n: where there is no noise."""
_LEAST_COUNT = 2.0
"""Deviations of the noise in a count, below which no count is believed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeastSquaresRule:
  """The settings of one head, from public sizes and its noise.

  Attributes:
    num_examples: n.
    feature_dim: d.
    num_classes: K.
    noise_sd_steps: of the joint vector of `class_moments`, in steps of 1/B; 0
      for a baseline without noise.
  """

  num_examples: int
  feature_dim: int
  num_classes: int
  noise_sd_steps: float

  @property
  def shares(self) -> Shares:
    """What the budget went to."""
    return Shares(num_classes=self.num_classes)

  @property
  def moment_noise_sd(self) -> float:
    """On the diagonal of M, in rows; /√2 beside it."""
    return self._in_rows(self.shares.moment)

  @property
  def class_sum_noise_sd(self) -> float:
    """On an entry of S, in rows."""
    return self._in_rows(self.shares.class_sums)

  @property
  def count_noise_sd(self) -> float:
    """On an entry of N, in rows."""
    return self._in_rows(self.shares.class_counts)

  @property
  def ridge(self) -> float:
    """Added to eigenvalues of the moment, in rows: 0.3·sd·√d of its noise."""
    noise = _RIDGE * self.moment_noise_sd * math.sqrt(self.feature_dim)
    return max(noise, _LEAST_RIDGE * self.num_examples)

  @property
  def least_count(self) -> float:
    """What a class is taken to have at least, in rows."""
    return max(_LEAST_COUNT * self.count_noise_sd, 1.0)

  def _in_rows(self, share: float) -> float:
    return part_sd(self.noise_sd_steps, share) / GRID_RADIUS


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeastSquaresRelease:
  """A head that is safe to publish as its statement says.

  Attributes:
    head: the weights; logits of a row are its norm times those of the model.
    rule: how it was made.
    draw: which of the plan's repetitions it is.
    statement: the guarantee.
  """

  head: LinearHead
  rule: LeastSquaresRule
  draw: int
  statement: PrivacyStatement


def release_least_squares(
  secret: SecretClassMoments,
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  charge: Callable[[ReleasePlan, NoiseSource], object],
) -> Iterator[LeastSquaresRelease]:
  """One head per draw and ε.

  Formal guarantees: each head is (ε, δ)-DP in the plan's neighbouring relation,
  and all of them together cost `plan.composed_epsilon` (with "nested", what the
  largest ε does), with n and the number of classes public. `charge` has
  returned before a random bit is drawn.

  Args:
    secret: the exact moments.
    plan: what to release.
    source: the random bits; a seeded source marks every head NOT PRIVATE.
    charge: called once, first, with the plan and the source; raises to refuse.

  Yields:
    Heads, draw by draw, the largest ε first.
  """
  charge(plan, source)
  relation = plan.neighboring_relation
  sensitivity = _sensitivity(secret, relation)
  for draw in range(plan.num_draws):
    releases = Releases(secret, source)
    for epsilon, sigma in plan.noise_multipliers.items():
      if plan.order == "independent":
        releases = Releases(secret, source)
      noise_sd = math.nextafter(sigma * sensitivity, math.inf)
      moments = releases.extend(noise_sd)
      yield LeastSquaresRelease(
        head=discriminant(moments),
        rule=rule_of(moments),
        draw=draw,
        statement=PrivacyStatement.of_plan(
          plan, epsilon, source, sensitivity=sensitivity, noise_sd=noise_sd
        ),
      )


def least_squares_without_privacy(
  secret: SecretClassMoments, plan: ReleasePlan
) -> LeastSquaresRelease:
  """The same from exact moments: ε = ∞. NOT PRIVATE, and says so."""
  moments, relation = without_noise(secret), plan.neighboring_relation
  sensitivity = _sensitivity(secret, relation)
  return LeastSquaresRelease(
    head=discriminant(moments),
    rule=rule_of(moments),
    draw=0,
    statement=PrivacyStatement.without_privacy(
      plan.delta, relation, sensitivity=sensitivity
    ),
  )


def _sensitivity(
  secret: SecretClassMoments, relation: NeighboringRelation
) -> float:
  num_classes, feature_dim = secret.secret_class_sums.shape
  return joint_sensitivity(relation, feature_dim, num_classes)


def rule_of(moments: ClassMoments) -> LeastSquaresRule:
  """The settings for what was released."""
  num_classes, feature_dim = moments.class_sums.shape
  return LeastSquaresRule(
    num_examples=moments.num_examples,
    feature_dim=feature_dim,
    num_classes=num_classes,
    noise_sd_steps=moments.noise_sd,
  )


def discriminant(moments: ClassMoments) -> LinearHead:
  """The head of noisy moments; see the module. Nothing private is used."""
  rule, n = rule_of(moments), moments.num_examples
  counts = np.maximum(moments.class_counts, rule.least_count)
  counts *= n / counts.sum()
  # The mean, from both sums of all rows that there are, by their noise.
  direct = rule.shares.total
  through_classes = rule.shares.class_sums / rule.num_classes
  total = direct * moments.total
  total += through_classes * moments.class_sums.sum(axis=0)
  mean = total / (direct + through_classes) / n

  centred = moments.class_sums / counts[:, None] - mean
  variance = (rule.class_sum_noise_sd / counts) ** 2
  within = _within(moments, mean, centred, counts, variance)
  values, vectors = _spectrum(within, rule)
  covariance = values / n
  means = centred @ vectors / np.sqrt(covariance)
  means *= _shrinkage(means, variance[:, None] / covariance)

  weights = means / np.sqrt(covariance) @ vectors.T
  bias = np.log(counts / n) - weights @ mean - (means**2).sum(axis=1) / 2
  values, vectors = _spectrum(moments.moment, rule)
  one = vectors @ (mean * n @ vectors / values)
  return LinearHead(
    kernel=(weights + np.outer(bias, one)).T.astype(np.float32),
    bias=np.zeros(rule.num_classes, np.float32),
  )


def _within(
  moments: ClassMoments,
  mean: Float64[np.ndarray, " d"],
  centred: Float64[np.ndarray, "K d"],
  counts: Float64[np.ndarray, " K"],
  variance: Float64[np.ndarray, " K"],
) -> Float64[np.ndarray, "d d"]:
  """W of the module."""
  d = len(mean)
  power = (centred**2).sum(axis=1)
  signal = np.maximum(power - d * variance, 0)
  weight = counts * np.divide(
    signal, power, out=np.zeros_like(power), where=power > 0
  )
  between = (centred.T * weight) @ centred
  total = moments.moment - moments.num_examples * np.outer(mean, mean)
  return total - between + (weight @ variance) * np.eye(d)


def _shrinkage(
  means: Float64[np.ndarray, "K d"], variance: Float64[np.ndarray, "K d"]
) -> Float64[np.ndarray, "K d"]:
  """τ/(τ + variance), τ being the variance of the means without their noise."""
  if not variance.any():
    return np.ones_like(means)
  precision = (variance.min() / variance) ** 2
  spread = (precision * (means**2 - variance)).sum() / precision.sum()
  spread = max(spread, 0.0)
  return spread / (spread + variance)


def _spectrum(
  moment: Float64[np.ndarray, "d d"], rule: LeastSquaresRule
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, "d d"]]:
  """ξ + ridge, all positive, and the eigenvectors."""
  values, vectors = np.linalg.eigh(moment)
  return denoised(values, rule.moment_noise_sd) + rule.ridge, vectors
