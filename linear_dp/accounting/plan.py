"""What is to be released, what it costs, and what is said of it."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import ReleaseOrder
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import (
  changed_units,
  composed,
  epsilon_of_event,
  repeated,
)
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.accounting.vocabulary import (
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource

NOT_PRIVATE = "NOT PRIVATE"
MOST_HEADS = 100_000
BASELINE_NOISE = f"none: {NOT_PRIVATE}"
"""What the noise source of the baseline is called."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
  """What one release guarantees, and all that is needed to recompute it.

  Releases bring theirs with them. What is exact has one too, and says so:

  >>> statement = PrivacyStatement.without_privacy(
  ...   1e-6, NeighboringRelation.REPLACE_SPECIAL
  ... )
  >>> statement.epsilon, statement.is_private, statement.noise_source
  (inf, False, 'none: NOT PRIVATE')

  Attributes:
    epsilon: ε of this release alone; infinity for the baseline.
    delta: δ.
    noise_multiplier: σ, in units of the sensitivity; 0 for the baseline.
    sensitivity: L2 sensitivity of the statistic, grid steps.
    noise_sd: standard deviation of the noise, grid steps: σ·sensitivity.
    neighboring_relation: which data sets count as neighbours.
    noise_source: where the random bits came from.
    is_private: False for the baseline and for anything drawn from a seed.
  """

  epsilon: float
  delta: float
  noise_multiplier: float
  sensitivity: float
  noise_sd: float
  neighboring_relation: NeighboringRelation
  noise_source: str
  is_private: bool

  @classmethod
  def of_plan(
    cls,
    plan: "ReleasePlan",
    epsilon: float,
    source: NoiseSource,
    *,
    sensitivity: float,
    noise_sd: float,
  ) -> "PrivacyStatement":
    """A release at one of a plan's epsilons."""
    return cls(
      epsilon=epsilon,
      delta=plan.delta,
      noise_multiplier=plan.noise_multipliers[epsilon],
      sensitivity=sensitivity,
      noise_sd=noise_sd,
      neighboring_relation=plan.neighboring_relation,
      noise_source=source.description,
      is_private=source.is_private,
    )

  @classmethod
  def without_privacy(
    cls,
    delta: float,
    relation: NeighboringRelation,
    *,
    sensitivity: float = 1.0,
  ) -> "PrivacyStatement":
    """Something exact, with ε = ∞: NOT PRIVATE, and says so."""
    return cls(
      epsilon=math.inf,
      delta=delta,
      noise_multiplier=0.0,
      sensitivity=sensitivity,
      noise_sd=0.0,
      neighboring_relation=relation,
      noise_source=BASELINE_NOISE,
      is_private=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePlan:
  r"""Which releases to make of one private sum.

  Formal guarantees: with "nested", the releases of one draw are the largest ε
  plus more and more noise, so that all of them together cost what the largest
  does (`GaussianChain`); of whitened heads, each ε has the releases of the next
  smaller one and its own. With "independent", every release has noise of its
  own and all of them compose. Draws are always independent of each other.

  >>> plan = ReleasePlan(epsilons=(0.5, 2.0, 8.0), delta=1e-5)
  >>> round(plan.composed_epsilon, 3)
  8.0
  >>> [round(sigma, 3) for sigma in plan.noise_multipliers.values()]
  [0.6, 1.994, 7.032]

  Attributes:
    epsilons: the ε of each head, distinct.
    delta, neighboring_relation, order: what all heads have in common.
    num_draws: repetitions of the whole list with fresh noise, to see the
      spread; each costs as much as the first.
    sampling: of heads whose steps see random parts of the rows; σ is then that
      of a step.

  InputError: there is no such guarantee, or nothing that could have it.
  """

  epsilons: tuple[float, ...]
  delta: float
  neighboring_relation: NeighboringRelation = (
    NeighboringRelation.REPLACE_SPECIAL
  )
  order: ReleaseOrder = "nested"
  num_draws: int = 1
  sampling: PoissonSampling | None = None

  def __post_init__(self):
    if self.num_draws * max(1, len(self.epsilons)) > MOST_HEADS:
      raise InputError(
        f"num_draws={self.num_draws} of {len(self.epsilons)} epsilons are more"
        f" than {MOST_HEADS} heads; ask for fewer."
      )
    for epsilon in self.epsilons:
      accounting.check_budget(epsilon, self.delta)
    if not self.epsilons:
      raise InputError("epsilons is empty: give at least one.")
    changed_units(self.neighboring_relation)  # what it refuses
    if self.sampling and self.order == "nested":
      raise InputError(
        "order='nested': heads of random batches share no noise."
      )
    if self.sampling and changed_units(self.neighboring_relation) > 1:
      raise InputError(
        "random batches are accounted for where nothing takes an example's"
        " place; leave out --neighboring-relation replace-one, or use full"
        " batches."
      )
    ordered = sorted(self.epsilons)
    for smaller, larger in itertools.pairwise(ordered):
      # Nearer ones could not be told apart by their noise multipliers.
      if larger <= smaller * (1 + 1e-6):
        raise InputError(
          f"epsilons={list(self.epsilons)} has an epsilon twice, or nearly; use"
          " num_draws for several heads of one epsilon."
        )
    accounting.check_noise_multiplier(
      max(self.noise_multipliers.values()),
      min(self.epsilons),
      "nothing could be learned",
    )
    if self.num_draws < 1:
      raise InputError(f"num_draws={self.num_draws} must be at least 1.")

  @functools.cached_property
  def noise_multipliers(self) -> dict[float, float]:
    """ε → σ, in the order of release: the largest ε, least noise, first."""
    of_epsilon = accounting.noise_multiplier
    if self.sampling:
      of_epsilon = self.sampling.noise_multiplier
    return {
      epsilon: of_epsilon(epsilon, self.delta)
      for epsilon in sorted(self.epsilons, reverse=True)
    }

  def noise_before(self, epsilon: float) -> float:
    """σ of the head of a nested plan that one goes on from; 0 if of none."""
    smaller = [each for each in self.epsilons if each < epsilon]
    if self.order == "independent" or not smaller:
      return 0.0
    return self.noise_multipliers[max(smaller)]

  @property
  def _paying(self) -> tuple[float, ...]:
    """σ of what pays for one draw."""
    sigmas = tuple(self.noise_multipliers.values())
    return sigmas[:1] if self.order == "nested" else sigmas

  @property
  def charged_noise_multipliers(self) -> tuple[float, ...]:
    """σ of the mechanisms that pay for everything in the plan."""
    return self._paying * self.num_draws

  @property
  def event(self) -> DpEvent:
    """What pays for the plan: its noise for one unit, or nothing instead."""
    return event_of_draws(
      self._paying, self.num_draws, self.neighboring_relation, self.sampling
    )

  @property
  def composed_epsilon(self) -> float:
    """ε, at δ, of all releases of the plan together."""
    return composed_epsilon([self])


def event_of_draws(
  noise_multipliers: Sequence[float],
  num_draws: int,
  relation: NeighboringRelation,
  sampling: PoissonSampling | None,
) -> DpEvent:
  """What pays for draws of releases, each of a σ in the relation."""
  make = sampling.event if sampling else GaussianDpEvent
  units = changed_units(relation)
  draw = composed([make(sigma * units) for sigma in noise_multipliers])
  return repeated(draw, num_draws)


def composed_epsilon(plans: Sequence[ReleasePlan]) -> float:
  """ε, rounded up, of all releases of plans that are chosen beforehand.

  >>> one = ReleasePlan(epsilons=(1.0, 4.0), delta=1e-5)
  >>> round(composed_epsilon([one, one]), 2)
  5.99

  Args:
    plans: about the same rows, at one δ and in one neighbouring relation.

  Returns:
    ε at that δ.

  InputError: plans of several δ or relations, or none.
  """
  if len({(plan.delta, plan.neighboring_relation) for plan in plans}) != 1:
    raise InputError(
      "Plans compose at one delta and in one neighbouring relation."
    )
  event = composed([plan.event for plan in plans])
  return epsilon_of_event(event, plans[0].delta, plans[0].neighboring_relation)
