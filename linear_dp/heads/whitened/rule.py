"""The settings of a whitened head: what they cost, and what is said of them."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Self

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.heads.own_noise import StepsRule
from oneshot_dp.linear_dp.public_start import SETTING
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.trainer import (
  AS_STORED,
  MEANS,
  ROW,
  ROWS_ARE_CLIPPED,
  UNIT_NORM,
)

MEAN_SHARE = 0.005
"""The mean's part of the budget (of 1/σ²)."""
UNIT_SHARE = 0.005
"""That of the number of privacy units, where these may have many rows."""
COUNT_SHARE = 0.02
"""The class counts' part, of heads for classes of very different sizes."""
BALANCED_CLIP_NORM = 0.3
"""Theirs: rows of small classes are far off for long, and matter more."""
ROWS_TO_WHITEN = 80.0
"""With fewer rows of a class than so many times σ, the noise in the gradients
does more harm in directions of little variance than these are worth."""
_RIDGE = 2.5
_LEAST_RIDGE = 1e-6
"""A part of n, where there is no noise."""
_START_NORM = 10.0
_ROWS_TO_LEAVE_START = 50.0
_UNITS, _BEFORE = "noisy_units", "before_noise_multiplier"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhiteningRule(StepsRule):
  r"""The settings of one head, from public sizes and its noise multiplier.

  Formal guarantees: Gaussian mechanisms of noise multipliers
  `mean_noise_multiplier` and `moment_noise_multiplier` (where they are used),
  and `num_steps` of `step_noise_multiplier`, however each depends on the
  results of those before, are together as private as one of noise multiplier σ:
  σ_1⁻² + σ_2⁻² + T·σ_t⁻² ≤ σ⁻²; class counts, if released, are one more.

  Attributes:
    num_examples, feature_dim, num_classes: n, d and K.
    noise_multiplier: σ of the whole head; 0 for a baseline without noise.
    centres: whether the mean is released; not where public rows gave one, nor
      from a start.
    balances: whether the class counts are, of which the steps learn nothing
      more: the log of their shares is added to the logits of rows trained on.
    moment_budget: the second moment's part of the budget, where it is released;
      the rest is for the steps.
    num_steps: T; with the pass for mean and moment, 20 over the rows.
    clip_norm: C, of a gradient that could be √2 long: rows that are nearly
      right already matter as much as those that are quite wrong.
    momentum: of the steps.
    start_sha256: of the public weights to start from; empty for zero weights.
    clipped: "row", or "mean" of units, which are counted with noise first.
    noisy_units: what came out, for all that rests on how many there are; 0
      before.
    before_noise_multiplier: σ of the head of the next smaller ε of a nested
      sweep, where steps begin; its releases are a part of this one's. 0 if
      there is none.
  """

  KIND = "whitened"
  num_examples: int
  feature_dim: int
  num_classes: int
  noise_multiplier: float
  centres: bool = True
  balances: bool = False
  moment_budget: float = 0.06
  num_steps: int = 19
  clip_norm: float = 0.03
  momentum: float = 0.5
  start_sha256: str = ""
  clipped: str = ROW
  noisy_units: int = 0
  before_noise_multiplier: float = 0.0

  @classmethod
  def from_json(cls, section: Mapping[str, Any]) -> Self:
    # Receipts of other heads, and of before, do not say it.
    earlier = {"balances": False, SETTING: "", _UNITS: 0, _BEFORE: 0.0}
    return super().from_json({**earlier, **section})

  def __post_init__(self):
    before = self.before_noise_multiplier
    # A receipt may say anything.
    if self.num_steps < 1 or not (
      0 < self.moment_budget < 1 - MEAN_SHARE
      and 0 < self.clip_norm < math.inf
      and 0 <= self.momentum < 1
      and re.fullmatch("([0-9a-f]{64})?", self.start_sha256)
      and (not self.goes_on or before > self.noise_multiplier)
    ):
      raise InputError(f"no head is trained by {self}.")

  @property
  def goes_on(self) -> bool:
    """Whether steps begin at the head of a smaller ε."""
    return self.before_noise_multiplier != 0

  @property
  def own_noise_multiplier(self) -> float:
    """σ' of what is released for this head alone: σ'⁻² = σ⁻² − σ_before⁻²."""
    sigma, before = self.noise_multiplier, self.before_noise_multiplier
    if not self.goes_on:
      return sigma
    apart = math.sqrt((before - sigma) * (before + sigma))
    return sigma * before / apart * (1 + 2**-49)

  @property
  def maps(self) -> bool:
    """Whether rows are mapped anew: not if the last map has less noise."""
    before = self.before_noise_multiplier
    return not self.goes_on or self.own_noise_multiplier < before

  @property
  def whitens(self) -> bool:
    """Whether the moment is released: where n/(K·σ) is 80 or more."""
    return self.maps and self.size >= self._least_to_whiten

  @property
  def size(self) -> int:
    """What all rows weigh: n, or about how many units there are."""
    if self.clipped == ROW:
      return self.num_examples
    return max(1, self.noisy_units)

  @property
  def unit_share(self) -> float:
    return 0.0 if self.clipped == ROW or self.goes_on else UNIT_SHARE

  @property
  def mean_share(self) -> float:
    return MEAN_SHARE if self.centres and self.maps else 0.0

  @property
  def moment_share(self) -> float:
    return self.moment_budget if self.whitens else 0.0

  @property
  def count_share(self) -> float:
    return COUNT_SHARE if self.balances else 0.0

  @property
  def step_share(self) -> float:
    """All steps' part of the budget."""
    of_sums = 1 - self.mean_share - self.moment_share
    return of_sums - self.count_share - self.unit_share

  @property
  def mean_noise_multiplier(self) -> float | None:
    """σ_1 = σ/√share, rounded up; None where there is no such release."""
    return self._of_share(self.mean_share)

  @property
  def moment_noise_multiplier(self) -> float | None:
    """σ_2, likewise."""
    return self._of_share(self.moment_share)

  @property
  def count_noise_multiplier(self) -> float | None:
    """That of the class counts, likewise."""
    return self._of_share(self.count_share)

  @property
  def unit_noise_multiplier(self) -> float | None:
    """That of the number of units, likewise."""
    return self._of_share(self.unit_share)

  @property
  def step_noise_multiplier(self) -> float:
    """σ_t = σ·√(T/share), rounded up."""
    of_steps = self.num_steps / self.step_share
    return self.own_noise_multiplier * math.sqrt(of_steps) * (1 + 2**-50)

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

  @property
  def _least_to_whiten(self) -> float:
    return ROWS_TO_WHITEN * self.own_noise_multiplier * self.num_classes

  def _of_share(self, share: float) -> float | None:
    if share == 0:
      return None
    return self.own_noise_multiplier / math.sqrt(share) * (1 + 2**-50)

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
      del stated[_UNITS]
    if not self.start_sha256:
      del stated[SETTING]
    if self.goes_on:
      stated |= {
        "before": "steps begin at the head of before_noise_multiplier, whose"
        " releases count as this one's: with them, those of"
        " own_noise_multiplier here amount to noise_multiplier; its map of the"
        " rows is kept where a new one would have more noise",
        "own_noise_multiplier": self.own_noise_multiplier,
      }
    else:
      del stated[_BEFORE]
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
        f"whitened, if a noisy count finds {self._least_to_whiten:.0f} units or"
        f" more; {self.num_steps} steps"
      )
    rows = self.num_examples / (self.num_classes * self.own_noise_multiplier)
    enough, than = ("enough", ">=") if self.whitens else ("too few", "<")
    return (
      f"{enough} rows for their noise to be whitened, n/(K*sigma) ="
      f" {rows:.0f} {than} {ROWS_TO_WHITEN:.0f}; {self.num_steps} steps of"
      f" learning rate {self.learning_rate:.3g}"
    )
