import itertools
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import (
  ComposedDpEvent,
  GaussianDpEvent,
  NeighboringRelation,
  PoissonSampledDpEvent,
  SelfComposedDpEvent,
  gaussian_mechanism,
)
from dp_accounting.pld import PLDAccountant

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.events import CHANGED_UNITS
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan, composed_epsilon
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum
from oneshot_dp.linear_dp.one_step.release import (
  baseline_without_privacy,
  release,
)
from tests.linear_dp.watched import WatchedSource

K, D = 4, 10_000
DELTA = 1e-6
EPSILONS = (0.5, 8.0, 2.0, 1.0)


def make_grid(**changes):
  fields: dict[str, Any] = {"num_classes": K, "feature_dim": D}
  return ClippedGradientGrid(**fields | changes)


def make_secret(seed=0, **changes):
  rng = np.random.default_rng(seed)
  grid = make_grid(**changes)
  sums = rng.integers(-(2**40), 2**40, (grid.num_classes, grid.row_dim))
  return SecretSum(grid=grid, num_examples=5000, secret_class_sums=sums)


def make_plan(epsilons=(1.0, 8.0, 2.0), **changes):
  fields: dict[str, Any] = {"epsilons": epsilons, "delta": DELTA}
  return ReleasePlan(**fields | changes)


def released(plan, seed: int | None = 1, secret=None):
  secret = secret or make_secret()
  source = NoiseSource(seed)
  return list(release(secret, plan, source, charge=lambda plan, source: None))


def noises(releases, secret=None):
  secret = secret or make_secret()
  exact = baseline_without_privacy(secret, make_plan()).noisy_sum
  return [(r.noisy_sum - exact).ravel() for r in releases]


def correlation(a, b):
  return np.corrcoef(a, b)[0, 1]


@pytest.mark.parametrize("order", ["nested", "independent"])
def test_charged_once_before_any_random_bit(order):
  events = []
  plan = make_plan(order=order, num_draws=2)
  source = WatchedSource(events)
  charged = []

  def charge(plan, source):
    events.append("charge")
    charged.append((plan, source))

  releases = release(make_secret(), plan, source, charge=charge)
  next(releases)
  assert events[0] == "charge"
  assert "noise" in events
  assert len(list(releases)) == 5
  assert events.count("charge") == 1
  assert charged == [(plan, source)]
  events.clear()

  def refuse(plan, source):
    raise InputError("over budget")

  releases = release(make_secret(), plan, source, charge=refuse)
  with pytest.raises(InputError, match="over budget"):
    next(releases)
  assert events == list(releases) == []


@pytest.mark.parametrize("order", ["nested", "independent"])
@pytest.mark.parametrize("relation", CHANGED_UNITS)
def test_every_release_has_the_noise_that_it_states(order, relation):
  plan = make_plan(order=order, num_draws=2, neighboring_relation=relation)
  releases = released(plan)
  sensitivity = make_grid().sensitivity(relation)
  order_of_release = list(itertools.product((0, 1), (8.0, 2.0, 1.0)))
  assert [(r.draw, r.statement.epsilon) for r in releases] == order_of_release
  for r, noise in zip(releases, noises(releases), strict=True):
    statement = r.statement
    sigma = accounting.noise_multiplier(statement.epsilon, DELTA)
    assert statement.noise_multiplier == sigma
    assert statement.delta == DELTA
    assert statement.sensitivity == sensitivity
    assert statement.neighboring_relation == relation
    product = sigma * sensitivity
    assert product < statement.noise_sd <= product * (1 + 1e-15)
    spread = 5 * math.sqrt(1 / (2 * noise.size))
    assert noise.std() == pytest.approx(statement.noise_sd, rel=spread)
    assert abs(noise.mean()) < 5 * statement.noise_sd / math.sqrt(noise.size)


@pytest.mark.parametrize("size", [{"num_classes": 2, "feature_dim": 3}, {}])
def test_with_a_seed_a_draw_does_not_depend_on_how_many_there_are(size):
  secret = make_secret(**size)
  one, three = (
    released(make_plan(num_draws=draws), seed=1, secret=secret)
    for draws in (1, 3)
  )
  for alone, among in zip(one, three[: len(one)], strict=True):
    np.testing.assert_array_equal(alone.noisy_sum, among.noisy_sum)


