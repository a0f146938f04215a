"""Random batches in the ledger: what is written, what it adds up to, caps."""

import json
import math
from typing import Any

import pytest
from dp_accounting import (
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  NeighboringRelation,
)
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.dominating import dominating_noise
from oneshot_dp.linear_dp.accounting.events import event_as_json, parts_of
from oneshot_dp.linear_dp.accounting.gaussian import compose, epsilon_of
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.cap import Cap, cap_of
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import spending_of

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5
THIRD = round(2**32 / 3) / 2**32
SAMPLING = PoissonSampling(probability=THIRD, num_steps=6)
STEPS = SAMPLING.event(1.1)
OLD = {
  "kind": "release",
  "entry": "cd" * 32,
  "private": True,
  "mechanisms": [
    {"kind": "gaussian", "noise_multiplier": 3.0, "count": 2},
    {
      "kind": "sampled gaussian",
      "noise_multiplier": 1.3,
      "count": 2,
      "probability": THIRD,
      "num_steps": 6,
    },
  ],
}
"""As it was written before `dp_event`."""


def plan(*epsilons: float, **changes: Any) -> ReleasePlan:
  fields: dict[str, Any] = {
    "delta": DELTA,
    "order": "independent",
    "sampling": SAMPLING,
  }
  return ReleasePlan(epsilons=epsilons, **fields | changes)


def entry(event: DpEvent) -> dict[str, Any]:
  return {
    "kind": "release",
    "entry": "ab" * 32,
    "private": True,
    "dp_event": json.loads(json.dumps(event_as_json(event))),
  }


def oracle(
  events: list[DpEvent], delta: float, relation: NeighboringRelation
) -> float:
  """By dp_accounting alone, on a grid of its own."""
  accountant = PLDAccountant(relation, value_discretization_interval=7e-4)
  return accountant.compose(ComposedDpEvent(events)).get_epsilon(delta)


class TestEntry:
  def test_it_is_written_and_read_back(self, ledger_dir):
    """Sigma, q, T and how many, to the last bit."""
    asked = plan(5.0, 8.0, num_draws=2)
    ledger = Ledger("pets", ledger_dir)
    ledger.charge(Charge.of_plan(asked, NoiseSource()))
    (written,) = ledger.entries()
    (event,) = spending_of([written], REPLACE_SPECIAL).events
    assert event == asked.event
    gaussians, sampled = parts_of(event)
    assert gaussians == []
    sigmas = [asked.noise_multipliers[epsilon] for epsilon in (8.0, 5.0)]
    assert sampled == [(sigma, THIRD, 6) for sigma in sigmas * 2]
    spent = ledger.spending(REPLACE_SPECIAL)
    assert spent.has_samples
    assert spent.epsilon(DELTA) == asked.composed_epsilon

  def test_entries_of_before_are_read_as_before(self):
    spent = spending_of([OLD, entry(STEPS)], REPLACE)
    assert spent.charges == 2
    gaussians, sampled = parts_of(ComposedDpEvent(list(spent.events)))
    assert gaussians == [3.0, 3.0]
    assert sampled == [(1.3, THIRD, 6)] * 2 + [(1.1, THIRD, 6)]

  @pytest.mark.parametrize("field", OLD["mechanisms"][1])
  def test_what_it_cannot_compose_is_never_zero(self, field):
    """Whichever field is missing, or none that it can be."""
    for value in (None, math.nan, math.inf, 0, "0.5", -7.5):
      mechanism = OLD["mechanisms"][1] | {field: value}
      if value is None:
        del mechanism[field]
      with pytest.raises(InputError, match="Entry cdcdcdcdcdcd of the") as e:
        spending_of([OLD, OLD | {"mechanisms": [mechanism]}], REPLACE_SPECIAL)
      assert "\n" not in str(e.value)


@pytest.mark.parametrize(
  ("events", "relation"),
  [
    ([SAMPLING.event(0.9), GaussianDpEvent(2.0)], SPECIAL),
    ([STEPS, STEPS, GaussianDpEvent(5.0)], SPECIAL),
  ],
  ids=["one", "twice"],
)
def test_composition_is_that_of_privacy_loss_distributions(events, relation):
  """Where all is chosen at once; one by one it costs more, but not much."""
  expected = oracle(events, DELTA, relation)
  at_once = spending_of([], relation).plus(*events).epsilon(DELTA)
  assert at_once == pytest.approx(expected, rel=0.01)
  assert spending_of([entry(ComposedDpEvent(events))], relation).epsilon(
    DELTA
  ) == pytest.approx(at_once, rel=1e-9)
  one_by_one = spending_of([entry(event) for event in events], relation)
  assert at_once < one_by_one.epsilon(DELTA) < 1.2 * at_once


def test_parts_of_delta_add_up():
  """However many releases there are, they reveal less than all of it."""
  spent = spending_of(
    [entry(STEPS)] * 2 + [entry(GaussianDpEvent(3.0))], SPECIAL
  )
  steps = tuple(parts_of(STEPS)[1])
  each = [dominating_noise(steps, s, SPECIAL) for s in (5e-7, 1e-6 / 6)]
  assert spent.noise_multiplier(1e-6) == compose([*each, 3.0])


