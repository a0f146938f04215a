"""Nested heads, going on from one, what it costs, and what is refused."""

import itertools
import os
import subprocess
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadOptions, PublicStart
from oneshot_dp.linear_dp.accounting import epsilon_of, mu_squared_from_epsilon
from oneshot_dp.linear_dp.api import dataset_from_arrays
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.train import (
  HEADS,
  baseline,
  check_plan,
  cost,
  memory_needed,
  train,
)
from tests.sample_caches import clusters

N, D, K = 400, 8, 4
DELTA = 1e-4


def data(units=False):
  unit_ids = np.arange(N) // 2 if units else None
  rows = clusters((N // K,) * K, D)
  return dataset_from_arrays(*rows, num_classes=K, unit_ids=unit_ids)


def trained(head, epsilons=(1.0,), given=None, before=None, **more):
  """Heads of each ε, of rows that are given or usual ones."""
  paid = cost(epsilons, DELTA, before.mu_squared if before else 0.0)
  how: dict[str, Any] = {"source": NoiseSource(0), "paid": paid} | more
  how |= {"head": head, "epsilons": epsilons, "delta": DELTA, "before": before}
  return [*train(HEADS[head].rows(given or data()), **how)]


def spent(releases):
  return sum(Fraction(each.noise_multiplier) ** -2 for each in releases)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("units", [False, True])
def test_each_head_costs_its_epsilon_and_all_the_largest(head, units):
  epsilons = (8.0, 0.5, 2.0)
  heads = trained(head, epsilons, data(units), draw=3)
  assert [each.epsilon for each in heads] == [0.5, 2.0, 8.0]
  for each in heads:
    assert each.epsilon is not None
    bought = mu_squared_from_epsilon(each.epsilon, DELTA)
    assert each.mu_squared == bought
    assert spent(each.releases) <= Fraction(bought)
    assert float(spent(each.releases)) == pytest.approx(bought, rel=1e-9)
    assert epsilon_of(float(spent(each.releases)), DELTA) <= each.epsilon
    assert (each.name, each.delta, each.draw) == (head, DELTA, 3)
    assert (each.noise_source, each.private) == ("seeded: NOT PRIVATE", False)
    assert each.options == {"balanced": False}
  assert spent(heads[-1].releases) <= cost(epsilons, DELTA)
  for fewer, more in itertools.pairwise(heads):
    assert more.releases[: len(fewer.releases)] == fewer.releases
  if head != "auto":
    names = [each.name for each in heads[-1].releases]
    assert names == ["class sums"] * 3


@pytest.mark.parametrize("head", ["lamb", "auto"])
@pytest.mark.parametrize("units", [False, True])
def test_a_head_goes_on_for_the_difference_as_in_one_run(head, units):
  """A month later: the same bits as a sweep whose noise is the same."""
  together = trained(head, (1.0, 4.0), data(units), source=NoiseSource(7))
  source = NoiseSource(7)
  (first,) = trained(head, (1.0,), data(units), source=source)
  assert first.mu_squared is not None
  more = cost((4.0,), DELTA, first.mu_squared)
  assert more + Fraction(first.mu_squared) == cost((1.0, 4.0), DELTA)
  (second,) = trained(head, (4.0,), data(units), first, source=source)
  np.testing.assert_array_equal(second.head.kernel, together[1].head.kernel)
  assert second.releases == together[1].releases
  assert second.state.keys() == together[1].state.keys()
  for key, value in second.state.items():
    np.testing.assert_array_equal(value, together[1].state[key])


@pytest.mark.parametrize("options", [{"balanced": True}, {"start": True}])
def test_a_head_keeps_its_options_as_it_goes_on(options):
  public = PublicStart.of(np.eye(K, D), num_classes=K, feature_dim=D)
  if "start" in options:
    options = {"start": public}
  (first,) = trained("auto", options=HeadOptions(**options))
  (second,) = trained("auto", (4.0,), before=first)
  assert second.options == first.options == HeadOptions(**options).as_json()
  names = {each.name for each in second.releases}
  assert ("class counts" in names) == ("balanced" in options)
  assert ("mean" in names) == ("start" not in options)
  assert second.head.unit_norm == ("start" not in options)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 1, 3), (40, 7, 1)])
def test_no_size_and_no_noise_make_it_fail(head, size):
  n, d, num_classes = size
  x = np.random.default_rng(n).standard_normal((n, d)).astype(np.float32)
  for given in (x, 0 * x):
    label = np.arange(n) % num_classes
    rows = dataset_from_arrays(given, label, num_classes=num_classes)
    for epsilon in (1e-3, 1e5):
      (made,) = trained(head, (epsilon,), rows, source=NoiseSource())
      for found in (made, baseline(HEADS[head].rows(rows), head)):
        assert found.head.kernel.shape == (d, num_classes)
        assert np.isfinite(found.head.kernel).all()
        assert np.isfinite(found.head.bias).all()


