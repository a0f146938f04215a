"""What is about to be released, as a ledger will write it down."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import SampledGaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.spending import (
  Gaussian,
  Payment,
  Sampled,
  changed_units,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
  """The cost of a release, and what is kept of it.

  Attributes:
    kind: of what is released: "release", "evaluation".
    mechanisms: all that pay for it.
    source: the noise that it will use.
    asked: the same in words, for a refusal.
    delta: δ at which its ε is stated.
    neighboring_relation: the relation in which it is stated.
    privacy_unit: what it is about; all charges of a ledger are about one.
    facts: public facts to keep with the entry.
  """

  kind: str
  mechanisms: tuple[Payment, ...]
  source: NoiseSource
  asked: str
  delta: float
  neighboring_relation: NeighboringRelation
  privacy_unit: str = EXAMPLE_UNIT
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @classmethod
  def of_plan(
    cls,
    plan: ReleasePlan,
    source: NoiseSource,
    *,
    privacy_unit: str = EXAMPLE_UNIT,
    **facts: Any,
  ) -> Self:
    """The cost of all heads of a plan."""
    counts = collections.Counter(plan.charged_noise_multipliers)
    units = changed_units(plan.neighboring_relation)
    epsilons = ", ".join(
      printable(epsilon) for epsilon in plan.noise_multipliers
    )
    return cls(
      kind="release",
      mechanisms=tuple(
        _payment(plan, sigma * units, count) for sigma, count in counts.items()
      ),
      source=source,
      asked=f"epsilon {epsilons} at delta {printable(plan.delta)}"
      f" ({plan.neighboring_relation.name}, {plan.order}, {plan.num_draws}"
      f" draw(s): together {printable(plan.composed_epsilon)})",
      delta=plan.delta,
      neighboring_relation=plan.neighboring_relation,
      privacy_unit=privacy_unit,
      facts={
        "epsilons": list(plan.noise_multipliers),
        "order": plan.order,
        "num_draws": plan.num_draws,
        "composed_epsilon": plan.composed_epsilon,
      }
      | facts,
    )

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    return {
      **self.facts,
      "kind": self.kind,
      "delta": self.delta,
      "neighboring_relation": self.neighboring_relation.name,
      "privacy_unit": self.privacy_unit,
      "mechanisms": [m.as_json() for m in self.mechanisms],
      "noise_source": self.source.description,
      "private": self.source.is_private,
    }


def _payment(plan: ReleasePlan, sigma: float, count: int) -> Payment:
  if plan.sampling is None:
    return Gaussian(noise_multiplier=sigma, count=count)
  steps = SampledGaussian(noise_multiplier=sigma, sampling=plan.sampling)
  return Sampled(steps=steps, count=count)