@pytest.mark.parametrize("order", ["nested", "independent"])
@pytest.mark.parametrize("seed", [None, 1])
def test_draws_of_a_small_sum_share_no_noise(seed, order):
  """They are drawn many at a time: 2048 // 6 of these."""
  secret = make_secret(num_classes=2, feature_dim=3)
  plan = make_plan((2.0, 8.0), order=order, num_draws=2000)
  found = released(plan, seed, secret)
  assert [r.draw for r in found] == [i // 2 for i in range(4000)]
  exact = baseline_without_privacy(secret, plan).noisy_sum
  for epsilon in plan.epsilons:
    alone = [r for r in found if r.statement.epsilon == epsilon]
    noise = np.array([(r.noisy_sum - exact).ravel() for r in alone])
    assert len(np.unique(noise, axis=0)) == 2000
    sd = alone[0].statement.noise_sd
    assert np.std(noise) == pytest.approx(sd, rel=5 / math.sqrt(noise.size))
    # Of bits that differ from run to run, seven deviations: one in 10^11.
    luck = (7 if seed is None else 5) / math.sqrt(len(noise))
    # Entries of a draw, and draws beside each other or a batch apart.
    among_entries = np.corrcoef(noise.T) - np.eye(6)
    assert np.abs(among_entries).max() < luck
    for apart in (1, 2, 341):
      assert abs(correlation(noise[apart:, 0], noise[:-apart, 0])) < luck


# The joint law of a nested sweep. All heads of a draw are post-processing of
# one real vector G + Z_1: the j-th is round((G + Z_1) + Z_2 + … + Z_j), with
# Z_2 … Z_j independent of the data. rounded_gaussian_test has the law of each
# rounding.


def test_heads_of_a_draw_are_one_chain_of_growing_noise():
  """To the bit: nothing else is drawn, nothing is drawn twice."""
  plan = make_plan(EPSILONS, num_draws=2)
  releases = released(plan, 2)
  noise = noises(releases)
  source = NoiseSource(seed=2)
  for draw in range(2):
    chain = GaussianChain((K, D), source)
    for r, found in zip(releases, noise, strict=True):
      if r.draw == draw:
        expected = chain.extend(r.statement.noise_sd).ravel()
        np.testing.assert_array_equal(found, expected)
  of_first_draw = [r.statement.noise_sd for r in releases if r.draw == 0]
  assert of_first_draw == sorted(of_first_draw)


@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("order", ["nested", "independent"])
@pytest.mark.parametrize("relation", CHANGED_UNITS)
def test_all_heads_together_tell_what_was_charged(relation, order, draws):
  """Whoever combines all heads as well as can be learns Σσ⁻², no more.

  Shifting G by the sensitivity Δ moves every head by Δ, and the best linear
  test of that has the squared signal-to-noise ratio Δ²·1ᵀ Cov⁻¹ 1, which is μ²
  of their joint Gaussian mechanism: 1/σ² of the least noisy head of each draw
  when they are nested, of every head when they are not.
  """
  plan = make_plan(
    EPSILONS, order=order, num_draws=draws, neighboring_relation=relation
  )
  releases = released(plan)
  noise = np.array(noises(releases))
  sensitivity = releases[0].statement.sensitivity
  ones = np.ones(len(noise))
  found = sensitivity**2 * ones @ np.linalg.solve(np.cov(noise), ones)
  charged = sum(s**-2 for s in plan.charged_noise_multipliers)
  assert found == pytest.approx(charged, rel=5 * math.sqrt(2 / (K * D)))


# What is charged.


@pytest.mark.parametrize("num_draws", [1, 3])
def test_what_is_charged(num_draws):
  """Of a nested draw the largest epsilon, once."""
  epsilons = (0.5, 1.0, 2.0, 4.0, 8.0)
  sigmas = {e: accounting.noise_multiplier(e, 1e-5) for e in epsilons}
  fields = {"delta": 1e-5, "num_draws": num_draws}
  nested = make_plan(epsilons, order="nested", **fields)
  assert nested.charged_noise_multipliers == (sigmas[8.0],) * num_draws
  independent = make_plan(epsilons, order="independent", **fields)
  charged = sorted(independent.charged_noise_multipliers)
  assert charged == sorted(list(sigmas.values()) * num_draws)
  assert list(nested.noise_multipliers) == sorted(epsilons, reverse=True)
  if num_draws == 1:
    assert nested.composed_epsilon == pytest.approx(8, rel=1e-8)
    assert independent.composed_epsilon == pytest.approx(9.96, abs=5e-3)
  else:
    together = accounting.compose([sigmas[8.0]] * 3)
    assert nested.composed_epsilon == accounting.epsilon_of(together, 1e-5)
    assert nested.composed_epsilon > 1.5 * 8
    assert independent.composed_epsilon > nested.composed_epsilon


def test_plans_compose():
  nested = make_plan((1.0, 8.0))
  independent = make_plan((1.0, 8.0), order="independent", num_draws=2)
  one, eight = (accounting.noise_multiplier(e, DELTA) for e in (1.0, 8.0))
  together = (3 * eight**-2 + 2 * one**-2) ** -0.5
  assert composed_epsilon([nested, independent]) == pytest.approx(
    gaussian_mechanism.get_epsilon_gaussian(together, DELTA), rel=1e-8
  )
  assert composed_epsilon([nested]) == nested.composed_epsilon


@pytest.mark.parametrize(
  "other",
  [{"delta": 1e-7}, {"neighboring_relation": NeighboringRelation.REPLACE_ONE}],
)
def test_plans_of_other_guarantees_do_not(other):
  with pytest.raises(InputError, match="compose at one delta"):
    composed_epsilon([make_plan(), make_plan(**other)])


SAMPLING = PoissonSampling(probability=0.01, num_steps=20)


def sampled_plan(epsilons=(1.0, 4.0), **changes):
  options: dict[str, Any] = {"order": "independent", "sampling": SAMPLING}
  return make_plan(epsilons, **options | changes)


@pytest.mark.slow
def test_the_noise_of_a_sampled_plan_is_that_of_a_step():
  plan = sampled_plan(num_draws=2)
  assert list(plan.noise_multipliers) == [4.0, 1.0]
  for epsilon, sigma in plan.noise_multipliers.items():
    assert sigma == SAMPLING.noise_multiplier(epsilon, DELTA)
    assert epsilon * (1 - 2e-3) < SAMPLING.epsilon_of(sigma, DELTA) <= epsilon
  sigmas = tuple(plan.noise_multipliers.values())
  assert plan.charged_noise_multipliers == sigmas * 2
  alone = sampled_plan((4.0,))
  assert alone.charged_noise_multipliers == sigmas[:1]
  assert alone.composed_epsilon == composed_epsilon([alone]) <= 4


@pytest.mark.slow
def test_sampled_plans_compose_by_the_accountant_of_dp_accounting():
  """All steps of all heads, each a Poisson sample, and all else."""
  plan = sampled_plan(num_draws=2)
  events: list[Any] = [
    SelfComposedDpEvent(
      PoissonSampledDpEvent(0.01, GaussianDpEvent(sigma)), 2 * 20
    )
    for sigma in plan.noise_multipliers.values()
  ]
  # Nested: only the largest ε pays.
  plans = [make_plan((0.5, 2.0)), plan]
  events.append(GaussianDpEvent(accounting.noise_multiplier(2.0, DELTA)))
  accountant = PLDAccountant(value_discretization_interval=1e-4)
  expected = accountant.compose(ComposedDpEvent(events)).get_epsilon(DELTA)
  found = composed_epsilon(plans)
  assert expected * (1 - 1e-6) <= found <= expected * (1 + 5e-3)
  assert found > 4


def test_private_only_with_the_noise_of_the_operating_system():
  plan = make_plan((1.0,))
  (private,), (seeded,) = released(plan, None), released(plan, 0)
  baseline = baseline_without_privacy(make_secret(), plan)
  assert private.statement.is_private
  assert private.statement.noise_source == "os.urandom"
  for r in (seeded, baseline):
    assert not r.statement.is_private
    assert "NOT PRIVATE" in r.statement.noise_source
  assert baseline.statement.epsilon == math.inf
  assert baseline.statement.noise_sd == baseline.gradient_noise_sd == 0


def test_statistic_is_exact_where_float64_is_not():
  grid = make_grid(feature_dim=1, initial_bias=3.0)
  sums = np.array([[2**52 + 1], [2**52], [3], [2**51 - 7]])
  secret = SecretSum(grid=grid, num_examples=9, secret_class_sums=sums)
  found = baseline_without_privacy(secret, make_plan()).noisy_sum
  numerator, denominator = grid.initial_probability.as_integer_ratio()
  total = int(sums.sum())
  shared = int(found[0, 0]) + 2**52 + 1
  assert abs(2 * (shared * denominator - numerator * total)) <= denominator
  assert (found + sums == shared).all()
  assert shared != int(np.rint(grid.initial_probability * float(total)))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"epsilons": ()}, "epsilons is empty"),
    ({"epsilons": (1.0, 2.0, 1.0)}, "an epsilon twice"),
    ({"epsilons": (1.0, 0.0)}, "epsilon=0.0 must be positive"),
    ({"epsilons": (math.inf,)}, "epsilon=inf must be positive and finite"),
    ({"epsilons": (math.nan,)}, "epsilon=nan must be positive"),
    ({"delta": 0.0}, "delta=0.0 must lie strictly"),
    ({"delta": 1.0}, "delta=1.0 must lie strictly"),
    ({"num_draws": 0}, "num_draws=0 must be at least 1"),
    ({"epsilons": (1.0, 1.0 + 1e-15)}, "an epsilon twice, or nearly"),
    ({"epsilons": (1e-8,), "delta": 1e-12}, "nothing could be learned"),
    ({"sampling": SAMPLING}, "order='nested': heads of random batches share"),
    (
      {
        "sampling": SAMPLING,
        "order": "independent",
        "neighboring_relation": NeighboringRelation.REPLACE_ONE,
      },
      "accounted for where nothing takes an example's place",
    ),
    (
      {"sampling": SAMPLING, "order": "independent", "delta": 1e-13},
      "delta=1e-13 is too small",
    ),
  ],
)
def test_what_cannot_be_planned_is_refused(changes, message):
  with pytest.raises(InputError, match=message):
    make_plan(**changes)
