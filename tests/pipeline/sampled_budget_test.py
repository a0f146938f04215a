"""Random batches in the ledger: what is written, what it adds up to, caps."""

import json
import math
import re
from typing import Any

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.gaussian import noise_multiplier
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import (
  PoissonSampling,
  SampledGaussian,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger import spending as budget
from oneshot_dp.pipeline.ledger.cap import Cap
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import (
  Gaussian,
  Payment,
  Sampled,
  changed_units,
)

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5
THIRD = round(2**32 / 3) / 2**32
SAMPLING = PoissonSampling(probability=THIRD, num_steps=6)
OLD = {
  "kind": "release",
  "entry": "cd" * 32,
  "private": True,
  "mechanisms": [{"kind": "gaussian", "noise_multiplier": 3.0, "count": 2}],
}
"""As version 0.1 wrote it."""


def steps(
  sigma: float = 1.1, sampling: PoissonSampling = SAMPLING, count: int = 1
) -> Sampled:
  of_step = SampledGaussian(noise_multiplier=sigma, sampling=sampling)
  return Sampled(steps=of_step, count=count)


def plan(*epsilons: float, **changes: Any) -> ReleasePlan:
  fields: dict[str, Any] = {
    "delta": DELTA,
    "order": "independent",
    "sampling": SAMPLING,
  }
  return ReleasePlan(epsilons=epsilons, **fields | changes)


def entry(*mechanisms: Payment) -> dict[str, Any]:
  listed = [m.as_json() for m in mechanisms]
  return OLD | {
    "entry": "ab" * 32,
    "mechanisms": json.loads(json.dumps(listed)),
  }


def oracle(
  mechanisms: list[Payment], delta: float, relation: NeighboringRelation
) -> float:
  """By dp_accounting alone, on a grid of its own."""
  accountant = PLDAccountant(relation, value_discretization_interval=7e-4)
  for mechanism in mechanisms:
    if isinstance(mechanism, Gaussian):
      sigma = mechanism.noise_multiplier
      event = dp_accounting.GaussianDpEvent(sigma)
    else:
      event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
          mechanism.steps.sampling.probability,
          dp_accounting.GaussianDpEvent(mechanism.steps.noise_multiplier),
        ),
        mechanism.steps.sampling.num_steps,
      )
    accountant.compose(event, mechanism.count)
  return accountant.get_epsilon(delta)


class TestEntry:
  def test_it_is_written_and_read_back(self, ledger_dir):
    """Sigma, q, T and how many, to the last bit."""
    asked = plan(5.0, 8.0, num_draws=3)
    ledger = Ledger("pets", ledger_dir)
    ledger.charge(Charge.of_plan(asked, NoiseSource()))
    (written,) = ledger.entries()
    assert written["mechanisms"] == [
      {
        "kind": "sampled gaussian",
        "noise_multiplier": asked.noise_multipliers[epsilon],
        "count": 3,
        "probability": THIRD,
        "num_steps": 6,
      }
      for epsilon in (8.0, 5.0)
    ]
    spent = ledger.spending(ADD_OR_REMOVE)
    assert spent.gaussians == ()
    assert spent.noise_multiplier is None
    assert spent.sampled == tuple(
      SampledGaussian(
        noise_multiplier=asked.noise_multipliers[epsilon], sampling=SAMPLING
      )
      for epsilon in (8.0, 8.0, 8.0, 5.0, 5.0, 5.0)
    )
    assert spent.epsilon(DELTA) == pytest.approx(asked.composed_epsilon)

  def test_full_batches_stay_gaussian(self):
    asked = plan(2.0, sampling=None)
    (mechanism,) = Charge.of_plan(asked, NoiseSource()).mechanisms
    assert mechanism == Gaussian(noise_multiplier=noise_multiplier(2.0, DELTA))

  def test_a_replacement_has_the_noise_of_a_step_as_it_is(self):
    """The relation is the accountant's to know: nothing is halved twice."""
    for relation in NeighboringRelation:
      spent = budget.compose([entry(steps(1.3))], relation)
      assert [each.noise_multiplier for each in spent.sampled] == [1.3]

  def test_entries_of_before_are_read_as_before(self):
    spent = budget.compose([OLD], ADD_OR_REMOVE)
    assert (spent.gaussians, spent.sampled) == ((3.0, 3.0), ())
    both = budget.compose([OLD, entry(steps())], REPLACE)
    assert (both.gaussians, both.charges) == ((1.5, 1.5), 2)
    assert both.sampled == (steps().steps,)

  @pytest.mark.parametrize(
    "changes",
    [
      {"probability": 0.0},
      {"probability": -0.1},
      {"probability": 2.0},
      {"probability": math.nan},
      {"probability": math.inf},
      {"probability": "0.5"},
      {"probability": None},
      {"num_steps": 0},
      {"num_steps": -1},
      {"num_steps": 7.5},
      {"num_steps": "3"},
      {"num_steps": None},
      {"noise_multiplier": 0.0},
      {"noise_multiplier": -1.0},
      {"noise_multiplier": math.nan},
      {"noise_multiplier": math.inf},
      {"noise_multiplier": "1"},
      {"count": 0},
      {"count": "1"},
      {"kind": "sampled laplace"},
    ],
    ids=str,
  )
  def test_what_it_cannot_compose_is_never_zero(self, changes):
    strange = entry(steps())
    strange["mechanisms"][0] |= changes
    with pytest.raises(InputError) as caught:
      budget.compose([OLD, strange], ADD_OR_REMOVE)
    message = str(caught.value)
    assert message.startswith("Entry abababababab of the ledger was paid")
    assert "\n" not in message
    with pytest.raises(InputError, match="cannot compose"):
      make_cap(50.0).allows([strange])

  @pytest.mark.parametrize(
    "field", ["kind", "noise_multiplier", "count", "probability", "num_steps"]
  )
  def test_what_is_missing_is_never_zero(self, field):
    strange = entry(steps())
    del strange["mechanisms"][0][field]
    with pytest.raises(InputError, match=f"Entry abababababab.*'{field}'"):
      budget.compose([strange], ADD_OR_REMOVE)


