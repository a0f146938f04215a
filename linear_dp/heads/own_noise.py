"""Heads that share no noise: each draw and ε is trained from the beginning."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.noise.source import NoiseSource

Rule = TypeVar("Rule")
Train = Callable[[float, NoiseSource | None], tuple[LinearHead, Rule]]
"""(σ, bits) → a head and its settings. As a mechanism it costs what σ does in
the plan; with 0 and None there is no noise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndependentHead(Generic[Rule]):
  """A head that is safe to publish as its statement says.

  Attributes:
    head: the weights.
    rule: how it was trained.
    draw: which of the plan's repetitions it is.
    statement: the guarantee; sensitivity and noise are those of one mechanism
      of the plan, in units of its sensitivity.
  """

  head: LinearHead
  rule: Rule
  draw: int
  statement: PrivacyStatement


def release_heads(
  train: Train[Rule],
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  charge: Callable[[ReleasePlan, NoiseSource], object],
) -> Iterator[IndependentHead[Rule]]:
  """Trains one head per draw and ε, each with noise of its own.

  Formal guarantees: if `train` is as private as the plan takes it to be, each
  head is (ε, δ)-DP in the plan's neighbouring relation, and all of them
  together cost `plan.composed_epsilon`. `charge` has returned before a random
  bit is drawn.

  Args:
    train: makes a head.
    plan: what to release; "independent".
    source: the random bits; a seeded source marks every head NOT PRIVATE.
    charge: called once, first, with the plan and the source; raises to refuse.

  Yields:
    Heads, draw by draw, the largest ε first.

  Raises:
    InputError: a nested plan.
  """
  if plan.order != "independent":
    raise InputError(f"order={plan.order!r}: these heads share no noise.")
  charge(plan, source)
  for draw in range(plan.num_draws):
    for epsilon, sigma in plan.noise_multipliers.items():
      head, rule = train(sigma, source)
      yield IndependentHead(
        head=head,
        rule=rule,
        draw=draw,
        statement=PrivacyStatement.of_plan(
          plan, epsilon, source, sensitivity=1.0, noise_sd=sigma
        ),
      )


def head_without_privacy(
  train: Train[Rule], plan: ReleasePlan
) -> IndependentHead[Rule]:
  """The same training without noise: ε = ∞. NOT PRIVATE, and says so."""
  head, rule = train(0.0, None)
  return IndependentHead(
    head=head,
    rule=rule,
    draw=0,
    statement=PrivacyStatement.without_privacy(
      plan.delta, plan.neighboring_relation
    ),
  )
