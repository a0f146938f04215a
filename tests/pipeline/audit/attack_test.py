"""The audit reaches half of its claim, and finds what is broken on purpose."""

import dataclasses
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.linear_dp import private_sums, sum_kernels
from oneshot_dp.linear_dp import rows as linear_rows
from oneshot_dp.linear_dp.distributed.hosts import Hosts
from oneshot_dp.pipeline.audit.attack import (
  Claim,
  observe_training,
  sample_canaries,
  score_canaries,
)
from oneshot_dp.pipeline.audit.canaries import Canaries
from oneshot_dp.pipeline.audit.runs import (
  audit_synthetic,
  bounds_among_real_rows,
)
from oneshot_dp.pipeline.runs.cache_roles import data_of

pytestmark = pytest.mark.long

DELTA = 1e-5
TRUE_NOISE = private_sums.rounded_gaussian
FEW = Canaries(count=1000, dim=256, num_classes=8)


def attack(
  head: HeadName = "lamb",
  epsilon=4.0,
  runs=2,
  canaries=FEW,
  balanced=False,
):
  """Bounds and faults of a few canaries without real rows."""
  claim = Claim(head, epsilon, DELTA, balanced)
  return audit_synthetic(claim, canaries, runs)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("head", ["lamb", "auto"])
def test_more_than_half_of_the_claim_is_proved(head, epsilon):
  canaries = Canaries(count=2000, dim=512, num_classes=8)
  runs = 4 if epsilon == 1 else 1

  bounds, faults = attack(head, epsilon, runs, canaries)

  # A bound is above the true ε in 2.5 %; by a quarter, in one of 100,000.
  assert 0.5 * epsilon < bounds.gaussian < 1.25 * epsilon
  assert bounds.blind < 1.25 * epsilon
  assert not faults


@pytest.mark.parametrize("head", ["lamb", "auto"])
@pytest.mark.parametrize("rows_each", [1, 3])
def test_scores_have_the_law_that_bounds_assume(head, rows_each):
  """Independent normal noise around half of what a canary moves its score."""
  claim = Claim(head, 8.0, DELTA)
  canaries = Canaries(count=1000, dim=256, num_classes=8, rows_each=rows_each)
  rows, coins = sample_canaries(canaries, head)
  observed = observe_training(rows, claim)

  scores = score_canaries(observed, coins * 1.0)

  moved = np.zeros(1000)
  variance = 0.0
  for release in observed:
    probes = release.probes
    if probes is not None:
      moved += probes.strength / release.noise_multiplier**2
      variance += release.noise_multiplier**-2
      assert probes.strength.max() <= 1 + 1e-9
  noise = (scores - np.where(coins, moved, -moved) / 2) / np.sqrt(variance)
  assert stats.kstest(noise, "norm").pvalue > 1e-5
  assert moved.mean() > (0.97 if head == "lamb" else 0.6) * variance


@pytest.mark.parametrize(
  ("balanced", "rows_each"), [(True, 1), (False, 3)], ids=["balanced", "units"]
)
def test_sound_runs_raise_no_alarm(balanced, rows_each):
  canaries = Canaries(count=1000, dim=256, num_classes=8, rows_each=rows_each)

  bounds, faults = attack("auto", 4.0, 1, canaries, balanced)

  assert not faults
  assert max(bounds.gaussian, bounds.blind) <= 4.4


@pytest.mark.parametrize("balanced", [False, True])
def test_class_counts_are_attacked_where_a_head_is_balanced(balanced):
  canaries = Canaries(count=100, dim=64, num_classes=4)
  rows, _ = sample_canaries(canaries, "auto")
  claim = Claim("auto", 4.0, DELTA, balanced)

  observed = observe_training(rows, claim)

  names = {release.name for release in observed}
  assert ("class counts" in names) == balanced
  assert "gradient" in names


def change_noise(monkeypatch, change):
  """Changes the noise of every release."""
  monkeypatch.setattr(
    private_sums,
    "rounded_gaussian",
    lambda shape, sd, source: change(TRUE_NOISE(shape, sd, source)),
  )
  # Which takes integers alone, where types are checked.
  monkeypatch.setattr(Hosts, "from_first", lambda _, make, shape: make())


def of_one_class(drawn):
  return np.broadcast_to(drawn[:1], drawn.shape)


def of_the_last_classes(drawn):
  """The last two classes have one noise, and the others their own."""
  shared = drawn.copy()
  shared[-1] = shared[-2]
  return shared


def negated_in_one_class(drawn):
  shared = drawn.copy()
  shared[2] = -shared[1]
  return shared


def off_the_grid(drawn):
  return drawn + 0.25


def of_the_release_before_last():
  """Noise that alternates: no release has that of the one just before."""
  drawn_before = []

  def change(drawn):
    drawn_before.append(drawn)
    if len(drawn_before) < 3 or drawn_before[-3].shape != drawn.shape:
      return drawn
    drawn_before[-1] = drawn_before[-3]
    return drawn_before[-3]

  return change