def make_cap(
  epsilon: float,
  relation: NeighboringRelation = REPLACE_SPECIAL,
  sampling_delta: float | None = DELTA / 10,
) -> Cap:
  return Cap(
    max_epsilon=epsilon,
    max_delta=DELTA,
    neighboring_relation=relation,
    sampling_delta=sampling_delta,
  )


class TestCap:
  def test_it_has_room_for_the_release_that_it_names(self):
    event = plan(8.0).event
    assert make_cap(8.0).allows([], event)
    assert not make_cap(7.98).allows([], event)
    assert not make_cap(8.0).allows([entry(event)], event)

  @pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
  def test_everything_together(self, order):
    """Up to what the oracle says at once, and hardly more one by one."""
    events: list[DpEvent] = [STEPS, GaussianDpEvent(2.0)][::order]
    whole = oracle(events, DELTA, REPLACE_SPECIAL)
    first, then = entry(events[0]), events[1]
    assert make_cap(whole * 1.01).allows([], *events)
    assert not make_cap(whole * 0.99).allows([], *events)
    assert make_cap(whole * 1.05).allows([first], then)
    assert not make_cap(whole).allows([first], then)

  def test_without_a_part_of_delta_samples_cost_what_full_batches_do(self):
    first, full = GaussianDpEvent(2.0), GaussianDpEvent(1.1 / 6**0.5)
    exact = epsilon_of(compose([2.0, 1.1 / 6**0.5]), DELTA)
    for epsilon, allowed in ((exact * (1 + 1e-6), True), (exact, False)):
      cap = make_cap(epsilon, sampling_delta=None)
      assert cap.allows([entry(first)], STEPS) == allowed
      assert cap.allows([entry(first)], full) or not allowed
    cap = make_cap(9.0, sampling_delta=None)
    assert not cap.allows([entry(first)], STEPS)
    assert make_cap(9.0).allows([entry(first)], STEPS)
    # The first release decides, and a cap knows what was there before it.
    assert cap.allows([entry(STEPS)], first)
    before = [entry(first), entry(STEPS), cap.as_json()]
    assert cap_of(before) == make_cap(9.0)
    assert cap_of([before[0], before[2], before[1]]) == cap

  def test_a_part_that_is_none(self):
    for part in (-1e-9, DELTA, math.nan):
      with pytest.raises(InputError, match="must be at least 0 and less than"):
        make_cap(9.0, sampling_delta=part)

  def test_another_part_is_looser(self):
    """A smaller one leaves more to releases on all rows."""
    parts = (0.0, 1e-7, None)
    caps = [make_cap(9.0, sampling_delta=part) for part in parts]
    looser = [[mine.is_looser_than(other) for other in caps] for mine in caps]
    assert looser == [
      [False, True, True],
      [True, False, True],
      [True, True, False],
    ]

  @pytest.mark.parametrize(
    ("events", "most", "of_cap", "relation"),
    [
      ([GaussianDpEvent(2.0), STEPS], 9.0, REPLACE_SPECIAL, REPLACE),
      ([STEPS], 60.0, REPLACE, REPLACE),
    ],
    ids=["and a Gaussian", "replaced"],
  )
  def test_what_is_left_can_be_had_and_a_little_more_cannot(
    self, events, most, of_cap, relation
  ):
    cap, spent = make_cap(most, of_cap), [entry(event) for event in events]
    left = cap.left(spent, DELTA, relation)
    assert left > 0
    assert float(f"{left:.5g}") == left

    def allowed(epsilon: float) -> bool:
      full = plan(epsilon, sampling=None, neighboring_relation=relation)
      return cap.allows(spent, full.event)

    assert allowed(left)
    assert not allowed(left * 1.00011)

  def test_nothing_is_left_where_random_batches_took_it(self):
    cap = make_cap(8.0)
    spent = entry(plan(8.0).event)
    assert cap.left([spent], DELTA, REPLACE_SPECIAL) == 0
    assert cap.left([spent, entry(STEPS)], DELTA, REPLACE_SPECIAL) == 0

  def test_what_comes_one_by_one_is_checked_one_by_one(self, ledger_dir):
    """Else what was checked would be refused after it was begun."""
    charges = [Charge.of_plan(plan(e), NoiseSource()) for e in (8.0, 5.0)]
    events = [charge.event for charge in charges]
    cap = make_cap(
      spending_of([], REPLACE_SPECIAL).plus(*events).epsilon(DELTA)
    )
    ledger = Ledger("pets", ledger_dir)
    ledger.set_cap(cap)
    ledger.check(*charges)
    with pytest.raises(InputError, match="would break the cap"):
      ledger.check(*charges, at_once=False)
    ledger.charge(*charges)
    with pytest.raises(InputError, match="nothing is left"):
      ledger.charge(charges[1])
