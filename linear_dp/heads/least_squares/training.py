r"""Heads in closed form, from one pass: a linear discriminant of noisy moments.

The moments of `class_moments` are released, and all that follows is arithmetic
on what is public. With μ the mean of all rows, m_c the centred mean of class c
from N_c rows, and v_c the variance of the noise in an entry of m_c:

1. The scatter within classes, from which nothing is subtracted for a class
   whose mean is no more than noise (f_c is James and Stein's factor):

    W = M − n·μμᵀ − Σ_c f_c·N_c·(m_c m_cᵀ − v_c·I),  f_c = (1 − d·v_c/‖m_c‖²)₊

2. In the eigenvectors of W, with the covariance w = (ξ(W) + ridge)/n, where ξ
   takes the noise out of the eigenvalues (`denoised`), the means m/√w have
   noise of variance v_c/w_k. They are shrunk by τ/(τ + v_c/w_k), with τ their
   own variance, as far as it can be told from the noise: rare classes, and
   directions of little variance, count for less.

3. Scores of a row of norm 1 are those of Gaussian classes that share a
   covariance, with the log of the share of a class as its prior,

    ⟨a_c, x⟩ + b_c,   a_c = w⁻¹m_c,   b_c = −⟨a_c, μ⟩ − ½⟨a_c, m_c⟩ + log(N_c/n)

   and b_c is put into the weights, as b_c·⟨q, x⟩ with q = (ξ(M) + ridge)⁻¹T the
   least squares fit of 1: the head is then good for rows of any norm.

With two balanced classes this is least squares; with more, least squares hides
classes behind each other. The constants were chosen as those of `whitened`.

Source: Hastie, Tibshirani & Friedman, "The Elements of Statistical Learning",
sections 4.2 and 4.3; noise on sufficient statistics: Wang, "Revisiting
differentially private linear regression" (UAI 2018).
"""

import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64

from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.heads.least_squares.rule import LeastSquaresRule
from oneshot_dp.linear_dp.heads.own_noise import RowsTrainer
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.linear_dp.statistics.joint_release import (
  ClassMoments,
  Releases,
  Shares,
  joint_sensitivity,
  part_sd,
  without_noise,
)
from oneshot_dp.linear_dp.trainer import (
  Charging,
  OnRelease,
  Released,
  Resumable,
  TrainedHead,
  disk_of,
  unseen,
)


class LeastSquaresTrainer(RowsTrainer):
  """Logits of a row are its norm times those of the model.

  With "nested", all heads cost what the largest ε does.
  """

  methods = ("least-squares",)
  mechanism = LeastSquaresRule
  can_nest = True

  def read(self) -> None:
    self._moments = class_moments(self._rows)

  def resumes_by(self, plan: ReleasePlan) -> Resumable:
    d, num_classes = self._rows.feature_dim, self._rows.num_classes
    values = (d + num_classes + 1) * d + num_classes
    return Resumable(
      num_bytes=disk_of(plan.num_draws * len(plan.epsilons), values),
      settings={"training": self._config.settings()},
    )

  def release(
    self,
    plan: ReleasePlan,
    source: NoiseSource,
    charge: Charging,
    on_release: OnRelease = unseen,
  ) -> Iterator[TrainedHead]:
    charge(plan, source)
    sensitivity = self._sensitivity(plan)
    deviations = [
      math.nextafter(sigma * sensitivity, math.inf)
      for sigma in plan.noise_multipliers.values()
    ]
    count = plan.num_draws * len(deviations)
    with self._progress("releases", "release", count) as bar:
      for draw in range(plan.num_draws):
        make = functools.partial(self._noisy, plan, deviations, source)
        drawn = source.once("moments", make)
        for (epsilon, sigma), noise_sd, values in zip(
          plan.noise_multipliers.items(), deviations, drawn, strict=True
        ):
          statement = PrivacyStatement.of_plan(
            plan, epsilon, source, sensitivity=sensitivity, noise_sd=noise_sd
          )
          moments = ClassMoments.of_values(
            values,
            self._rows.feature_dim,
            num_examples=self._moments.num_examples,
            has_units=self._given.has_units,
            noise_sd=noise_sd,
          )
          for part in _parts(moments, sigma):
            on_release(part)
          rule = LeastSquaresRule.of(moments)
          yield self._trained(
            discriminant(moments), rule, statement, plan, draw
          )
          bar.update()

  def baseline(self, plan: ReleasePlan) -> TrainedHead:
    statement = PrivacyStatement.without_privacy(
      plan.delta,
      plan.neighboring_relation,
      sensitivity=self._sensitivity(plan),
    )
    moments = without_noise(self._moments)
    rule = LeastSquaresRule.of(moments)
    return self._trained(discriminant(moments), rule, statement, plan)

  def _noisy(
    self, plan: ReleasePlan, deviations: Sequence[float], source: NoiseSource
  ) -> Float64[np.ndarray, "epsilons values"]:
    """What a draw lets out: of every ε, which may share the noise of one."""
    releases = Releases(self._moments, source)
    drawn = []
    for i, noise_sd in enumerate(deviations):
      if i and plan.order == "independent":
        releases = Releases(self._moments, source)
      drawn.append(releases.extend(noise_sd).values)
    return np.stack(drawn)

  def _sensitivity(self, plan: ReleasePlan) -> float:
    return joint_sensitivity(
      plan.neighboring_relation, self._rows.feature_dim, self._rows.num_classes
    )


def _parts(moments: ClassMoments, sigma: float) -> Iterator[Released]:
  """All that was released together, part by part."""
  parts = {
    "second moment": moments.moment,
    "class sums": moments.class_sums,
    "total": moments.total,
    "class counts": moments.class_counts,
  }
  shares = Shares.of(len(moments.class_counts))
  for (name, value), share in zip(parts.items(), shares, strict=True):
    yield Released(
      name=name,
      value=value,
      noise_multiplier=part_sd(sigma, share),
      grid_step=1 / GRID_RADIUS,
    )


def discriminant(moments: ClassMoments) -> LinearHead:
  """The head of noisy moments: post-processing."""
  rule, n = LeastSquaresRule.of(moments), moments.size
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
  total = moments.moment - moments.size * np.outer(mean, mean)
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


def denoised(
  values: Float64[np.ndarray, " d"], noise_sd: float
) -> Float64[np.ndarray, " d"]:
  r"""Eigenvalues (ascending) of a symmetric matrix, as seen behind noise.

  Noise of deviation s on the diagonal and s/√2 beside it spreads the
  eigenvalues of M + noise by up to √2·s·√d, and turns its eigenvectors: the
  mean ⟨v, Mv⟩ along an eigenvector v of eigenvalue λ is not λ but, for large d,

      ξ(λ) = λ − s²·Σ_j (λ − λ_j)/((λ − λ_j)² + η²)

  over all eigenvalues λ_j, η → 0 smoothing the sum; made never negative and
  kept in order.

  Source: Bun, Allez, Bouchaud & Potters, "Rotational invariant estimator for
  general noisy matrices" (IEEE Trans. Inf. Theory 2016), equation for additive
  Gaussian noise.
  """
  if noise_sd == 0:
    return np.maximum(values, 0)
  smoothing = math.sqrt(2) * noise_sd
  gaps = values[:, None] - values
  drift = (gaps / (gaps**2 + smoothing**2)).sum(axis=1)
  return np.maximum.accumulate(np.maximum(values - noise_sd**2 * drift, 0))
