"""Composition and caps, against first principles and another accountant."""

import math

import hypothesis
import mpmath
import pytest
from dp_accounting import (
  ComposedDpEvent,
  DpEvent,
  GaussianDpEvent,
  LaplaceDpEvent,
  NeighboringRelation,
  NonPrivateDpEvent,
  SelfComposedDpEvent,
)
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import (
  CHANGED_UNITS,
  changed_units,
  event_as_json,
  parts_of,
)
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.pipeline.ledger.cap import _SLACK, Cap, caps
from oneshot_dp.pipeline.ledger.spending import spending_of

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5


def paid_by(event: DpEvent, private=True):
  return {
    "kind": "release",
    "entry": "ab" * 32,
    "private": private,
    "dp_event": event_as_json(event),
  }


def entries(*sigmas: float):
  return [paid_by(GaussianDpEvent(sigma)) for sigma in sigmas]


def make_cap(epsilon=8.0, delta=DELTA, relation=REPLACE_SPECIAL):
  return Cap(
    max_epsilon=epsilon, max_delta=delta, neighboring_relation=relation
  )


def plan(*epsilons: float, **changes) -> ReleasePlan:
  return ReleasePlan(epsilons=epsilons, delta=DELTA, **changes)


def exact_delta(sigmas, epsilon):
  """δ of the composition, in 40 digits: Balle & Wang with Σσ⁻²."""
  with mpmath.workdps(40):
    mu = mpmath.sqrt(mpmath.fsum(mpmath.mpf(s) ** -2 for s in sigmas))
    tail = mpmath.ncdf(-mu / 2 - epsilon / mu)
    return float(
      mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * tail
    )


@hypothesis.given(
  st.lists(st.floats(0.3, 100), min_size=1, max_size=20),
  st.sampled_from([1e-9, 1e-5, 1e-2]),
)
@hypothesis.settings(max_examples=20, deadline=None)
def test_composition_is_never_below_the_truth(sigmas, delta):
  spent = spending_of(entries(*sigmas), REPLACE_SPECIAL).epsilon(delta)
  assert exact_delta(sigmas, spent) <= delta * (1 + 1e-9)
  if spent > 1e-3:
    assert exact_delta(sigmas, spent * (1 - 1e-6)) > delta * (1 - 1e-9)


def test_a_count_is_that_many_mechanisms():
  many = paid_by(SelfComposedDpEvent(GaussianDpEvent(3.0), 7))
  one, seven = (spending_of(e, REPLACE) for e in ([many], entries(*[3.0] * 7)))
  assert one.noise_multiplier() == seven.noise_multiplier()
  assert (one.charges, seven.charges) == (1, 7)


@pytest.mark.parametrize("relation", CHANGED_UNITS)
@pytest.mark.parametrize("order", ["nested", "independent"])
def test_mechanisms_of_a_plan(relation, order):
  asked = plan(
    1.0, 4.0, num_draws=3, order=order, neighboring_relation=relation
  )
  spent = spending_of([paid_by(asked.event)], relation)
  assert spent.epsilon(DELTA) == asked.composed_epsilon
  paying = asked.charged_noise_multipliers
  assert len(paying) == (3 if order == "nested" else 6)
  gaussians, _ = parts_of(asked.event)
  units = changed_units(relation)
  assert gaussians == [sigma * units for sigma in paying]


def test_mixed_relations_compose():
  """Replacing is removing and adding: twice the sensitivity, half the σ."""
  plans = [plan(1.0), plan(1.0, neighboring_relation=REPLACE)]
  entries = [paid_by(each.event) for each in plans]
  sigma = plans[0].noise_multipliers[1.0]
  for relation, units in ((REPLACE, 2), (REPLACE_SPECIAL, 1)):
    spent = spending_of(entries, relation)
    expected = ((sigma / units) ** -2 + (sigma * 2 / units) ** -2) ** -0.5
    assert spent.noise_multiplier() == pytest.approx(expected, rel=1e-12)


def test_what_is_not_private_is_counted_and_not_composed():
  seeded = paid_by(GaussianDpEvent(0.1), private=False)
  baseline = {"kind": "baseline", "private": False}
  cap = make_cap().as_json()
  spent = spending_of([*entries(2.0), seeded, cap, baseline], REPLACE_SPECIAL)
  assert (spent.charges, spent.not_private) == (3, 2)
  assert spent.noise_multiplier() == pytest.approx(2.0)


def gaussian(sigma: float, count: float):
  return [{"kind": "gaussian", "noise_multiplier": sigma, "count": count}]


@pytest.mark.parametrize(
  ("mechanisms", "said"),
  [
    ([{"kind": "laplace", "scale": 2.0}], "a mechanism of kind 'laplace'"),
    (gaussian(0.0, 1), "0.0"),
    (gaussian(-1.0, 1), "-1.0"),
    (gaussian(math.nan, 1), "nan"),
    (gaussian(1.0, 0), "count=0"),
    (gaussian(1.0, 1.5), "count=1.5"),
    ([{"kind": "gaussian", "noise_multiplier": 1.0}], "'count'"),
    ([{}], "'kind'"),
    (None, "not iterable"),
    ([], "nothing at all"),
  ],
)
def test_what_it_cannot_compose_is_never_zero(mechanisms, said):
  """In entries of before; those of now are events_test's."""
  strange = entries(1.0)[0] | {"mechanisms": mechanisms}
  with pytest.raises(InputError, match="both 'mechanisms' and 'dp_event'"):
    spending_of([strange], REPLACE_SPECIAL)
  del strange["dp_event"]
  with pytest.raises(InputError, match="Entry abababababab of the ledger") as e:
    spending_of([*entries(2.0), strange], REPLACE_SPECIAL)
  assert said in str(e.value)
  with pytest.raises(InputError, match="cannot compose"):
    make_cap().allows([strange])


