"""Composition and caps, against first principles and another accountant."""

import math

import dp_accounting
import hypothesis
import mpmath
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from hypothesis import strategies as st

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger import spending as budget
from oneshot_dp.pipeline.ledger.cap import _SLACK, Cap, caps
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.spending import Gaussian

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5


def paid_by(*mechanisms: Gaussian, private=True):
  return {
    "kind": "release",
    "entry": "ab" * 32,
    "private": private,
    "mechanisms": [m.as_json() for m in mechanisms],
  }


def entries(*sigmas: float):
  return [paid_by(Gaussian(noise_multiplier=s)) for s in sigmas]


def make_cap(epsilon=8.0, delta=DELTA, relation=ADD_OR_REMOVE):
  return Cap(
    max_epsilon=epsilon, max_delta=delta, neighboring_relation=relation
  )


def plan(*epsilons: float, **changes) -> ReleasePlan:
  return ReleasePlan(epsilons=epsilons, delta=DELTA, **changes)


def mechanisms_of(asked: ReleasePlan) -> list[Gaussian]:
  found = Charge.of_plan(asked, NoiseSource()).mechanisms
  assert all(isinstance(mechanism, Gaussian) for mechanism in found)
  return [m for m in found if isinstance(m, Gaussian)]


def exact_delta(sigmas, epsilon):
  """δ of the composition, in 40 digits: Balle & Wang with Σσ⁻²."""
  with mpmath.workdps(40):
    mu = mpmath.sqrt(mpmath.fsum(mpmath.mpf(s) ** -2 for s in sigmas))
    tail = mpmath.ncdf(-mu / 2 - epsilon / mu)
    return float(
      mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * tail
    )


@pytest.mark.parametrize(
  "mechanisms",
  [
    [(2.0, 1)],
    [(1.0, 1), (5.0, 3)],
    [(30.0, 50), (4.0, 2), (1.5, 1)],
  ],
)
def test_composition_agrees_with_privacy_loss_distributions(mechanisms):
  listed = [Gaussian(noise_multiplier=s, count=k) for s, k in mechanisms]
  spent = budget.compose([paid_by(*listed)], ADD_OR_REMOVE)
  # An upper bound, by its discretisation.
  accountant = PLDAccountant(value_discretization_interval=1e-3)
  for sigma, count in mechanisms:
    accountant.compose(dp_accounting.GaussianDpEvent(sigma), count)
  for delta in (1e-8, 1e-5, 1e-3):
    found, bound = spent.epsilon(delta), accountant.get_epsilon(delta)
    assert found <= bound * (1 + 1e-6)
    assert found == pytest.approx(bound, rel=0.01)


@hypothesis.given(
  st.lists(st.floats(0.3, 100), min_size=1, max_size=20),
  st.sampled_from([1e-9, 1e-5, 1e-2]),
)
@hypothesis.settings(max_examples=50, deadline=None)
def test_composition_is_never_below_the_truth(sigmas, delta):
  spent = budget.compose(entries(*sigmas), ADD_OR_REMOVE).epsilon(delta)
  assert exact_delta(sigmas, spent) <= delta * (1 + 1e-9)
  if spent > 1e-3:
    assert exact_delta(sigmas, spent * (1 - 1e-6)) > delta * (1 - 1e-9)


def test_a_count_is_that_many_mechanisms():
  many = paid_by(Gaussian(noise_multiplier=3.0, count=7))
  one, seven = (
    budget.compose(e, REPLACE) for e in ([many], entries(*[3.0] * 7))
  )
  assert one.noise_multiplier == seven.noise_multiplier
  assert (one.charges, seven.charges) == (1, 7)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize("order", ["nested", "independent"])
def test_mechanisms_of_a_plan(relation, order):
  asked = plan(
    1.0, 4.0, num_draws=3, order=order, neighboring_relation=relation
  )
  mechanisms = mechanisms_of(asked)
  sigmas = [s for m in mechanisms for s in m.under(relation)]
  assert sorted(sigmas) == sorted(asked.charged_noise_multipliers)
  assert [m.count for m in mechanisms] == [3] * len(mechanisms)
  spent = budget.compose([paid_by(*mechanisms)], relation)
  assert spent.epsilon(DELTA) == pytest.approx(
    asked.composed_epsilon, rel=1e-12
  )


def test_a_replaced_example_is_one_out_and_one_in():
  mechanism = Gaussian(noise_multiplier=6.0, count=2)
  assert mechanism.under(ADD_OR_REMOVE) == [6.0, 6.0]
  assert mechanism.under(SPECIAL) == [6.0, 6.0]
  assert mechanism.under(REPLACE) == [3.0, 3.0]


def test_what_is_not_private_is_counted_and_not_composed():
  seeded = paid_by(Gaussian(noise_multiplier=0.1), private=False)
  baseline = {"kind": "baseline", "private": False}
  cap = make_cap().as_json()
  spent = budget.compose([*entries(2.0), seeded, cap, baseline], ADD_OR_REMOVE)
  assert (spent.charges, spent.not_private) == (3, 2)
  assert spent.noise_multiplier == pytest.approx(2.0)