def of_one_release():
  kept = {}

  def change(drawn):
    return kept.setdefault(drawn.shape, drawn)

  return change


@pytest.mark.parametrize(
  ("head", "change", "fault"),
  [
    ("lamb", lambda drawn: drawn // 2, "noise is 0.[45].* times"),
    ("lamb", lambda drawn: drawn * 0, r"noise is \S+e-\d+ times"),
    ("lamb", of_one_class, "classes share noise"),
    ("lamb", of_the_last_classes, "classes share noise"),
    ("lamb", negated_in_one_class, "classes share noise"),
    ("lamb", off_the_grid, "not rounded to integers"),
    (
      "auto",
      of_one_release(),
      "gradient: shares noise with an earlier gradient",
    ),
    (
      "auto",
      of_the_release_before_last(),
      "gradient: shares noise with an earlier gradient",
    ),
  ],
  ids=[
    "halved",
    "none",
    "of one class",
    "of the last classes",
    "negated in one class",
    "off the grid",
    "of one release",
    "of the release before last",
  ],
)
def test_a_fault_of_the_noise_is_found(monkeypatch, head, change, fault):
  change_noise(monkeypatch, change)

  _, faults = attack(head, runs=1)

  assert re.search(fault, "; ".join(faults))


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_noise_that_is_too_small_is_found_by_guesses_alone(monkeypatch, factor):
  change_noise(monkeypatch, lambda drawn: (drawn * factor).astype(int))

  bounds, _ = attack(runs=1)

  assert bounds.gaussian > 4.4


def test_a_row_twice_is_found(monkeypatch):
  exact = private_sums.exact_sum
  monkeypatch.setattr(
    private_sums, "exact_sum", lambda *given: 2 * exact(*given)
  )

  bounds, faults = attack()

  assert bounds.gaussian > 4.4 or faults


def test_rows_longer_than_the_bound_are_found(monkeypatch):
  """With the cut of rows off, and the check of their norms where they add."""

  def longer(embedding, scale, weight):
    z = np.rint(np.asarray(embedding) * np.asarray(scale)[:, None] * 2)
    weights = np.where(z.any(1), weight, 0).astype(np.int32)
    is_bad = jnp.zeros(len(z), bool)
    return jnp.asarray(z.astype(np.int16)), jnp.asarray(weights), is_bad

  def is_fine(z):
    return (z == z).all(axis=1), (z != 0).any(axis=1)

  monkeypatch.setattr(linear_rows, "integer_rows", longer)
  monkeypatch.setattr(sum_kernels, "within_ball", is_fine)
  sum_kernels._scatter.cache_clear()
  try:
    bounds, _ = attack()
  finally:
    sum_kernels._scatter.cache_clear()

  assert bounds.gaussian > 4.4


def test_a_unit_whose_rows_count_one_by_one_is_found(monkeypatch):
  unit_rows = linear_rows.unit_rows

  def split_units(parts, *given, **options):
    count = itertools.count()
    each_row_by_itself = (
      part._replace(unit=np.array([next(count) for _ in part.unit]))
      for part in parts
    )
    return unit_rows(each_row_by_itself, *given, **options)

  monkeypatch.setattr(linear_rows, "unit_rows", split_units)
  canaries = dataclasses.replace(FEW, rows_each=3)

  bounds, _ = attack(canaries=canaries)

  assert bounds.gaussian > 4.4


@pytest.mark.parametrize("head", ["lamb", "auto"])
def test_real_rows_do_not_move_a_score(train_cache, head):
  """Scores look where real rows are zeros, so their noise alone is left."""
  real = data_of(train_cache)
  canaries = Canaries(count=400, dim=400, num_classes=4, real=real)
  rows, coins = sample_canaries(canaries, head)
  observed = observe_training(rows, Claim(head, 8.0, DELTA))

  scores = score_canaries(observed, coins * 1.0)

  moved = np.zeros(400)
  variance = 0.0
  for release in observed:
    probes = release.probes
    if probes is not None:
      moved += probes.strength / release.noise_multiplier**2
      variance += release.noise_multiplier**-2
  noise = (scores - np.where(coins, moved, -moved) / 2) / np.sqrt(variance)
  assert stats.kstest(noise, "norm").pvalue > 1e-5


def test_real_rows_hide_no_fault(monkeypatch, train_cache):
  change_noise(monkeypatch, lambda drawn: drawn // 2)
  real = data_of(train_cache)
  canaries = Canaries(count=4000, dim=1024, num_classes=4, real=real)
  rows, coins = sample_canaries(canaries, "lamb")

  observed = observe_training(rows, Claim("lamb", 1.0, DELTA))

  assert bounds_among_real_rows(observed, coins, DELTA).gaussian > 1
