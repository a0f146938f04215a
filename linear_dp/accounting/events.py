"""What a `DpEvent` costs: exact for Gaussians, rounded up for samples of rows.

A noise multiplier in an event is the noise's standard deviation over the L2
sensitivity to one privacy unit against nothing in its place, whatever relation
the ε of the release was stated in.

Gaussian mechanisms on all rows compose exactly (`gaussian.compose`); steps on
Poisson samples, with each other and with Gaussians, through dp_accounting's
privacy loss distributions, whose grid is rounded towards more loss. That needs
all of them to be chosen beforehand: where each is chosen by what came out of
the last, they compose as in `dominating.py`.

Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi, "Connect the Dots:
Tighter Discrete Approximations of Privacy Loss Distributions", PETS 2022.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import ADD_OR_REMOVE_ONE_IS_NO_MORE
from oneshot_dp.linear_dp.accounting import gaussian
from oneshot_dp.linear_dp.accounting.vocabulary import (
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
  NonPrivateDpEvent,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
  dp_accounting,
)

ACCOUNTANT = (
  "dp_accounting.pld (Poisson sampling, rounded up; Doroshenko et al. 2022)"
)
LossDistribution: TypeAlias = (
  "dp_accounting.pld.privacy_loss_distribution.PrivacyLossDistribution"
)
LEAST_DELTA = 1e-12
"""Below this the rounding of float64 would be part of an answer for samples."""
_MARGIN = 1e-9
_KNOWN: dict[str, type[DpEvent]] = {
  known.__name__: known
  for known in (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
  )
}


CHANGED_UNITS = {
  NeighboringRelation.REPLACE_SPECIAL: 1,
  NeighboringRelation.REPLACE_ONE: 2,
}
"""Relations that a guarantee may be stated in, all with n public: a unit, or
nothing in its place; or another. With the units that differ, in whose
sensitivity all noise multipliers here are stated, so that a σ in one relation
is σ · changed / changed in the other."""


class Steps(NamedTuple):
  """T Gaussian mechanisms of σ, each on a Poisson sample of the rows."""

  noise_multiplier: float
  sampling_probability: float
  count: int


def changed_units(relation: NeighboringRelation) -> int:
  """Units that differ between neighbours: one out, or one out and one in.

  >>> [changed_units(relation) for relation in CHANGED_UNITS]
  [1, 2]

  InputError: n would not be public.
  """
  if relation not in CHANGED_UNITS:
    raise InputError(
      f"neighboring_relation={relation.name}: {ADD_OR_REMOVE_ONE_IS_NO_MORE}."
    )
  return CHANGED_UNITS[relation]


def relation_of(name: str) -> NeighboringRelation:
  """A relation by its name in receipts and ledgers, those of before included.

  ADD_OR_REMOVE_ONE held only for whoever does not know n, which receipts give.
  For all others the same noise has the same ε in REPLACE_SPECIAL.
  """
  relation = NeighboringRelation[name]
  if relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
    return NeighboringRelation.REPLACE_SPECIAL
  return relation


def composed(events: Sequence[DpEvent]) -> DpEvent:
  """All of some events; one alone is itself."""
  return events[0] if len(events) == 1 else ComposedDpEvent(list(events))


def repeated(event: DpEvent, count: int) -> DpEvent:
  """An event so many times; once is itself."""
  return event if count == 1 else SelfComposedDpEvent(event, count)


def parts_of(event: DpEvent) -> tuple[list[float], list[Steps]]:
  """σ of every Gaussian mechanism on all rows, and all steps on samples."""
  parts = list(_parts(event))
  sampled = [part for part in parts if isinstance(part, Steps)]
  return [part for part in parts if not isinstance(part, Steps)], sampled


def epsilon_of_event(
  event: DpEvent,
  delta: float,
  relation: NeighboringRelation = NeighboringRelation.REPLACE_SPECIAL,
) -> float:
  """ε of everything in an event together, all of it chosen beforehand.

  >>> event = SelfComposedDpEvent(GaussianDpEvent(4.2247), 4)
  >>> round(epsilon_of_event(event, 1e-6), 3)
  2.123

  Noise multipliers are for one unit, or nothing in its place; δ is in (0, 1),
  at least 1e-12 where there are samples. It is 0 where nothing was released.

  InputError: δ is too small, or something cannot be composed.
  """
  gaussians, sampled = parts_of(event)
  units = changed_units(relation)
  sigmas = [sigma / units for sigma in gaussians]
  if units > 1 and sampled:
    # No pair is proven to dominate then; on all rows they cost no less.
    sigmas, sampled = [*sigmas, on_all_rows(sampled, units)], []
  if not sampled:
    if not sigmas:
      return 0.0
    return gaussian.epsilon_of(gaussian.compose(sigmas), delta)
  check_delta(delta)
  whole = loss_distribution(sampled, sigmas)
  epsilon = whole.get_epsilon_for_delta(delta)
  if not math.isfinite(epsilon):
    raise InputError(
      f"no epsilon holds at delta={delta} for so little noise; use a larger"
      " delta."
    )
  return epsilon * (1 + _MARGIN)


def on_all_rows(sampled: Sequence[Steps], units: int) -> float:
  """σ, rounded down, of steps as if each had seen all rows, in a relation.

  A bound in any relation: given who is in a step, which is decided by bits that
  do not depend on the rows, the step is that Gaussian mechanism, or does not
  see the unit that differs.
  """
  of_steps = [
    steps.noise_multiplier / units / math.sqrt(steps.count) for steps in sampled
  ]
  return gaussian.compose(of_steps) * (1 - _MARGIN)


def loss_distribution(
  sampled: Sequence[Steps], sigmas: Sequence[float]
) -> LossDistribution:
  """The composition of steps on samples, and of Gaussians, rounded up."""
  # Where noise is low, a finer grid of losses gains little.
  low = min(steps.noise_multiplier for steps in sampled) < 1.5
  interval = 1e-3 if low else 1e-4
  parts = [_loss_distribution(steps, interval) for steps in sampled]
  pld = dp_accounting.pld.privacy_loss_distribution
  if sigmas:
    parts.append(
      pld.from_gaussian_mechanism(
        gaussian.compose(sigmas), value_discretization_interval=interval
      )
    )
  return functools.reduce(pld.PrivacyLossDistribution.compose, parts)


def check_delta(delta: float) -> None:
  """Refuses a δ that steps on samples cannot be accounted for at."""
  if delta < LEAST_DELTA:
    raise InputError(
      f"delta={delta:g} is too small to account for random batches at; use one"
      f" of {LEAST_DELTA:g} or more, or full batches."
    )


def event_as_json(event: DpEvent) -> dict[str, Any]:
  """An event by the names of dp_accounting's own classes and fields."""
  found: dict[str, Any] = {"class_name": type(event).__name__}
  for name in getattr(event, "__match_args__", ()):
    value = getattr(event, name)
    if isinstance(value, DpEvent):
      value = event_as_json(value)
    elif isinstance(value, list):
      value = [event_as_json(each) for each in value]
    found[name] = value
  return found


