"""What an audit found, and what it says of the claim."""

import dataclasses
import decimal
import functools
from typing import Any

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.audit import (
  CanaryScoreAuditor,
  best_number_of_guesses,
  mu_of_claim,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditReport:
  """Lower bounds on ε, all of them true together with `confidence`.

  Attributes:
    claim: what the releases said of themselves.
    lower_bounds: attack → ε, at the δ of the claim.
    confidence: of all bounds together, and that there are no faults.
    adversary: whom the attacks stand for.
    faults: what the claim rests on, and does not hold.
    seconds: taken; None where how long it took might say more than releases.
  """

  claim: PrivacyStatement
  lower_bounds: dict[str, float]
  runs: int
  canaries: int
  confidence: float
  adversary: str
  faults: tuple[str, ...] = ()
  seconds: float | None = None

  @property
  def lower_bound(self) -> float:
    """The best of all."""
    return max(self.lower_bounds.values())

  @property
  def is_violated(self) -> bool:
    """Whether the claim is refuted, or what it rests on."""
    return self.lower_bound > self.claim.epsilon or bool(self.faults)

  @property
  def verdict(self) -> str:
    """In a sentence."""
    if self.faults:
      return (
        f"VIOLATION: {'; '.join(self.faults)}, which the claim of epsilon"
        f" {printable(self.claim.epsilon)} rests on."
      )
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
    names = [field.name for field in dataclasses.fields(self)]
    names += ["lower_bound", "is_violated", "verdict"]
    return {name: getattr(self, name) for name in names}

  def __str__(self) -> str:
    claim = self.claim
    width = max(map(len, self.lower_bounds))
    effort = f"{self.runs:,} run(s) of {self.canaries:,} canaries"
    if self.seconds is not None:
      effort += f"; {self.seconds:.1f} s"
    return "\n".join(
      [
        f"claim: epsilon = {printable(claim.epsilon)} at delta ="
        f" {printable(claim.delta)} ({claim.neighboring_relation.name}),"
        f" noise multiplier {claim.noise_multiplier:.6g}, noise from"
        f" {claim.noise_source}",
        f"adversary: {self.adversary}",
        *(
          f"{name:<{width}}  epsilon >= {_floor(bound)}"
          for name, bound in self.lower_bounds.items()
        ),
        f"lower bound: {_floor(self.lower_bound)}, which is"
        f" {_floor(self.lower_bound / claim.epsilon)} of the claim, at"
        f" {self.confidence:.4g} confidence",
        effort,
      ]
    )


GDP, ANY = "any Gaussian-DP mechanism", "any mechanism"


def bounds_of_guesses(
  auditor: CanaryScoreAuditor, plan: ReleasePlan, wrong: float
) -> dict[str, float]:
  """What guesses prove of any mechanism, their number chosen by the claim.

  The claim is the plan's largest epsilon; all of it may be `wrong` so often.
  """
  sigma, *_ = plan.noise_multipliers.values()
  delta, confidence = plan.delta, 1 - wrong / 2
  guesses = functools.partial(
    best_number_of_guesses,
    canaries=auditor.canaries,
    mu=mu_of_claim(sigma, plan.sampling),
    confidence=confidence,
  )
  bounds = {}
  if plan.sampling is None:
    bounds[GDP] = auditor.epsilon_of_gdp(delta, confidence, guesses())
  bounds[ANY] = auditor.epsilon_of_any(delta, confidence, guesses(delta=delta))
  return bounds


def _floor(bound: float) -> str:
  """Four decimals, rounded down: what may be said of a lower bound."""
  step = decimal.Decimal("0.0001")
  return str(decimal.Decimal(bound).quantize(step, decimal.ROUND_FLOOR))
