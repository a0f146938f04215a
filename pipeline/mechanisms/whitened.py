"""Private whitening, then noisy steps."""

import dataclasses
from typing import Any, Self

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.heads.whitened import whitened
from oneshot_dp.linear_dp.heads.whitened.whitened import WhiteningRule
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.pipeline.mechanisms.mechanism import AS_STORED, UNIT_NORM


@dataclasses.dataclass(frozen=True, kw_only=True)
class Whitened:
  """Private whitening and several noisy steps.

  Attributes:
    rule: its settings.
  """

  KIND = "whitened"
  rule: WhiteningRule

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    fields = [field.name for field in dataclasses.fields(WhiteningRule)]
    return cls(rule=WhiteningRule(**{name: section[name] for name in fields}))

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanisms on the exact sum T and second moment M of"
      " the unit-norm rows, once each (but where the multiplier is null), and"
      " on sums F of clipped softmax gradients, num_steps times",
      "statistic": "T + round(noise) of mean_noise_multiplier, rint(M/B) +"
      " round(noise) of moment_noise_multiplier, and rint(F/step) +"
      " round(noise) of step_noise_multiplier for every step",
      "sensitivity": "B grid steps for T; B + (1 + 2^-10)*d for M/B; for a"
      " step, B + (1 + 2^-10)*sqrt(K*d) and the bound on F's float64 error;"
      " doubled for REPLACE_ONE. All together amount to one Gaussian mechanism"
      " of noise_multiplier",
      **dataclasses.asdict(self.rule),
      "input": UNIT_NORM if self.rule.centres else AS_STORED,
      "whitens": self.rule.whitens,
      "mean_noise_multiplier": self.rule.mean_noise_multiplier,
      "moment_noise_multiplier": self.rule.moment_noise_multiplier,
      "step_noise_multiplier": self.rule.step_noise_multiplier,
      "num_steps": self.rule.num_steps,
      "clip_norm": whitened.CLIP_NORM,
      "momentum": whitened.MOMENTUM,
      "ridge": self.rule.ridge,
      "learning_rate": self.rule.learning_rate,
      "grid_radius": GRID_RADIUS,
      "rows_per_unit": 1,
      "clipped": "row",
    }

  def sensitivity(self, relation: NeighboringRelation) -> float:
    """1: noise is stated in units of the sensitivity, in any relation."""
    del relation
    return 1.0

  def training(self) -> dict[str, Any]:
    """See `Mechanism`."""
    return {"head": self.KIND}

  def in_words(self, training: dict[str, Any]) -> str:
    """See `Mechanism`."""
    del training
    uses = {"centring": self.rule.centres, "whitening": self.rule.whitens}
    before = " and ".join(word for word in uses if uses[word])
    if before:
      before = f"private {before} of the unit-norm embeddings, then "
    return (
      f"{before}{self.rule.num_steps} full-batch steps of gradient descent with"
      " momentum from zero weights, gradients clipped to norm"
      f" {whitened.CLIP_NORM:g}"
    )
