"""Least squares from noisy moments."""

import dataclasses
from typing import Any, Self

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.heads.least_squares.least_squares import (
  LeastSquaresRule,
)
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.joint_release import joint_sensitivity


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeastSquares:
  """A linear discriminant of the noisy moments of the classes.

  Attributes:
    rule: its settings.
  """

  KIND = "least-squares"
  rule: LeastSquaresRule

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    fields = [field.name for field in dataclasses.fields(LeastSquaresRule)]
    rule = LeastSquaresRule(**{name: section[name] for name in fields})
    return cls(rule=rule)

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the second moment M, the class sums S,"
      " their total T and the class counts N of the unit-norm rows, jointly",
      "statistic": "(sqrt(s_M)*rint(M/B), sqrt(s_S)*S, sqrt(s_T)*T,"
      " sqrt(s_N)*B*N) on integers, released as each part +"
      " round(N(0, sd^2/share)); M symmetric, sd/sqrt(2) beside its diagonal",
      "sensitivity": "sqrt(s_M*(B + (1 + 2^-10)*d)^2 + (1 - s_M)*B^2) grid"
      " steps, doubled for REPLACE_ONE",
      **dataclasses.asdict(self.rule),
      "moment_share": self.rule.shares.moment,
      "class_sum_share": self.rule.shares.class_sums,
      "total_share": self.rule.shares.total,
      "class_count_share": self.rule.shares.class_counts,
      "ridge": self.rule.ridge,
      "least_count": self.rule.least_count,
      "grid_radius": GRID_RADIUS,
      "rows_per_unit": 1,
      "clipped": "row",
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In grid steps."""
    return joint_sensitivity(
      relation, self.rule.feature_dim, self.rule.num_classes
    )

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {"head": self.KIND}

  def in_words(self, training: dict[str, Any]) -> str:
    """See `Mechanism`."""
    del training
    return (
      "a linear discriminant, in closed form, from the noisy second moment,"
      " class sums and class counts of the unit-norm embeddings"
    )
