"""What is about to be released, as a ledger will write it down."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.linear_dp.accounting.events import event_as_json
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import BASELINE_NOISE, ReleasePlan
from oneshot_dp.linear_dp.accounting.vocabulary import (
  DpEvent,
  NeighboringRelation,
  NonPrivateDpEvent,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch
from oneshot_dp.pipeline.ledger.spending import BASELINE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
  """The cost of a release, and what is kept of it.

  Attributes:
    kind: what is released: "release", "evaluation" or `BASELINE`.
    asked: the same in words, for a refusal.
    noise_source: where its random bits come from.
    is_private: False for a baseline, and for noise from a seed.
    delta: δ at which its ε is stated; None for a baseline.
    neighboring_relation: the relation in which it is stated, likewise.
    rows: which rows it is about; the ledger keeps what it does not know yet.
  """

  kind: str
  event: DpEvent
  asked: str
  noise_source: str
  is_private: bool
  delta: float | None = None
  neighboring_relation: NeighboringRelation | None = None
  privacy_unit: str = EXAMPLE_UNIT
  rows: RowSketch | None = None
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @classmethod
  def of_plan(
    cls,
    plan: ReleasePlan,
    source: NoiseSource,
    *,
    privacy_unit: str = EXAMPLE_UNIT,
    rows: RowSketch | None = None,
    **facts: Any,
  ) -> Self:
    """The cost of all heads of a plan."""
    epsilons = ", ".join(map(printable, plan.noise_multipliers))
    asked = (
      f"epsilon {epsilons} at delta {printable(plan.delta)}"
      f" ({plan.neighboring_relation.name}, {plan.order}, {plan.num_draws}"
      f" draw(s): together {printable(plan.composed_epsilon)})"
    )
    return cls(
      kind="release",
      event=plan.event,
      asked=asked,
      noise_source=source.description,
      is_private=source.is_private,
      delta=plan.delta,
      neighboring_relation=plan.neighboring_relation,
      privacy_unit=privacy_unit,
      rows=rows,
      facts={
        "epsilons": list(plan.noise_multipliers),
        "order": plan.order,
        "num_draws": plan.num_draws,
        "composed_epsilon": plan.composed_epsilon,
      }
      | facts,
    )

  @classmethod
  def of_baseline(
    cls,
    *,
    privacy_unit: str = EXAMPLE_UNIT,
    rows: RowSketch | None = None,
    **facts: Any,
  ) -> Self:
    """The note that something exact is about to leave: NOT PRIVATE."""
    return cls(
      kind=BASELINE,
      event=NonPrivateDpEvent(),
      asked="a baseline",
      noise_source=BASELINE_NOISE,
      is_private=False,
      privacy_unit=privacy_unit,
      rows=rows,
      facts=facts,
    )

  def as_json(self) -> dict[str, Any]:
    """What an entry holds of it."""
    stated = {}
    if self.neighboring_relation is not None:
      stated = {
        "delta": self.delta,
        "neighboring_relation": self.neighboring_relation.name,
      }
    return {
      **self.facts,
      **stated,
      "kind": self.kind,
      "privacy_unit": self.privacy_unit,
      "dp_event": event_as_json(self.event),
      "noise_source": self.noise_source,
      "private": self.is_private,
    }
