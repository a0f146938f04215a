"""How the budget of a whitened head is shared by what it releases."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, Self

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.heads.own_noise import StepsRule
from oneshot_dp.linear_dp.public_start import SETTING
from oneshot_dp.linear_dp.trainer import ROW

MEAN_SHARE = 0.005
"""The mean's part of the budget (of 1/σ²)."""
UNIT_SHARE = 0.005
"""That of the number of privacy units, where these may have many rows."""
COUNT_SHARE = 0.02
"""The class counts' part, of heads for classes of very different sizes."""
BALANCED_CLIP_NORM = 0.3
"""Theirs: rows of small classes are far off for long, and matter more."""
FROM_START = 0.25, 1.0
"""Where on the way from a start to what steps made of it weights are tried."""
_MOST_COMPARED, _COMPARED = 0.2, 40.0
"""Comparing these with it has the part 40·σ/n of the budget, or the first."""
ROWS_TO_WHITEN = 80.0
"""With fewer rows of a class than so many times σ, the noise in the gradients
does more harm in directions of little variance than these are worth."""
UNITS, BEFORE, COMPARES = "noisy_units", "before_noise_multiplier", "compares"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetRule(StepsRule):
  r"""The settings that each release of a head is paid by, and all it can have.

  Formal guarantees: Gaussian mechanisms of noise multipliers
  `mean_noise_multiplier` and `moment_noise_multiplier` (where they are used),
  and `num_steps` of `step_noise_multiplier`, however each depends on the
  results of those before, are together as private as one of noise multiplier σ:
  σ_1⁻² + σ_2⁻² + T·σ_t⁻² ≤ σ⁻²; other counts, if released, are one more each.

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
    compares: whether a noisy count says if steps made a start better.
    noisy_units: what came out, for all that rests on how many there are; 0
      before.
    before_noise_multiplier: σ of the head of the next smaller ε of a nested
      sweep, where steps begin; its releases are a part of this one's. 0 if
      there is none.
  """

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
  compares: bool = False
  noisy_units: int = 0
  before_noise_multiplier: float = 0.0

  @classmethod
  def from_json(cls, section: Mapping[str, Any]) -> Self:
    # Receipts of other heads, and of before, do not say it.
    earlier = {"balances": False, SETTING: "", UNITS: 0, BEFORE: 0.0}
    return super().from_json({**earlier, COMPARES: False, **section})

  def __post_init__(self):
    before = self.before_noise_multiplier
    # A receipt may say anything.
    if self.num_steps < 1 or not (
      0 < self.moment_budget < 1 - MEAN_SHARE
      and 0 < self.clip_norm < math.inf
      and 0 <= self.momentum < 1
      and re.fullmatch("([0-9a-f]{64})?", self.start_sha256)
      and (not self.goes_on or before > self.noise_multiplier)
      and self.compares <= bool(self.start_sha256)
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
    return self.maps and self.size >= self.least_to_whiten

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
  def compared_share(self) -> float:
    """That of comparing with the start: the less, the more rows there are."""
    share = _COMPARED * self.own_noise_multiplier / self.size
    return self.compares * min(_MOST_COMPARED, share)

  @property
  def step_share(self) -> float:
    """All steps' part of the budget."""
    of_sums = 1 - self.mean_share - self.moment_share - self.compared_share
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
  def compared_noise_multiplier(self) -> float | None:
    """That of the comparison with a start, likewise."""
    return self._of_share(self.compared_share)

  @property
  def step_noise_multiplier(self) -> float:
    """σ_t = σ·√(T/share), rounded up."""
    of_steps = self.num_steps / self.step_share
    return self.own_noise_multiplier * math.sqrt(of_steps) * (1 + 2**-50)

  @property
  def least_to_whiten(self) -> float:
    return ROWS_TO_WHITEN * self.own_noise_multiplier * self.num_classes

  def _of_share(self, share: float) -> float | None:
    if share == 0:
      return None
    return self.own_noise_multiplier / math.sqrt(share) * (1 + 2**-50)
