"""Nested heads: their cost, going on from one, and what is refused."""

import dataclasses
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions, PublicStart
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import baseline, check_plan, cost, train
from tests.sample_caches import clusters

N, D, K = 400, 8, 4
DELTA = 1e-4


def clustered_data(units=False):
  embeddings, labels = clusters((N // K,) * K, D)
  unit_ids = None
  if units:
    unit_ids = np.arange(N) // 2
  return dataset_from_arrays(
    embeddings, labels, num_classes=K, unit_ids=unit_ids
  )


def train_on(
  head,
  epsilons=(1.0,),
  *,
  data=None,
  parent_head=None,
  source=None,
  options=None,
  draw=0,
):
  """Returns a head of each ε, of the given rows or of `clustered_data`."""
  spent = 0.0
  if parent_head:
    spent = parent_head.mu_squared
  heads = train(
    HEADS[head].prepare_rows(data or clustered_data()),
    head=head,
    epsilons=epsilons,
    delta=DELTA,
    mu_squared_budget=cost(epsilons, DELTA, spent),
    source=source or NoiseSource(0),
    options=options,
    draw=draw,
    parent_head=parent_head,
  )
  return list(heads)


def mu_squared_of(releases):
  costs = [Fraction(release.noise_multiplier) ** -2 for release in releases]
  return sum(costs, Fraction(0))


# Cost.


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("units", [False, True])
def test_train_of_several_epsilons_releases_what_each_epsilon_buys(head, units):
  for trained in train_on(head, (8.0, 0.5, 2.0), data=clustered_data(units)):
    assert trained.epsilon is not None
    allowed = mu_squared_from_epsilon(trained.epsilon, DELTA)
    released = mu_squared_of(trained.releases)
    assert trained.mu_squared == allowed
    assert released <= Fraction(allowed)
    assert float(released) == pytest.approx(allowed, rel=1e-9)
    assert epsilon_of(float(released), DELTA) <= trained.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("units", [False, True])
def test_train_of_several_epsilons_costs_the_largest_in_all(head, units):
  epsilons = (8.0, 0.5, 2.0)
  heads = train_on(head, epsilons, data=clustered_data(units))
  assert mu_squared_of(heads[-1].releases) <= cost(epsilons, DELTA)
  for smaller, larger in itertools.pairwise(heads):
    nested = larger.releases[: len(smaller.releases)]
    assert nested == smaller.releases


@pytest.mark.parametrize("head", HEADS)
def test_train_yields_heads_by_epsilon_and_says_how_they_were_made(head):
  heads = train_on(head, (8.0, 0.5, 2.0), draw=3)
  assert [trained.epsilon for trained in heads] == [0.5, 2.0, 8.0]
  for trained in heads:
    assert (trained.name, trained.delta, trained.draw) == (head, DELTA, 3)
    assert trained.noise_source == "seeded: NOT PRIVATE"
    assert not trained.private
    assert trained.options == {"balanced": False}


@pytest.mark.parametrize("head", ["lamb", "adam", "momentum", "prototypes"])
def test_head_of_one_sum_releases_class_sums_once_for_each_epsilon(head):
  heads = train_on(head, (8.0, 0.5, 2.0))
  names = [release.name for release in heads[-1].releases]
  assert names == ["class sums"] * 3


def test_least_squares_releases_two_sums_for_each_epsilon():
  heads = train_on("least_squares", (0.5, 2.0))
  names = [release.name for release in heads[-1].releases]
  assert names == ["second moment", "class sums"] * 2


@pytest.mark.parametrize(
  ("epsilons", "spent_mu_squared", "message"),
  [
    ((1.0, 1.0000000000001), 0.0, "too near"),
    (
      tuple(map(float, range(1, 1002))),
      0.0,
      "1,001 epsilons: give at most 1,000",
    ),
    ((1.0,), mu_squared_from_epsilon(1.0, DELTA) * (1 - 1e-9), "too near"),
    (
      (0.5,),
      mu_squared_from_epsilon(1.0, DELTA),
      r"larger than that of the head to continue, 1 at delta=0\.0001",
    ),
  ],
)
def test_cost_of_an_epsilon_that_adds_nothing_is_refused(
  epsilons, spent_mu_squared, message
):
  with pytest.raises(InputError, match=message) as error:
    cost(epsilons, DELTA, spent_mu_squared)
  assert "\n" not in str(error.value)


# Going on from a head.


@pytest.mark.slow
@pytest.mark.parametrize("head", ["lamb", "auto"])
@pytest.mark.parametrize("units", [False, True])
def test_train_from_a_head_has_the_bits_and_the_cost_of_one_run(head, units):
  """A month later, with the same noise: what a sweep would have made."""
  data = clustered_data(units)
  together = train_on(head, (1.0, 4.0), data=data, source=NoiseSource(7))
  source = NoiseSource(7)
  (first,) = train_on(head, (1.0,), data=data, source=source)
  (second,) = train_on(
    head, (4.0,), data=data, parent_head=first, source=source
  )
  np.testing.assert_array_equal(second.head.kernel, together[1].head.kernel)
  assert second.releases == together[1].releases
  assert second.state.keys() == together[1].state.keys()
  for key, value in second.state.items():
    np.testing.assert_array_equal(value, together[1].state[key])
  assert first.mu_squared is not None
  difference = cost((4.0,), DELTA, first.mu_squared)
  assert difference + Fraction(first.mu_squared) == cost((1.0, 4.0), DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("has_start", [False, True])
def test_train_from_a_head_keeps_its_options(balanced, has_start):
  start = None
  if has_start:
    start = PublicStart.of(np.eye(K, D), num_classes=K, feature_dim=D)
  options = HeadOptions(balanced=balanced, start=start)
  (first,) = train_on("auto", options=options)
  (second,) = train_on("auto", (4.0,), parent_head=first)
  assert second.options == first.options == options.as_json()
  names = {release.name for release in second.releases}
  assert ("class counts" in names) == balanced
  assert ("mean" in names) == (not has_start)
  assert second.head.unit_norm == (not has_start)


@pytest.fixture
def head_of_an_older_version():
  """Returns a function that takes away what older versions did not save."""

  def make(options):
    (trained,) = train_on("auto", options=options)
    state = {key: v for key, v in trained.state.items() if key != "begin"}
    return dataclasses.replace(trained, state=state)

  return make


@pytest.mark.slow
def test_train_from_a_head_of_an_older_version_has_the_same_bits(
  head_of_an_older_version,
):
  (first,) = train_on("auto")
  (expected,) = train_on("auto", (4.0,), parent_head=first)
  older = head_of_an_older_version(HeadOptions())
  (second,) = train_on("auto", (4.0,), parent_head=older)
  np.testing.assert_array_equal(second.head.kernel, expected.head.kernel)


def test_check_plan_refuses_an_older_head_that_had_a_public_start(
  head_of_an_older_version,
):
  start = PublicStart.of(np.eye(K, D), num_classes=K, feature_dim=D)
  older = head_of_an_older_version(HeadOptions(start=start))
  with pytest.raises(InputError, match="from a public start by an older"):
    check(parent_head=older)


def test_state_of_a_head_holds_estimates_and_weights_but_no_gradients():
  (trained,) = train_on("auto", (20.0,), options=HeadOptions(balanced=True))
  names = {key.split("/")[1] for key in trained.state if "/" in key}
  assert names == {"class counts", "mean", "second moment"}
  assert {"kernel", "begin", "length"} < trained.state.keys()
  for value in trained.state.values():
    assert value.dtype == np.float64
    assert np.isfinite(value).all()


def test_state_of_a_head_keeps_the_precision_of_each_estimate():
  (trained,) = train_on("auto", (20.0,), options=HeadOptions(balanced=True))
  noise = {r.name: r.noise_multiplier for r in trained.releases}
  keys = [key for key in trained.state if key.startswith("precision/")]
  assert len(keys) == 3
  for key in keys:
    expected = noise[key.split("/")[1]] ** -2
    assert trained.state[key].item() == pytest.approx(expected)


# Robustness and baselines.


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 1, 3), (40, 7, 1)])
@pytest.mark.parametrize("zeros", [False, True])
def test_train_of_any_size_and_noise_gives_finite_weights(head, size, zeros):
  n, d, num_classes = size
  embeddings = np.random.default_rng(n).standard_normal((n, d))
  if zeros:
    embeddings = 0 * embeddings
  data = dataset_from_arrays(
    embeddings.astype(np.float32),
    np.arange(n) % num_classes,
    num_classes=num_classes,
  )
  heads = [baseline(HEADS[head].prepare_rows(data), head)]
  for epsilon in (1e-3, 1e5):
    heads += train_on(head, (epsilon,), data=data, source=NoiseSource())
  for trained in heads:
    assert trained.head.kernel.shape == (d, num_classes)
    assert np.isfinite(trained.head.kernel).all()
    assert np.isfinite(trained.head.bias).all()


