"""Several noisy steps, with every choice open."""

import dataclasses
from typing import Any, Self

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.heads.multi_step.batches import Batches
from oneshot_dp.linear_dp.heads.multi_step.multi_step import MultiStepRule
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.row_gradient import Loss

_BATCHES = {
  "full": "all rows are in every step: num_steps Gaussian mechanisms",
  "poisson": "every row is in a step with sampling_probability, by itself:"
  " Poisson subsampling",
  "partition": "every row is in one batch of each epoch, which it chooses by"
  " itself: one Gaussian mechanism for each epoch, by parallel composition."
  " Batches of a fixed size, accounted for as though they were Poisson samples,"
  " would have a smaller epsilon, which is not proven",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiStep:
  """Noisy steps from public weights.

  Attributes:
    rule: the settings.
  """

  KIND = "multi-step"
  rule: MultiStepRule

  @classmethod
  def from_json(cls, section: dict[str, Any]) -> Self:
    """Reads the parameters."""
    names = [field.name for field in dataclasses.fields(MultiStepRule)]
    parameters = {name: section[name] for name in names}
    parameters["loss"] = Loss(**section["loss"])
    parameters["batches"] = Batches(**section["batches"])
    return cls(rule=MultiStepRule(**parameters))

  def as_json(self) -> dict[str, Any]:
    """See `Mechanism`."""
    batches = self.rule.batches
    return {
      "kind": self.KIND,
      "name": "Gaussian mechanism on the sum of clipped gradients of a batch,"
      " rounded to the grid, num_steps times",
      "statistic": "rint(F/step) + round(noise) of step_noise_multiplier for"
      " every step",
      "sensitivity": "B + (1 + 2^-10)*sqrt(K*d) grid steps and the bound on the"
      " float64 error of F; doubled for REPLACE_ONE. Noise is stated in units"
      " of it",
      "batches_in_words": _BATCHES[batches.sampling],
      **dataclasses.asdict(self.rule),
      "num_steps": batches.num_steps,
      "sampling_probability": batches.probability,
      "step_noise_multiplier": self.rule.step_noise_multiplier,
      "num_examples": batches.num_examples,
      "grid_radius": GRID_RADIUS,
      "rows_per_unit": 1,
      "clipped": "row",
    }

  @property
  def sampling(self) -> PoissonSampling | None:
    """What the noise multiplier is about, where batches are Poisson samples."""
    batches = self.rule.batches
    return batches.poisson if batches.sampling == "poisson" else None

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
    rule, batches = self.rule, self.rule.batches
    rows = "rows as they are" if rule.max_norm else "rows of norm 1"
    of_rows = "full-batch steps"
    if batches.sampling != "full":
      of_rows = f"steps on about {batches.mean_size:.0f} rows each"
      of_rows += f" ({batches.sampling})"
    words = (
      f"{batches.num_steps} {of_rows} of {rule.optimizer} from {rule.init}"
      f" weights, {rule.loss.name} loss, {rows}, gradients clipped to norm"
      f" {rule.clip_norm:g}"
    )
    if rule.ema_decay is not None:
      words += f", weights averaged (EMA {rule.ema_decay:g})"
    return words
