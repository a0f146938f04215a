"""The sections of a receipt that follow from accounting alone.

One builder for the receipts of arrays and of caches, and for `verify`, which
builds them again from the noise and compares.
"""

import math
from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.accounting import events, gaussian
from oneshot_dp.linear_dp.accounting.plan import (
  NOT_PRIVATE,
  PrivacyStatement,
  ReleasePlan,
)
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling

_CURVE_DELTAS = ("1e-04", "1e-05", "1e-06", "1e-07", "1e-08", "1e-10", "1e-12")


def privacy_section(
  statement: PrivacyStatement,
  *,
  privacy_unit: str,
  sampling: PoissonSampling | None,
) -> dict[str, Any]:
  """The guarantee of one head.

  Args:
    statement: the guarantee.
    privacy_unit: what it is about.
    sampling: the random batches that its noise multiplier is about, if any.

  Returns:
    JSON-able: an ε that is infinite is "NOT PRIVATE".
  """
  sigma, delta = statement.noise_multiplier, statement.delta
  relation = statement.neighboring_relation
  return {
    "epsilon": (
      statement.epsilon if math.isfinite(statement.epsilon) else NOT_PRIVATE
    ),
    "delta": delta,
    "neighboring_relation": relation.name,
    "privacy_unit": privacy_unit,
    "noise_multiplier": sigma,
    "sensitivity_steps": statement.sensitivity,
    "noise_sd_steps": statement.noise_sd,
    "noise_source": statement.noise_source,
    "accountant": events.ACCOUNTANT if sampling else gaussian.ACCOUNTANT,
    "epsilon_by_relation": _epsilon_by_relation(
      sigma, relation, delta, sampling
    ),
    "epsilon_by_delta": {
      each: epsilon_of_noise(sigma, float(each), sampling)
      for each in _CURVE_DELTAS
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


def epsilon_of_noise(
  noise_multiplier: float, delta: float, sampling: PoissonSampling | None
) -> float | str:
  """ε of some noise at δ, in the relation of its sensitivity, rounded up."""
  if noise_multiplier == 0:
    return NOT_PRIVATE
  if sampling:
    return sampling.epsilon_of(noise_multiplier, delta)
  return gaussian.epsilon_of(noise_multiplier, delta)


def _epsilon_by_relation(
  noise_multiplier: float,
  stated: NeighboringRelation,
  delta: float,
  sampling: PoissonSampling | None,
) -> dict[str, float | str]:
  """ε of this noise at δ, whichever data sets are neighbours."""
  if noise_multiplier == 0:
    return {relation.name: NOT_PRIVATE for relation in NeighboringRelation}
  if sampling:
    event = sampling.event(noise_multiplier)
    return {
      relation.name: events.epsilon_of_event(event, delta, relation)
      for relation in NeighboringRelation
    }
  of_one = noise_multiplier * events.changed_units(stated)
  return {
    relation.name: gaussian.epsilon_of(
      of_one / events.changed_units(relation), delta
    )
    for relation in NeighboringRelation
  }
