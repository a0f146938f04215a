"""The logistic probe, without privacy."""

import dataclasses
from typing import Any, Self

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.heads.logistic import logistic
from oneshot_dp.pipeline.mechanisms.mechanism import UNCLIPPED


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logistic:
  """The logistic probe, which no noise protects: NOT PRIVATE.

  Attributes:
    num_examples: n.
    feature_dim: d.
    num_classes: K.
  """

  KIND = "logistic"
  num_examples: int
  feature_dim: int
  num_classes: int

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    fields = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: section[name] for name in fields})

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "none: multinomial logistic regression on the rows themselves",
      **dataclasses.asdict(self),
      **self.training(),
      "rows_per_unit": 1,
      "clipped": UNCLIPPED,
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """Of nothing that is released with noise."""
    del relation
    return 1.0

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "head": self.KIND,
      "l2_penalty": logistic.l2_penalty(self.num_examples),
    }

  def in_words(self, training: dict[str, Any]) -> str:
    """See `Mechanism`."""
    del training
    return "logistic regression on standardised embeddings, without privacy"