@pytest.mark.parametrize("head", HEADS)
def test_baseline_has_no_noise_and_says_that_it_is_not_private(head):
  rows = HEADS[head].prepare_rows(clustered_data())
  one = baseline(rows, head)
  other = baseline(rows, head)
  np.testing.assert_array_equal(one.head.kernel, other.head.kernel)
  assert not one.private
  assert one.noise_source == "no noise"
  assert (one.epsilon, one.delta, one.mu_squared) == (None, None, None)


@pytest.mark.parametrize("head", HEADS)
def test_baseline_keeps_no_exact_sums(head):
  trained = baseline(HEADS[head].prepare_rows(clustered_data()), head)
  assert (trained.releases, dict(trained.state)) == ((), {})


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_train_with_little_noise_is_near_the_baseline(head):
  exact = baseline(HEADS[head].prepare_rows(clustered_data()), head)
  (private,) = train_on(head, (1e5,), source=NoiseSource())
  assert private.private
  kernels = [exact.head.kernel.ravel(), private.head.kernel.ravel()]
  assert np.corrcoef(kernels)[0, 1] > 0.99


# Plans that are refused.


def check(**changes):
  given: dict[str, Any] = {
    "head": "auto",
    "n": N,
    "feature_dim": D,
    "num_classes": K,
    "options": HeadOptions(),
  }
  check_plan(**given | changes)


