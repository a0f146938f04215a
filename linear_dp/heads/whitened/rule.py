"""The settings of a whitened head: how it is trained, what is said of it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from oneshot_dp.linear_dp.heads.whitened.budget import (
  BEFORE,
  COMPARES,
  FROM_START,
  ROWS_TO_WHITEN,
  UNITS,
  BudgetRule,
)
from oneshot_dp.linear_dp.public_start import SETTING
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.trainer import (
  AS_STORED,
  MEANS,
  ROWS_ARE_CLIPPED,
  UNIT_NORM,
)

_RIDGE = 2.5
_LEAST_RIDGE = 1e-6
"""A part of n, where there is no noise."""
_START_NORM = 10.0
_ROWS_TO_LEAVE_START = 50.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhiteningRule(BudgetRule):
  """The settings of one head, from public sizes and its noise multiplier."""

  KIND = "whitened"

  @property
  def ridge(self) -> float:
    """What is added to the eigenvalues of the moment, in rows."""
    spread = math.sqrt(self.num_classes * self.feature_dim)
    noise = _RIDGE * self.own_noise_multiplier * spread
    return max(noise, _LEAST_RIDGE * self.size)

  @property
  def learning_rate(self) -> float:
    r"""lr of the mean gradient.

        lr = b·n·(1 − momentum)/(T·C·max(σ', 1)),   σ' = σ/√(share of the steps)

    At this lr the noise alone, walking freely, would move a logit by about b =
    1 + log₁₀(K)/2; without much noise it stops growing. What goes on from a
    head is moved by the share of the budget that is new.
    """
    walk = 1 + math.log10(self.num_classes) / 2
    own = self.own_noise_multiplier
    noise = max(own, 1.0) / math.sqrt(self.step_share)
    per_step = (1 - self.momentum) / (self.num_steps * self.clip_norm)
    new = (self.noise_multiplier / own) ** 2 if self.goes_on else 1.0
    return new * walk * self.size * per_step / noise

  @property
  def start_norm(self) -> float:
    """Mean norm of the columns of a start: how sure it is taken to be.

    It is 10·√max(1, 50·K·σ/n): the fewer rows, the less do steps, whose noise
    does not depend on them, turn it.
    """
    noise = _ROWS_TO_LEAVE_START * self.num_classes * self.noise_multiplier
    return _START_NORM * math.sqrt(max(1.0, noise / self.size))

  def training(self) -> dict[str, Any]:
    balanced = {"balanced": True} if self.balances else {}
    start = {SETTING: self.start_sha256} if self.start_sha256 else {}
    return super().training() | balanced | start

  def as_json(self) -> dict[str, Any]:
    settings = dataclasses.asdict(self)
    del settings["clipped"]
    stated = {
      "kind": self.KIND,
      "name": "Gaussian mechanisms on the exact sum T and second moment M of"
      " the unit-norm rows, once each (but where the multiplier is null), and"
      " on sums F of clipped softmax gradients, num_steps times",
      "statistic": "T + round(noise) of mean_noise_multiplier, rint(M/B) +"
      " round(noise) of moment_noise_multiplier, and rint(F/R) +"
      " round(noise) of step_noise_multiplier for every step",
      "sensitivity": "B grid steps for T; B + (1 + 2^-10)*d for M/B; for a"
      " step, B + sqrt(K*d), as F is of integers; doubled for REPLACE_ONE. All"
      " together amount to one Gaussian mechanism of noise_multiplier",
      **settings,
      "input": UNIT_NORM if self.centres else AS_STORED,
      "whitens": self.whitens,
      "mean_noise_multiplier": self.mean_noise_multiplier,
      "moment_noise_multiplier": self.moment_noise_multiplier,
      "step_noise_multiplier": self.step_noise_multiplier,
      "ridge": self.ridge,
      "learning_rate": self.learning_rate,
      "grid_radius": GRID_RADIUS,
      **ROWS_ARE_CLIPPED,
      "clipped": self.clipped,
    }
    if self.clipped == MEANS:
      stated |= {
        "units": "what all units weigh, once, as their number + round(noise) of"
        " unit_noise_multiplier, of sensitivity 1 (2 for REPLACE_ONE)",
        "unit_share": self.unit_share,
        "unit_noise_multiplier": self.unit_noise_multiplier,
      }
    else:
      del stated[UNITS]
    if not self.start_sha256:
      del stated[SETTING]
    if self.compares:
      stated |= {
        "comparison": "once, how many more rows than where steps began are"
        f" right at {FROM_START} of their way, + round(noise) of"
        " compared_noise_multiplier, of sensitivity sqrt(2), or twice that",
        "compared_share": self.compared_share,
        "compared_noise_multiplier": self.compared_noise_multiplier,
      }
    else:
      del stated[COMPARES]
    if self.goes_on:
      stated |= {
        "before": "steps begin at the head of before_noise_multiplier, whose"
        " releases count as this one's: with them, those of"
        " own_noise_multiplier here amount to noise_multiplier; its map of the"
        " rows is kept where a new one would have more noise",
        "own_noise_multiplier": self.own_noise_multiplier,
      }
    else:
      del stated[BEFORE]
    if not self.balances:
      del stated["balances"]
      return stated
    return stated | {
      "counts": "the rows N of each class, once, as N + round(noise) of"
      " count_noise_multiplier, of sensitivity 1 (2 for REPLACE_ONE)",
      "count_share": self.count_share,
      "count_noise_multiplier": self.count_noise_multiplier,
    }

  def in_words(self, training: Mapping[str, Any]) -> str:
    uses = {"centring": self.centres, "whitening": self.whitens}
    before = " and ".join(word for word in uses if uses[word])
    balanced = ""
    if self.balances:
      balanced = ", logits adjusted by noisy class counts for balanced accuracy"
    start = "zero weights"
    if self.start_sha256:
      start = f"public weights (SHA-256 {self.start_sha256})"
    if self.goes_on:
      start = "the head of the next smaller epsilon"
    if self.compares:
      start += ", kept unless a noisy count of right answers favours the steps"
    if before:
      before = f"private {before} of the unit-norm embeddings, then "
    return (
      f"{before}{self.num_steps} full-batch steps of gradient descent with"
      f" momentum from {start}, gradients clipped to norm"
      f" {self.clip_norm:g}{balanced}"
    )

  def why(self) -> str:
    """What follows from n, d, K and the noise, and why, for people."""
    if self.clipped == MEANS:
      return (
        f"whitened, if a noisy count finds {self.least_to_whiten:.0f} units or"
        f" more; {self.num_steps} steps"
      )
    rows = self.num_examples / (self.num_classes * self.own_noise_multiplier)
    enough, than = ("enough", ">=") if self.whitens else ("too few", "<")
    return (
      f"{enough} rows for their noise to be whitened, n/(K*sigma) ="
      f" {rows:.0f} {than} {ROWS_TO_WHITEN:.0f}; {self.num_steps} steps of"
      f" learning rate {self.learning_rate:.3g}"
    )