def event_from_json(value: Any) -> DpEvent:
  """Reads what `event_as_json` made; KeyError, TypeError or ValueError."""
  name = value["class_name"]
  if name not in _KNOWN:
    raise ValueError(f"a mechanism of kind {name!r}")
  arguments = getattr(_KNOWN[name], "__match_args__", ())
  fields = {field: value[field] for field in arguments}
  if "event" in fields:
    fields["event"] = event_from_json(fields["event"])
  if "events" in fields:
    if not isinstance(fields["events"], list):
      raise TypeError("'events' that are no list")
    fields["events"] = [event_from_json(each) for each in fields["events"]]
  return _KNOWN[name](**fields)


def _parts(event: DpEvent) -> Iterator[float | Steps]:
  match event:
    case GaussianDpEvent(sigma):
      _check(noise_multiplier=sigma)
      yield float(sigma)
    case PoissonSampledDpEvent(_, GaussianDpEvent()):
      yield from _parts(SelfComposedDpEvent(event, 1))
    case SelfComposedDpEvent(
      PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), count
    ):
      _check(noise_multiplier=sigma, sampling_probability=q, count=count)
      yield Steps(float(sigma), float(q), count)
    case SelfComposedDpEvent(inner, count):
      _check(count=count)
      parts = list(_parts(inner))
      for _ in range(count):
        yield from parts
    case ComposedDpEvent(events):
      for each in events:
        yield from _parts(each)
    case _:
      raise InputError(f"{event} cannot be composed.")


def _check(
  *,
  noise_multiplier: Any = 1.0,
  sampling_probability: Any = 1.0,
  count: Any = 1,
) -> None:
  """Refuses what is no mechanism: dp_accounting's events hold anything."""
  if not 0 < noise_multiplier < math.inf:
    raise InputError(
      f"noise_multiplier={noise_multiplier!r} must be positive and finite."
    )
  if not 0 < sampling_probability <= 1:
    raise InputError(
      f"sampling_probability={sampling_probability!r} must be in (0, 1]."
    )
  if not (isinstance(count, int) and count >= 1):
    raise InputError(f"count={count!r} must be a whole number, at least 1.")


# A search for σ makes many, and each may take megabytes.
@functools.lru_cache(maxsize=16)
def _loss_distribution(steps: Steps, interval: float) -> LossDistribution:
  one = dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism(
    steps.noise_multiplier,
    value_discretization_interval=interval,
    sampling_prob=steps.sampling_probability,
    neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
  )
  return one.self_compose(steps.count)
