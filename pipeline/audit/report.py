"""What an audit found, and what it says of the claim."""

import dataclasses
import decimal
from typing import Any

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditReport:
  """Lower bounds on ε, all of them true together with `confidence`.

  Attributes:
    claim: what the releases said of themselves.
    lower_bounds: attack → ε, at the δ of the claim.
    runs: releases of each of the two neighbours.
    confidence: of all bounds together.
    seconds: taken.
    canaries, guesses: in the one run of many canaries, if there is one, and
      how many of their coins were guessed.
  """

  claim: PrivacyStatement
  lower_bounds: dict[str, float]
  runs: int
  confidence: float
  seconds: float
  canaries: int = 0
  guesses: int = 0

  @property
  def lower_bound(self) -> float:
    return max(self.lower_bounds.values())

  @property
  def is_violated(self) -> bool:
    return self.lower_bound > self.claim.epsilon

  @property
  def verdict(self) -> str:
    if self.is_violated:
      return (
        f"VIOLATION: epsilon is at least {_floor(self.lower_bound)} at"
        f" {self.confidence:.4g} confidence, and the claim is"
        f" {printable(self.claim.epsilon)}."
      )
    return (
      "consistent with the claim (these attacks found nothing; no audit can"
      " prove it)"
    )

  @property
  def facts(self) -> dict[str, Any]:
    """The same as the text, for machines."""
    names = ("claim", "lower_bounds", "lower_bound", "confidence")
    names += ("is_violated", "verdict", "runs", "seconds")
    return {name: getattr(self, name) for name in names}

  def __str__(self) -> str:
    claim, runs = self.claim, self.runs
    audited = f"noise multiplier {claim.noise_multiplier:.6g}"
    effort = f"{runs:,} runs with and {runs:,} without the canary"
    if self.canaries:
      audited += f", sensitivity {claim.sensitivity:,.1f} grid steps"
      effort += f"; one run of {self.canaries:,} canaries,"
      effort += f" {self.guesses:,} guesses"
    width = max(map(len, self.lower_bounds))
    return "\n".join(
      [
        f"claim: epsilon = {printable(claim.epsilon)} at delta ="
        f" {printable(claim.delta)} ({claim.neighboring_relation.name}),"
        f" {audited}, noise from {claim.noise_source}",
        *(
          f"{name:<{width}}  epsilon >= {_floor(bound)}"
          for name, bound in self.lower_bounds.items()
        ),
        f"lower bound: {_floor(self.lower_bound)}, which is"
        f" {_floor(self.lower_bound / claim.epsilon)} of the claim, at"
        f" {self.confidence:.4g} confidence",
        f"{effort}; {self.seconds:.1f} s",
      ]
    )


def _floor(bound: float) -> str:
  """Four decimals, rounded down: what may be said of a lower bound."""
  step = decimal.Decimal("0.0001")
  return str(decimal.Decimal(bound).quantize(step, decimal.ROUND_FLOOR))
