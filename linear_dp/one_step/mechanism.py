"""One step along the noisy sum of clipped gradients, as a receipt states it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.trainer import Mechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneStep(Mechanism):
  """The paper's mechanism, told by its clipping.

  Attributes:
    grid: the clipping.
  """

  KIND = "one-step"
  grid: ClippedGradientGrid

  @classmethod
  def from_json(cls, section: Mapping[str, Any]) -> Self:
    """See `Mechanism`."""
    fields = [field.name for field in dataclasses.fields(ClippedGradientGrid)]
    return cls(
      grid=ClippedGradientGrid(**{name: section[name] for name in fields})
    )

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the integer sum of clipped first-step"
      " gradients, rounded to the grid",
      "statistic": "G = rint(p0*T) - S, released as G + round(N(0, sd^2))",
      "sensitivity": "(m*B*|r| + (1 + 2^-10)*sqrt(K*D)) grid steps, where m is"
      " rows_per_unit (1 where units are clipped), doubled for REPLACE_ONE",
      **dataclasses.asdict(self.grid),
      "residual_norm": self.grid.residual_norm,
      "grid_radius": GRID_RADIUS,
      "grid_step": self.grid.step,
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """In grid steps."""
    return self.grid.sensitivity(relation)

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    names = ("l2_clip_norm", "initial_bias", "train_bias")
    return {name: getattr(self.grid, name) for name in names}

  def in_words(self, training: Mapping[str, Any]) -> str:
    """See `Mechanism`."""
    return (
      f"one full-batch step of {training['head']} from zero weights and bias"
      f" {self.grid.initial_bias:g}, gradients clipped to norm"
      f" {self.grid.l2_clip_norm:g}"
    )