def test_state_is_what_left_and_no_gradients():
  (head,) = trained("auto", (20.0,), options=HeadOptions(balanced=True))
  kinds = {key.split("/")[1] for key in head.state if "/" in key}
  assert kinds == {"class counts", "mean", "second moment"}
  assert {"kernel", "length"} < head.state.keys()
  for key, value in head.state.items():
    assert value.dtype == np.float64
    assert np.isfinite(value).all()
    if key.startswith("estimate/"):
      (left,) = [r for r in head.releases if r.name == key.split("/")[1]]
      precision = head.state[key.replace("estimate", "precision")]
      assert float(precision) == pytest.approx(left.noise_multiplier**-2)


@pytest.mark.parametrize("head", HEADS)
def test_a_baseline_has_no_noise_and_is_not_private(head):
  rows = HEADS[head].rows(data())
  one, other = baseline(rows, head), baseline(rows, head)
  np.testing.assert_array_equal(one.head.kernel, other.head.kernel)
  assert not one.private
  assert one.noise_source == "no noise"
  assert (one.epsilon, one.delta, one.mu_squared) == (None, None, None)
  assert (one.releases, dict(one.state)) == ((), {})  # exact sums leave by none
  (private,) = trained(head, (1e5,), source=NoiseSource())
  assert private.private
  near = np.corrcoef(one.head.kernel.ravel(), private.head.kernel.ravel())[0, 1]
  assert near > 0.99


@pytest.mark.parametrize(
  ("epsilons", "already", "message"),
  [
    ((1.0, 1.0000000000001), 0.0, "too near"),
    ((1.0,), mu_squared_from_epsilon(1.0, DELTA) * (1 - 1e-9), "too near"),
    (
      (0.5,),
      mu_squared_from_epsilon(1.0, DELTA),
      r"has at delta=0\.0001, 1: give a larger",
    ),
  ],
)
def test_what_costs_nothing_is_refused(epsilons, already, message):
  with pytest.raises(InputError, match=message) as error:
    cost(epsilons, DELTA, already)
  assert "\n" not in str(error.value)


def check(**changes):
  given: dict[str, Any] = {
    "head": "auto",
    "n": N,
    "feature_dim": D,
    "num_classes": K,
    "options": HeadOptions(),
  }
  check_plan(**given | changes)


def test_a_plan_that_no_head_follows_is_refused_before_any_charge():
  (auto,) = trained("auto")
  check(n=1, feature_dim=1, num_classes=1)
  check(feature_dim=16_384, num_classes=21_843)
  check(before=auto)
  for changes, message in (
    ({"n": 0}, "there are no rows to train on"),
    ({"feature_dim": 2**20, "num_classes": 2**11}, "are too many weights"),
    (
      {"before": auto, "options": HeadOptions(balanced=True)},
      "the head to go on from has",
    ),
  ):
    with pytest.raises(InputError, match=message) as error:
      check(**changes)
    assert "\n" not in str(error.value)


def test_memory_grows_with_all_that_takes_it():
  """With d², K·d and, where rows are kept, n·d."""
  gib = 2.0**30
  for head, n, d, num_classes, unit, least, most in (
    ("lamb", 10**6, 64, 10, "example", 0.5, 0.6),
    ("lamb", 10**9, 64, 10, "example", 15, 17),  # ids of all, keys of some
    ("auto", 10**3, 64, 10, "example", 0, 0.6),
    ("auto", 10**3, 16_384, 10, "example", 15, 30),
    ("lamb", 10**3, 16_384, 10, "example", 0, 0.5),
    ("lamb", 10**3, 2048, 21_843, "example", 2, 5),
    ("auto", 10**3, 2048, 21_843, "example", 4, 8),
    ("auto", 10**6, 768, 10, "example", 3, 5),
    ("auto", 10**9, 768, 10, "example", 31, 35),  # not kept
    ("lamb", 10**6, 768, 10, "patient", 6, 15),
  ):
    assert least < memory_needed(head, n, d, num_classes, unit) / gib < most
  assert 3 < memory_needed("lamb", 1, 16_384, 2, "example", 2048) / gib < 6


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
  ("head", "n", "d", "num_classes", "epsilon"),
  [("auto", 1000, 1200, 2, 20.0), ("lamb", 1000, 400, 5000, 1.0)],
)
def test_it_is_what_a_process_takes(head, n, d, num_classes, epsilon):
  code = f"""
import re
import numpy as np
import oneshot_dp
rng = np.random.default_rng(0)
head = oneshot_dp.train_head(
  rng.standard_normal(({n}, {d}), np.float32), rng.integers(0, 2, {n}),
  num_classes={num_classes}, head={head!r}, epsilon={epsilon}, delta=1e-6)
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""
  run = [sys.executable, "-c", code]
  environment = {**os.environ, "XLA_FLAGS": ""}  # one device
  said = subprocess.run(
    run, env=environment, check=True, capture_output=True, text=True
  ).stdout
  needed = memory_needed(head, n, d, num_classes, "example")
  assert 0.5 * needed < 1024 * int(said) < 1.1 * needed
