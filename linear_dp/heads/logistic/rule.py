"""The logistic probe, without privacy, as a receipt states it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from oneshot_dp.linear_dp.trainer import UNCLIPPED, Mechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logistic(Mechanism):
  """The logistic probe, which no noise protects: NOT PRIVATE."""

  KIND = "logistic"
  is_noisy = False
  num_examples: int
  feature_dim: int
  num_classes: int

  @property
  def l2_penalty(self) -> float:
    """λ."""
    return 1 / self.num_examples

  def as_json(self) -> dict[str, Any]:
    return {
      "kind": self.KIND,
      "name": "none: multinomial logistic regression on the rows themselves",
      **dataclasses.asdict(self),
      **self.training(),
      "rows_per_unit": 1,
      "clipped": UNCLIPPED,
    }

  def training(self) -> dict[str, Any]:
    return {"head": self.KIND, "l2_penalty": self.l2_penalty}

  def in_words(self, training: Mapping[str, Any]) -> str:
    return "logistic regression on standardised embeddings, without privacy"