def test_check_plan_accepts_the_smallest_and_the_largest_sizes():
  (parent_head,) = train_on("auto")
  check(n=1, feature_dim=1, num_classes=1)
  check(feature_dim=16_384, num_classes=21_843)
  check(parent_head=parent_head)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"head": "lamp"}, "must be one of auto, lamb, adam, momentum"),
    ({"n": 0}, "there are no rows to train on"),
    ({"feature_dim": 2**20, "num_classes": 2**11}, "are too many weights"),
    (
      {"head": "lamb", "options": HeadOptions(balanced=True)},
      "balanced is for head 'auto', not for 'lamb'",
    ),
  ],
)
def test_check_plan_refuses_what_no_head_follows(changes, message):
  with pytest.raises(InputError, match=message) as error:
    check(**changes)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (
      {"options": HeadOptions(balanced=True)},
      "the head to continue has",
    ),
    ({"head": "lamb"}, "--from needs the same kind of head"),
  ],
)
def test_check_plan_refuses_a_parent_head_that_does_not_fit(changes, message):
  (parent_head,) = train_on("auto")
  with pytest.raises(InputError, match=message):
    check(parent_head=parent_head, **changes)


@pytest.mark.slow
def test_check_plan_refuses_to_continue_a_baseline():
  rows = HEADS["auto"].prepare_rows(clustered_data())
  with pytest.raises(InputError, match="a baseline has no budget"):
    check(parent_head=baseline(rows, "auto"))
