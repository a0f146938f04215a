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
  """

  claim: PrivacyStatement
  lower_bounds: dict[str, float]
  runs: int
  confidence: float
  seconds: float

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
  def audited(self) -> str:
    """What makes the claim."""
    return f"noise multiplier {self.claim.noise_multiplier:.6g}"

  @property
  def effort(self) -> str:
    """What was run."""
    return f"{self.runs:,} runs with and {self.runs:,} without the canary"

  @property
  def facts(self) -> dict[str, Any]:
    """The same as the text, for machines."""
    return {
      "claim": self.claim,
      "lower_bounds": self.lower_bounds,
      "lower_bound": self.lower_bound,
      "confidence": self.confidence,
      "is_violated": self.is_violated,
      "verdict": self.verdict,
      "runs": self.runs,
      "seconds": self.seconds,
    }

  def __str__(self) -> str:
    claim = self.claim
    width = max(map(len, self.lower_bounds))
    return "\n".join(
      [
        f"claim: epsilon = {printable(claim.epsilon)} at delta ="
        f" {printable(claim.delta)}"
        f" ({claim.neighboring_relation.name}), {self.audited}, noise from"
        f" {claim.noise_source}",
        *(
          f"{name:<{width}}  epsilon >= {_floor(bound)}"
          for name, bound in self.lower_bounds.items()
        ),
        f"lower bound: {_floor(self.lower_bound)}, which is"
        f" {_floor(self.lower_bound / claim.epsilon)} of the claim, at"
        f" {self.confidence:.4g} confidence",
        f"{self.effort}; {self.seconds:.1f} s",
      ]
    )


def _floor(bound: float) -> str:
  """Four decimals, rounded down: what may be said of a lower bound."""
  step = decimal.Decimal("0.0001")
  return str(decimal.Decimal(bound).quantize(step, decimal.ROUND_FLOOR))
