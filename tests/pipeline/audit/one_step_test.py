"""The audit bounds the real release from below, and finds planted faults."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import CHANGED_UNITS
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.audit import ErrorCounts, OneRun
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum, exact_clipped_sum
from oneshot_dp.pipeline.audit import one_step_attacks as attacks
from oneshot_dp.pipeline.audit.one_step import audit_release
from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import fails, succeeds

EPSILONS = [1.0, 2.0, 4.0]
DELTA = 1e-5
FULL = 10_000
"""Runs that the claim of 0.6 to 1.0 is about."""
QUICK = 1500
REPLICATES = 150

CANARY_ATTACK = "many runs, the canary's direction"
WHITENED_ATTACK = "many runs, the least noisy direction"
ONE_RUN_ATTACK = "one run, many canaries"


def audit(
  epsilon,
  runs=QUICK,
  *,
  seed=1,
  canaries=100,
  relation=NeighboringRelation.REPLACE_SPECIAL,
  **grid: Any,
):
  fields: dict[str, Any] = {"num_classes": 4, "feature_dim": 8}
  plan = ReleasePlan(
    epsilons=(epsilon,),
    delta=DELTA,
    neighboring_relation=relation,
    num_draws=runs,
  )
  return audit_release(
    ClippedGradientGrid(**fields | grid),
    plan,
    NoiseSource(seed),
    canaries=canaries,
    confidence=0.95,
    seed=seed,
  )


TINY: dict[str, Any] = {"runs": 200, "num_classes": 2, "feature_dim": 2}
"""Where the many runs are not what is looked at."""


@pytest.mark.slow
@pytest.mark.parametrize(
  ("num_classes", "feature_dim", "runs", "epsilon", "confidence"),
  [
    # As many entries as runs: a direction is fitted to any runs it has seen.
    (4, 8, 30, 1.0, 0.8),
    # A bound that is near the truth, as often above it as it may be.
    (2, 2, 1000, 4.0, 0.5),
  ],
  ids=["few runs", "tight"],
)
def test_bounds_of_many_runs_exceed_the_truth_as_seldom_as_they_say(
  monkeypatch, num_classes, feature_dim, runs, epsilon, confidence
):
  """Of noise whose epsilon is known: exactly Gaussian, and as claimed."""
  real, rng, sums = attacks._releases, np.random.default_rng(0), {}

  def exact_gaussian(grid, plan, source, embedding, label):
    if len(label) not in sums:
      one = dataclasses.replace(plan, num_draws=1)
      sums[len(label)] = real(grid, one, source, embedding, label)[:2]
    exact, claim = sums[len(label)]
    noise = rng.normal(0, claim.noise_sd, (plan.num_draws, exact.size))
    return exact, claim, exact + np.rint(noise).astype(np.int64)

  monkeypatch.setattr(attacks, "_releases", exact_gaussian)
  grid = ClippedGradientGrid(num_classes=num_classes, feature_dim=feature_dim)
  plan = ReleasePlan(epsilons=(epsilon,), delta=DELTA, num_draws=runs)
  found = [
    attacks.many_runs(grid, plan, NoiseSource(0), (confidence, confidence))[1:]
    for _ in range(REPLICATES)
  ]
  above = (np.array(found) > epsilon).mean(axis=0)
  luck = 3 * math.sqrt(confidence * (1 - confidence) / REPLICATES)
  assert (above <= 1 - confidence + luck).all()
  assert (above > 0).all()  # not for want of trying


def test_what_may_go_wrong_is_shared_among_the_three_bounds(monkeypatch):
  """Each is allowed a part of 5 %, and all of them together no more."""
  confidences: dict[str, list[float]] = {}
  for cls, name in (
    (ErrorCounts, "gdp_lower_bound"),
    (OneRun, "epsilon_lower_bound"),
  ):
    real = getattr(cls, name)

    def note(counts, *arguments, real=real, name=name):
      confidences.setdefault(name, []).append(arguments[-1])
      return real(counts, *arguments)

    monkeypatch.setattr(cls, name, note)
  report = audit(4.0, **TINY)
  many = confidences["gdp_lower_bound"]
  # The last is the bound; those before it choose how many coins to guess.
  one = confidences["epsilon_lower_bound"][-1]
  assert len(many) == 2
  assert len(report.lower_bounds) == 3
  wrong = [1 - confidence for confidence in (*many, one)]
  assert min(wrong) > 0
  assert math.fsum(wrong) <= 0.05 * (1 + 1e-9)


class HalvedNoise(GaussianChain):
  def extend(self, sd):
    return super().extend(sd / 2)


class NoiseSharedByClasses(GaussianChain):
  def __init__(self, shape, source):
    draws, self._classes, features = shape
    super().__init__((draws, 1, features), source)

  def extend(self, sd):
    return np.repeat(super().extend(sd), self._classes, axis=1)


class NoiseSharedByFeatures(GaussianChain):
  def __init__(self, shape, source):
    draws, classes, self._features = shape
    super().__init__((draws, classes, 1), source)

  def extend(self, sd):
    return np.repeat(super().extend(sd), self._features, axis=2)


class SameNoiseAgain(GaussianChain):
  """Every release draws the same bits."""

  def __init__(self, shape, source):
    self._draws, *one = shape
    super().__init__((1, *one), NoiseSource(0))

  def extend(self, sd):
    return np.repeat(super().extend(sd), self._draws, axis=0)


def unclipped_sum(blocks, grid, *, num_examples):
  """The real sum, of a clip norm that no row reaches, in the claimed steps."""
  times = 1000
  wide = dataclasses.replace(grid, l2_clip_norm=times * grid.l2_clip_norm)
  secret = exact_clipped_sum(blocks, wide, num_examples=num_examples)
  return SecretSum(
    grid=grid,
    num_examples=num_examples,
    secret_class_sums=times * secret.secret_class_sums,
  )


def last_row_twice(blocks, grid, *, num_examples):
  """The real sum, of rows whose last comes again under another id."""
  (block,) = blocks
  names = ("embedding", "embedding_norm", "label", "example_id")
  last = {name: getattr(block, name)[-1:] for name in names}
  last["example_id"] = last["example_id"] + 1
  again = dataclasses.replace(block, **last)
  return exact_clipped_sum([block, again], grid, num_examples=num_examples + 1)


FAULTS = {
  "noise halved": (
    "oneshot_dp.linear_dp.one_step.release.GaussianChain",
    HalvedNoise,
  ),
  "noise shared by classes": (
    "oneshot_dp.linear_dp.one_step.release.GaussianChain",
    NoiseSharedByClasses,
  ),
  "clipping off": (
    "oneshot_dp.pipeline.audit.one_step_attacks.exact_clipped_sum",
    unclipped_sum,
  ),
  "a row twice": (
    "oneshot_dp.pipeline.audit.one_step_attacks.exact_clipped_sum",
    last_row_twice,
  ),
  "noise shared by features": (
    "oneshot_dp.linear_dp.one_step.release.GaussianChain",
    NoiseSharedByFeatures,
  ),
  "noise used again": (
    "oneshot_dp.linear_dp.one_step.release.GaussianChain",
    SameNoiseAgain,
  ),
}


@pytest.fixture
def plant(monkeypatch):
  def plant(fault):
    monkeypatch.setattr(*FAULTS[fault])

  return plant


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bound_is_tight_at_the_stated_settings(epsilon):
  report = audit(epsilon, FULL, seed=2, canaries=10_000)
  assert 0.6 * epsilon <= report.lower_bound <= epsilon
  assert all(b > 0.3 * epsilon for b in report.lower_bounds.values())


@pytest.mark.slow
@pytest.mark.parametrize(
  ("fault", "epsilon"), [("noise halved", 1.0), ("a row twice", 4.0)]
)
def test_faults_are_flagged_at_the_stated_settings(plant, fault, epsilon):
  plant(fault)
  assert audit(epsilon, FULL).is_violated


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_flagged_in_fewer_runs(plant, fault):
  plant(fault)
  report = audit(2.0, **TINY | {"runs": 600})
  assert report.is_violated
  assert report.verdict.startswith("VIOLATION: ")


@pytest.mark.slow
@pytest.mark.parametrize(
  ("relation", "grid"),
  [
    (
      NeighboringRelation.REPLACE_ONE,
      {"train_bias": True, "l2_clip_norm": 0.1},
    ),
    (
      NeighboringRelation.REPLACE_SPECIAL,
      {"num_classes": 3, "feature_dim": 5, "l2_clip_norm": 30.0},
    ),
    (
      NeighboringRelation.REPLACE_SPECIAL,
      {"initial_bias": 0.0, "train_bias": True},
    ),
  ],
  ids=["replace, bias", "special, wide clip", "add, p0 = 1/2"],
)
def test_bound_is_tight_for_every_relation_and_grid(relation, grid):
  report = audit(4.0, relation=relation, **grid)
  assert 0.6 * 4 <= report.lower_bound <= 4
  assert not report.is_violated
  assert report.verdict.startswith("consistent")


def test_replacement_with_the_noise_of_a_removal_is_flagged(monkeypatch):
  real = ClippedGradientGrid.sensitivity
  monkeypatch.setattr(
    ClippedGradientGrid,
    "sensitivity",
    lambda self, _: real(self, NeighboringRelation.REPLACE_SPECIAL),
  )
  relation = NeighboringRelation.REPLACE_ONE
  assert audit(2.0, relation=relation).is_violated


def test_only_the_least_noisy_direction_shows_noise_that_classes_share(plant):
  plant("noise shared by classes")
  bounds = audit(2.0, **TINY).lower_bounds
  assert bounds[WHITENED_ATTACK] > 10
  assert bounds[CANARY_ATTACK] < 10


@pytest.mark.slow
@pytest.mark.parametrize("relation", list(CHANGED_UNITS), ids=lambda r: r.name)
def test_one_run_stays_below_the_claim_and_says_something(relation):
  report = audit(4.0, canaries=10_000, relation=relation, **TINY)
  assert 0.35 * 4 < report.lower_bounds[ONE_RUN_ATTACK] < 4
  assert 2 <= report.guesses <= 10_000


def test_one_run_shows_that_clipping_is_off(plant):
  plant("clipping off")
  bound = audit(2.0, canaries=1000, **TINY).lower_bounds[ONE_RUN_ATTACK]
  assert bound > 2


def test_a_seed_repeats_the_audit_and_none_does_not(monkeypatch):
  releases, seen = attacks._releases, []

  def note(*args):
    seen.append(releases(*args))
    return seen[-1]

  monkeypatch.setattr(attacks, "_releases", note)
  first, second, *fresh = (
    audit(2.0, seed=seed, canaries=1000, **TINY) for seed in (3, 3, None, None)
  )
  assert first.lower_bounds == second.lower_bounds
  assert all(report.claim.is_private for report in fresh)
  # Bounds are of counts, which are alike by chance; what is counted is not.
  noisy = [noisy for _, _, noisy in seen]
  assert len(noisy) == 4 * 3
  for one, same, new, newer in zip(*np.split(np.arange(12), 4), strict=True):
    np.testing.assert_array_equal(noisy[one], noisy[same])
    for system in (new, newer):
      assert not np.array_equal(noisy[one], noisy[system])
    assert not np.array_equal(noisy[new], noisy[newer])


COMMAND = (
  "audit --epsilon 4 --delta 1e-5 --runs 400 --canaries 1000 --noise-seed 1"
  " --num-classes 2 --feature-dim 2"
)


def test_command_prints_claim_bounds_and_verdict(capsys, monkeypatch, tmp_path):
  monkeypatch.setenv("ONESHOT_DP_LEDGER_DIR", str(tmp_path / "ledgers"))
  monkeypatch.chdir(tmp_path)
  out, _ = succeeds(capsys, *COMMAND.split())
  assert "claim: epsilon = 4 at delta = 1e-05 (REPLACE_SPECIAL)" in out
  assert "noise multiplier 1.08116, sensitivity 1,048," in out
  assert "seeded: NOT PRIVATE" in out
  for attack in (CANARY_ATTACK, WHITENED_ATTACK, ONE_RUN_ATTACK):
    assert f"{attack:<36}  epsilon >= " in out
  assert "400 runs with and 400 without" in out
  assert "0.95 confidence" in out
  assert "verdict: consistent with the claim" in out
  # It reads no private data, so it charges nothing; and it leaves nothing.
  assert not list(tmp_path.iterdir())


def test_command_fails_on_a_violation(capsys, plant):
  plant("noise halved")
  assert main(COMMAND.split()) == 1
  said = capsys.readouterr()
  assert "lower bound: " in said.out
  assert "verdict" not in said.out
  assert said.err.startswith("oneshot-dp: error: VIOLATION: epsilon is at")


@pytest.mark.parametrize(
  ("flags", "complaint"),
  [
    ("--runs 1000", "runs=1000 are too few"),
    ("--runs 2000 --feature-dim 100", "runs=2000 are too few"),
    ("--canaries 5", "canaries=5 must be 100 to 100000"),
    ("--canaries 1000000", "canaries=1000000 must be"),
    ("--confidence 95", "confidence=95.0 must lie between"),
    ("--epsilon 0", "epsilon=0.0 must be positive"),
    ("--num-classes 1", "num_classes=1"),
  ],
)
def test_command_refuses_what_proves_nothing(capsys, flags, complaint):
  argv = ["audit", "--epsilon", "1", "--delta", "1e-5", *flags.split()]
  assert complaint in fails(capsys, *argv)


def test_too_few_runs_are_refused_before_any_is_made():
  with pytest.raises(InputError, match="give at least 1280"):
    audit(1.0, 1279)
