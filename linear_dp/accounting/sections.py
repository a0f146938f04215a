"""The sections of a receipt that follow from accounting alone."""

import math
from typing import Any

from oneshot_dp.linear_dp.accounting import events, gaussian
from oneshot_dp.linear_dp.accounting.plan import (
  NOT_PRIVATE,
  PrivacyStatement,
  ReleasePlan,
)
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation

_CURVE_DELTAS = ("1e-04", "1e-05", "1e-06", "1e-07", "1e-08", "1e-10", "1e-12")


def privacy_section(
  statement: PrivacyStatement,
  *,
  privacy_unit: str,
  sampling: PoissonSampling | None,
) -> dict[str, Any]:
  """The guarantee of one head, JSON-able: an infinite ε is "NOT PRIVATE"."""
  relation, sigma = statement.neighboring_relation, statement.noise_multiplier

  def epsilon_of(delta: float, other: NeighboringRelation) -> float | str:
    """That of the noise, at any δ and whichever data sets are neighbours."""
    if sigma == 0:
      return NOT_PRIVATE
    if sampling:
      event = sampling.event(sigma)
      epsilon = events.epsilon_of_event(event, delta, other)
    else:
      of_one = sigma * events.changed_units(relation)
      units = events.changed_units(other)
      epsilon = gaussian.epsilon_of(of_one / units, delta)
    return epsilon if math.isfinite(epsilon) else NOT_PRIVATE

  return {
    "epsilon": (
      statement.epsilon if math.isfinite(statement.epsilon) else NOT_PRIVATE
    ),
    "delta": statement.delta,
    "neighboring_relation": relation.name,
    "privacy_unit": privacy_unit,
    "noise_multiplier": sigma,
    "sensitivity_steps": statement.sensitivity,
    "noise_sd_steps": statement.noise_sd,
    "noise_source": statement.noise_source,
    "accountant": events.ACCOUNTANT if sampling else gaussian.ACCOUNTANT,
    "epsilon_by_relation": {
      other.name: epsilon_of(statement.delta, other)
      for other in events.CHANGED_UNITS
    },
    "epsilon_by_delta": {
      delta: epsilon_of(float(delta), relation) for delta in _CURVE_DELTAS
    },
  }


def composition_section(plan: ReleasePlan) -> dict[str, Any]:
  """All heads of a plan together, which compose; JSON-able."""
  return {
    "order": plan.order,
    "epsilons": list(plan.epsilons),
    "num_draws": plan.num_draws,
    "dp_event": events.event_as_json(plan.event),
    "composed_epsilon": plan.composed_epsilon,
  }