@pytest.mark.parametrize(
  "relation", [ADD_OR_REMOVE, REPLACE, SPECIAL], ids=lambda r: r.name
)
@pytest.mark.parametrize(
  "mechanisms",
  [
    [steps()],
    [steps(count=3)],
    [Gaussian(noise_multiplier=2.0, count=2), steps(0.9)],
    [
      steps(1.2),
      steps(1.4, PoissonSampling(probability=0.05, num_steps=40)),
      Gaussian(noise_multiplier=5.0),
    ],
  ],
  ids=["one", "thrice", "and Gaussians", "of two kinds"],
)
def test_composition_is_that_of_privacy_loss_distributions(
  mechanisms, relation
):
  entries = [entry(mechanism) for mechanism in mechanisms]
  spent = budget.compose(entries, relation)
  for delta in (1e-7, 1e-4):
    expected = oracle(mechanisms, delta, relation)
    assert spent.epsilon(delta) == pytest.approx(expected, rel=0.01)


def test_sampling_every_row_saves_nothing():
  """q = 1: exact Gaussians, in every relation."""
  every = steps(2.0, PoissonSampling(probability=1.0, num_steps=4))
  exact = entry(Gaussian(noise_multiplier=2.0, count=4))
  for relation in NeighboringRelation:
    found, expected = (
      budget.compose([e], relation).epsilon(DELTA)
      for e in (entry(every), exact)
    )
    assert expected <= found * (1 + 1e-6)
    assert found == pytest.approx(expected, rel=0.01)


def make_cap(
  epsilon: float, relation: NeighboringRelation = ADD_OR_REMOVE
) -> Cap:
  return Cap(
    max_epsilon=epsilon, max_delta=DELTA, neighboring_relation=relation
  )


def full_batch(
  epsilon: float, relation: NeighboringRelation = ADD_OR_REMOVE
) -> tuple[Payment, ...]:
  asked = plan(epsilon, sampling=None, neighboring_relation=relation)
  return Charge.of_plan(asked, NoiseSource()).mechanisms


class TestCap:
  def test_it_has_room_for_the_release_that_it_names(self):
    paid = Charge.of_plan(plan(8.0), NoiseSource()).mechanisms
    assert make_cap(8.0).allows([], paid)
    assert not make_cap(7.98).allows([], paid)
    assert not make_cap(8.0).allows([entry(*paid)], paid)

  @pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
  def test_everything_together(self, order):
    """Whatever came first: exactly up to what the oracle says."""
    mechanisms = [steps(1.1), Gaussian(noise_multiplier=2.0)][::order]
    whole = oracle(mechanisms, DELTA, ADD_OR_REMOVE)
    first, then = entry(mechanisms[0]), mechanisms[1]
    assert make_cap(whole * 1.01).allows([first], [then])
    assert not make_cap(whole * 0.99).allows([first], [then])

  @pytest.mark.parametrize(
    ("mechanisms", "of_cap", "relation"),
    [
      ([steps(1.1)], ADD_OR_REMOVE, ADD_OR_REMOVE),
      (
        [Gaussian(noise_multiplier=2.0), steps(1.1)],
        ADD_OR_REMOVE,
        REPLACE,
      ),
      ([steps(1.1)], REPLACE, REPLACE),
    ],
    ids=["one", "and a Gaussian", "replaced"],
  )
  def test_what_is_left_can_be_had_and_a_little_more_cannot(
    self, mechanisms, of_cap, relation
  ):
    cap, spent = make_cap(9.0, of_cap), [entry(m) for m in mechanisms]
    left = cap.left(spent, DELTA, relation)
    assert left > 0
    assert float(f"{left:.3g}") == left
    assert cap.allows(spent, full_batch(left, relation))
    assert not cap.allows(spent, full_batch(left * 1.011, relation))

  def test_nothing_is_left_where_random_batches_took_it(self):
    cap = make_cap(8.0)
    paid = entry(*Charge.of_plan(plan(8.0), NoiseSource()).mechanisms)
    left = cap.left([paid], DELTA, ADD_OR_REMOVE)
    assert left < 0.1
    assert cap.left([paid, entry(steps())], DELTA, ADD_OR_REMOVE) == 0

  def test_a_ledger_refuses_what_would_break_it(self, ledger_dir):
    ledger = Ledger("pets", ledger_dir)
    ledger.set_cap(make_cap(9.0))
    ledger.charge(Charge.of_plan(plan(8.0), NoiseSource()))
    with pytest.raises(InputError, match="would break the cap of 'pets'") as e:
      ledger.charge(Charge.of_plan(plan(5.0), NoiseSource()))
    assert re.search(r"epsilon (8|7\.99\d*) is spent", str(e.value))
    assert "is left; ask for less" in str(e.value)
    assert len(ledger.entries()) == 2


def test_units_of_a_relation():
  assert [changed_units(r) for r in (ADD_OR_REMOVE, REPLACE, SPECIAL)] == [
    1,
    2,
    1,
  ]
