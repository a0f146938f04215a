"""The settings of a least-squares head, and what is said of them."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.joint_release import (
  ClassMoments,
  Shares,
  joint_sensitivity,
  part_sd,
)
from oneshot_dp.linear_dp.trainer import MEANS, ROW, ROWS_ARE_CLIPPED, Mechanism

_RIDGE = 0.3
_LEAST_RIDGE = 1e-6
"""A part of n, where there is no noise."""
_LEAST_COUNT = 2.0
"""Deviations of the noise in a count, below which no count is believed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeastSquaresRule(Mechanism):
  """The settings of one head, from public sizes and its noise.

  Attributes:
    num_examples, feature_dim, num_classes: n, d and K.
    noise_sd_steps: the noise on the joint vector of `joint_release`, in steps
      of 1/B; 0 for a baseline without noise.
    clipped: "row", or "mean" of units, whose number is that of all counts.
  """

  KIND = "least-squares"
  num_examples: int
  feature_dim: int
  num_classes: int
  noise_sd_steps: float
  clipped: str = ROW

  @property
  def shares(self) -> Shares:
    return Shares.of(self.num_classes)

  @property
  def moment_noise_sd(self) -> float:
    """On the diagonal of M, in rows; /√2 beside it."""
    return self._in_rows(self.shares.moment)

  @property
  def class_sum_noise_sd(self) -> float:
    """On an entry of S, in rows."""
    return self._in_rows(self.shares.class_sums)

  @property
  def ridge(self) -> float:
    """Added to eigenvalues of the moment, in rows: 0.3·sd·√d of its noise."""
    noise = _RIDGE * self.moment_noise_sd * math.sqrt(self.feature_dim)
    return max(noise, _LEAST_RIDGE * self.num_examples)

  @property
  def least_count(self) -> float:
    """What a class is taken to have at least, in rows."""
    return max(_LEAST_COUNT * self._in_rows(self.shares.class_counts), 1.0)

  def _in_rows(self, share: float) -> float:
    return part_sd(self.noise_sd_steps, share) / GRID_RADIUS

  @classmethod
  def of(cls, moments: ClassMoments) -> Self:
    """The settings for what was released."""
    num_classes, feature_dim = moments.class_sums.shape
    return cls(
      num_examples=moments.num_examples,
      feature_dim=feature_dim,
      num_classes=num_classes,
      noise_sd_steps=moments.noise_sd,
      clipped=MEANS if moments.has_units else ROW,
    )

  def as_json(self) -> dict[str, Any]:
    settings = dataclasses.asdict(self)
    del settings["clipped"]
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the second moment M, the class sums S,"
      " their total T and the class counts N of the unit-norm rows, jointly",
      "statistic": "(sqrt(s_M)*rint(M/B), sqrt(s_S)*S, sqrt(s_T)*T,"
      " sqrt(s_N)*B*N) on integers, released as each part +"
      " round(N(0, sd^2/share)); M symmetric, sd/sqrt(2) beside its diagonal",
      "sensitivity": "sqrt(s_M*(B + (1 + 2^-10)*d)^2 + (1 - s_M)*B^2) grid"
      " steps, doubled for REPLACE_ONE",
      **settings,
      "moment_share": self.shares.moment,
      "class_sum_share": self.shares.class_sums,
      "total_share": self.shares.total,
      "class_count_share": self.shares.class_counts,
      "ridge": self.ridge,
      "least_count": self.least_count,
      "grid_radius": GRID_RADIUS,
      **ROWS_ARE_CLIPPED,
      "clipped": self.clipped,
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In grid steps."""
    return joint_sensitivity(relation, self.feature_dim, self.num_classes)

  def in_words(self, training: Mapping[str, Any]) -> str:
    return (
      "a linear discriminant, in closed form, from the noisy second moment,"
      " class sums and class counts of the unit-norm embeddings"
    )