@pytest.mark.parametrize(
  ("event", "said"),
  [
    (event_as_json(LaplaceDpEvent(1.0)), "'LaplaceDpEvent'"),
    (event_as_json(NonPrivateDpEvent()), "cannot be composed"),
    (event_as_json(GaussianDpEvent(math.nan)), "noise_multiplier=nan"),
    ({"class_name": "GaussianDpEvent"}, "'noise_multiplier'"),
    (event_as_json(GaussianDpEvent(1.0)) | {"noise_multiplier": "1"}, "str"),
    (None, "NoneType"),
    (event_as_json(ComposedDpEvent([])), "nothing at all"),
    ({"class_name": "ComposedDpEvent", "events": {}}, "no list"),
  ],
)
def test_nor_is_an_event_that_it_cannot_compose(event, said):
  strange = entries(1.0)[0] | {"dp_event": event}
  with pytest.raises(InputError, match="Entry abababababab of the ledger") as e:
    spending_of([*entries(2.0), strange], REPLACE_SPECIAL)
  assert said in str(e.value)
  del strange["dp_event"]
  with pytest.raises(InputError, match="'dp_event'"):
    spending_of([strange], REPLACE_SPECIAL)


class TestCap:
  @pytest.mark.parametrize(
    ("epsilon", "relation"),
    [(0.01, SPECIAL), (1.0, REPLACE), (3.3, REPLACE_SPECIAL), (50.0, REPLACE)],
  )
  def test_it_has_room_for_just_the_release_that_it_names(
    self, epsilon, relation
  ):
    cap = make_cap(epsilon, relation=relation)
    exact = plan(epsilon, neighboring_relation=relation)
    over = plan(epsilon * (1 + 1e-6), neighboring_relation=relation)
    assert cap.allows([], exact.event)
    assert not cap.allows([], over.event)
    assert cap.left([], DELTA, relation) == epsilon

  @hypothesis.given(
    epsilon=st.floats(0.05, 20),
    delta=st.sampled_from([1e-9, 1e-6, 1e-3]),
    epsilons=st.lists(st.floats(0.01, 10), max_size=12),
  )
  @hypothesis.settings(max_examples=20, deadline=None)
  def test_what_it_allows_is_as_private_as_it_says(
    self, epsilon, delta, epsilons
  ):
    """By the exact formula, whatever the δ of the releases themselves."""
    cap, released = make_cap(epsilon, delta), []
    for each in epsilons:
      event = plan(each).event
      if cap.allows(released, event):
        released.append(paid_by(event))
    sigmas = [e["dp_event"]["noise_multiplier"] for e in released]
    if sigmas:
      assert exact_delta(sigmas, epsilon) <= delta

  @hypothesis.given(
    epsilon=st.floats(0.05, 20),
    sigmas=st.lists(st.floats(0.5, 200), max_size=8),
    delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
    relation=st.sampled_from([REPLACE_SPECIAL, REPLACE]),
    of_cap=st.sampled_from([REPLACE_SPECIAL, REPLACE]),
  )
  @hypothesis.settings(max_examples=20, deadline=None)
  def test_what_is_left_can_be_had_and_a_little_more_cannot(
    self, epsilon, sigmas, delta, relation, of_cap
  ):
    cap, spent = make_cap(epsilon, relation=of_cap), entries(*sigmas)
    left = cap.left(spent, delta, relation)

    def allowed(epsilon):
      asked = ReleasePlan(
        epsilons=(epsilon,), delta=delta, neighboring_relation=relation
      )
      return cap.allows(spent, asked.event)

    if left:
      assert float(f"{left:.5g}") == left
      assert allowed(left)
      assert not allowed(left * 1.00011)
    else:
      assert not allowed(1e-4)

  def test_releases_at_other_deltas_count_by_their_noise(self):
    """ε = 1 at δ = 1e-9 takes more noise than at 1e-5, and costs less."""
    cap = make_cap(2.0)
    loud, quiet = (
      ReleasePlan(epsilons=(1.0,), delta=delta) for delta in (1e-5, 1e-9)
    )
    room = [
      cap.left([paid_by(p.event)], DELTA, REPLACE_SPECIAL)
      for p in (loud, quiet)
    ]
    assert room[0] < room[1] < 2.0

  def test_looser_and_tighter(self):
    cap = make_cap(4.0)
    assert make_cap(5.0).is_looser_than(cap)
    assert make_cap(4.0, delta=1e-4).is_looser_than(cap)
    assert make_cap(1.0, delta=1e-4).is_looser_than(cap)
    assert cap.is_looser_than(make_cap(4.0, relation=REPLACE))
    assert make_cap(1.0, relation=REPLACE).is_looser_than(cap)
    for same_or_tighter in (
      make_cap(4.0),
      make_cap(4.0, relation=SPECIAL),
      make_cap(3.0),
      make_cap(4.0, delta=1e-6),
    ):
      assert not same_or_tighter.is_looser_than(cap)

  def test_a_cap_that_promises_nothing(self):
    with pytest.raises(InputError, match="epsilon=inf must be positive and fi"):
      make_cap(math.inf)
    with pytest.raises(InputError, match="must lie strictly"):
      make_cap(1.0, 1.0)

  def test_it_survives_an_entry(self):
    both = [make_cap(3.0), make_cap(8.0, 1e-6, REPLACE)]
    kept = [both[0].as_json(), *entries(2.0), both[1].as_json()]
    assert caps(kept) == both
    assert str(both[1]) == "epsilon 8 at delta 1e-06 (REPLACE_ONE)"


def test_the_margin_is_far_below_that_of_the_accountant():
  assert _SLACK <= accounting._MARGIN / 1000