@pytest.mark.parametrize(
  ("mechanisms", "said"),
  [
    ([{"kind": "laplace", "scale": 2.0}], "a mechanism of kind 'laplace'"),
    ([{"kind": "gaussian", "noise_multiplier": 0.0, "count": 1}], "0.0"),
    ([{"kind": "gaussian", "noise_multiplier": -1.0, "count": 1}], "-1.0"),
    ([{"kind": "gaussian", "noise_multiplier": math.nan, "count": 1}], "nan"),
    ([{"kind": "gaussian", "noise_multiplier": 1.0, "count": 0}], "0 of"),
    ([{"kind": "gaussian", "noise_multiplier": 1.0, "count": 1.5}], "1.5 of"),
    ([{"kind": "gaussian", "noise_multiplier": 1.0}], "'count'"),
    ([{}], "'kind'"),
    (None, "not iterable"),
  ],
)
def test_what_it_cannot_compose_is_never_zero(mechanisms, said):
  strange = paid_by() | {"mechanisms": mechanisms}
  with pytest.raises(InputError, match="Entry abababababab of the ledger") as e:
    budget.compose([*entries(2.0), strange], ADD_OR_REMOVE)
  assert said in str(e.value)
  with pytest.raises(InputError, match="cannot compose"):
    make_cap().allows([strange])
  del strange["mechanisms"]
  with pytest.raises(InputError, match="'mechanisms'"):
    budget.compose([strange], ADD_OR_REMOVE)


class TestCap:
  @pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.3, 8.0, 50.0])
  @pytest.mark.parametrize("relation", NeighboringRelation)
  def test_it_has_room_for_just_the_release_that_it_names(
    self, epsilon, relation
  ):
    cap = make_cap(epsilon, relation=relation)
    exact = plan(epsilon, neighboring_relation=relation)
    over = plan(epsilon * (1 + 1e-6), neighboring_relation=relation)
    assert cap.allows([], mechanisms_of(exact))
    assert not cap.allows([], mechanisms_of(over))
    assert cap.left([], DELTA, relation) == epsilon

  @hypothesis.given(
    epsilon=st.floats(0.05, 20),
    delta=st.sampled_from([1e-9, 1e-6, 1e-3]),
    epsilons=st.lists(st.floats(0.01, 10), max_size=12),
  )
  @hypothesis.settings(max_examples=60, deadline=None)
  def test_what_it_allows_is_as_private_as_it_says(
    self, epsilon, delta, epsilons
  ):
    """By the exact formula, whatever the δ of the releases themselves."""
    cap, released = make_cap(epsilon, delta), []
    for each in epsilons:
      mechanisms = mechanisms_of(plan(each))
      if cap.allows(released, mechanisms):
        released.append(paid_by(*mechanisms))
    sigmas = [e["mechanisms"][0]["noise_multiplier"] for e in released]
    if sigmas:
      assert exact_delta(sigmas, epsilon) <= delta

  @hypothesis.given(
    epsilon=st.floats(0.05, 20),
    sigmas=st.lists(st.floats(0.5, 200), max_size=8),
    delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
    relation=st.sampled_from([ADD_OR_REMOVE, REPLACE]),
    of_cap=st.sampled_from([ADD_OR_REMOVE, REPLACE]),
  )
  @hypothesis.settings(max_examples=60, deadline=None)
  def test_what_is_left_can_be_had_and_a_little_more_cannot(
    self, epsilon, sigmas, delta, relation, of_cap
  ):
    cap, spent = make_cap(epsilon, relation=of_cap), entries(*sigmas)
    left = cap.left(spent, delta, relation)

    def allowed(epsilon):
      asked = ReleasePlan(
        epsilons=(epsilon,), delta=delta, neighboring_relation=relation
      )
      return cap.allows(spent, mechanisms_of(asked))

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
      cap.left([paid_by(*mechanisms_of(p))], DELTA, ADD_OR_REMOVE)
      for p in (loud, quiet)
    ]
    assert room[0] < room[1] < 2.0

  def test_looser_and_tighter(self):
    cap = make_cap(4.0)
    assert make_cap(5.0).is_looser_than(cap)
    assert make_cap(4.0, delta=1e-4).is_looser_than(cap)
    assert cap.is_looser_than(make_cap(4.0, relation=REPLACE))
    for same_or_tighter in (
      make_cap(4.0),
      make_cap(4.0, relation=SPECIAL),
      make_cap(3.0),
      make_cap(4.0, delta=1e-6),
    ):
      assert not same_or_tighter.is_looser_than(cap)

  @pytest.mark.parametrize(
    ("epsilon", "delta", "said"),
    [
      (0.0, 1e-5, "epsilon=0.0 must be positive"),
      (math.inf, 1e-5, "epsilon=inf must be positive and finite"),
      (1.0, 0.0, "delta=0.0 must lie strictly"),
      (1.0, 1.0, "delta=1.0 must lie strictly"),
    ],
  )
  def test_a_cap_that_promises_nothing(self, epsilon, delta, said):
    with pytest.raises(InputError, match=said):
      make_cap(epsilon, delta)

  def test_it_survives_an_entry(self):
    both = [make_cap(3.0), make_cap(8.0, 1e-6, REPLACE)]
    kept = [both[0].as_json(), *entries(2.0), both[1].as_json()]
    assert caps(kept) == both
    assert str(both[1]) == "epsilon 8 at delta 1e-06 (REPLACE_ONE)"


def test_the_margin_is_far_below_that_of_the_accountant():
  assert _SLACK <= accounting._MARGIN / 1000
