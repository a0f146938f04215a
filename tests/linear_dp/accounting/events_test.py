"""What events cost, by accountants that are told nothing of ours."""

import math

import pytest
from dp_accounting import (
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  LaplaceDpEvent,
  NeighboringRelation,
  NonPrivateDpEvent,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import events as accounting
from oneshot_dp.linear_dp.accounting.events import (
  changed_units,
  composed,
  epsilon_of_event,
  event_as_json,
  event_from_json,
  parts_of,
  relation_of,
  repeated,
)
from oneshot_dp.linear_dp.accounting.gaussian import compose, epsilon_of
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noisy_counts import CountPlan
from tests.privacy_losses import steps

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE


def by_pld(event: DpEvent, delta: float, interval: float, relation) -> float:
  accountant = PLDAccountant(relation, value_discretization_interval=interval)
  return accountant.compose(event).get_epsilon(delta)


# With a grid finer than ours, which is 1e-3 or 1e-4.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("event", "finer"),
  [
    (steps(0.05, 5, 1.6), 5e-5),
    (
      ComposedDpEvent(
        [
          GaussianDpEvent(3.0),
          SelfComposedDpEvent(steps(0.1, 5, 1.4), 2),
          PoissonSampledDpEvent(0.02, GaussianDpEvent(1.4)),
        ]
      ),
      3e-4,
    ),
  ],
  ids=["on the finer grid", "and a Gaussian"],
)
def test_other_accountants_agree(event, finer):
  """PLD on a finer grid is lower by little, and RDP higher."""
  delta = 1e-6
  found = epsilon_of_event(event, delta)
  fine = by_pld(event, delta, finer, REPLACE_SPECIAL)
  assert fine * (1 - 1e-6) <= found <= fine * (1 + 5e-3)
  rdp = RdpAccountant(neighboring_relation=REPLACE_SPECIAL)
  assert found < rdp.compose(event).get_epsilon(delta) < 4 * found


def test_everything_costs_and_its_order_does_not():
  parts = [GaussianDpEvent(2.0), steps(0.1, 5, 1.4), steps(0.02, 5, 1.2)]
  found, again = (
    epsilon_of_event(composed(order), 1e-6) for order in (parts, parts[::-1])
  )
  assert again == pytest.approx(found, rel=1e-8)
  for part in parts:
    assert found > epsilon_of_event(part, 1e-6)


@pytest.mark.parametrize(("count", "sigma"), [(1, 0.7), (10, 3.0)])
def test_sampling_every_row_is_the_composition_of_gaussians(count, sigma):
  exact = epsilon_of(compose([sigma] * count), 1e-10)
  found = epsilon_of_event(steps(1.0, count, sigma), 1e-10)
  assert exact * (1 - 1e-6) <= found <= exact * (1 + 1e-3) + 1e-3


def test_gaussians_alone_are_exact():
  both = composed([GaussianDpEvent(2.0), GaussianDpEvent(3.0)])
  for relation, units in ((REPLACE_SPECIAL, 1), (REPLACE, 2)):
    assert changed_units(relation) == units
    expected = epsilon_of(compose([2.0 / units, 3.0 / units]), 1e-30)
    assert epsilon_of_event(both, 1e-30, relation) == expected
  assert epsilon_of_event(composed([]), 1e-5) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  "state",
  [
    lambda r: epsilon_of_event(GaussianDpEvent(2.0), 1e-5, r),
    lambda r: ReleasePlan(epsilons=(1.0,), delta=1e-5, neighboring_relation=r),
    lambda r: CountPlan(epsilon=1.0, delta=1e-5, neighboring_relation=r),
  ],
  ids=["epsilon", "plan", "counts"],
)
def test_nothing_is_stated_for_who_does_not_know_n(state):
  """And what was is read in the relation that holds, at the same ε."""
  of_before = NeighboringRelation.ADD_OR_REMOVE_ONE
  with pytest.raises(InputError, match=r"n is published, .* replace-special"):
    state(of_before)
  assert relation_of(of_before.name) is REPLACE_SPECIAL
  assert relation_of(REPLACE.name) is REPLACE
  event = steps(0.1, 5, 1.4)
  for other in (of_before, REPLACE_SPECIAL):
    pld = by_pld(event, 1e-5, 1e-4, other)
    assert epsilon_of_event(event, 1e-5) == pytest.approx(pld, rel=2e-3)


def test_replacing_costs_more_than_nothing_in_its_place():
  """Where σ is in units of what one row adds."""
  event = steps(0.5, 1, 1.4)
  assert epsilon_of_event(event, 1e-5, REPLACE) > epsilon_of_event(event, 1e-5)


def test_an_infinite_epsilon_is_refused(monkeypatch):
  """Truncated tails may weigh more than a small δ, over very many steps."""
  monkeypatch.setattr(accounting, "LEAST_DELTA", 0.0)
  with pytest.raises(InputError, match="no epsilon holds at delta=1e-25"):
    epsilon_of_event(steps(0.5, 10, 1.0), 1e-25)


def test_parts_keep_their_order_and_number():
  nested = repeated(
    composed([GaussianDpEvent(2.0), repeated(steps(0.1, 5, 1.4), 2)]), 3
  )
  gaussians, sampled = parts_of(nested)
  assert gaussians == [2.0] * 3
  assert sampled == [(1.4, 0.1, 5)] * 6
  assert event_from_json(event_as_json(nested)) == nested


NO_NUMBERS = (0.0, -1.0, math.nan)


@pytest.mark.parametrize(
  ("event", "message"),
  [
    *(
      (make(sigma), f"noise_multiplier={sigma} must be")
      for sigma in (*NO_NUMBERS, math.inf)
      for make in (GaussianDpEvent, lambda sigma: steps(0.5, 2, sigma))
    ),
    *(
      (steps(q, 2, 1.0), f"sampling_probability={q} must be")
      for q in (*NO_NUMBERS, 1 + 1e-9)
    ),
    *(
      (make(count), f"count={count} must be a whole")
      for count in (0, -1, 1.5)
      for make in (
        lambda n: SelfComposedDpEvent(GaussianDpEvent(1.0), n),
        lambda n: SelfComposedDpEvent(steps(0.5, 2, 1.0), n),
        lambda n: steps(0.5, n, 1.0),
      )
    ),
  ],
)
def test_numbers_that_are_none_are_refused(event, message):
  with pytest.raises(InputError, match=message):
    parts_of(event)


@pytest.mark.parametrize(
  "event",
  [
    LaplaceDpEvent(1.0),
    NonPrivateDpEvent(),
    PoissonSampledDpEvent(0.5, LaplaceDpEvent(1.0)),
    SelfComposedDpEvent(LaplaceDpEvent(1.0), 2),
    ComposedDpEvent([GaussianDpEvent(1.0), LaplaceDpEvent(1.0)]),
  ],
  ids=repr,
)
def test_what_cannot_be_composed_is_refused(event):
  with pytest.raises(InputError, match="cannot be composed"):
    epsilon_of_event(event, 1e-5)


@pytest.mark.parametrize(
  "value",
  [
    None,
    {},
    {"class_name": "GaussianDpEvent"},
    {"class_name": "LaplaceDpEvent", "noise_multiplier": 1.0},
    {"class_name": "SelfComposedDpEvent", "event": None, "count": 1},
    {"class_name": "ComposedDpEvent", "events": 3},
  ],
)
def test_what_is_no_event_cannot_be_read(value):
  with pytest.raises((KeyError, TypeError, ValueError)):
    event_from_json(value)
