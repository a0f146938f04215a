"""The audit bounds published heads from below, and finds planted faults."""

import dataclasses
import math
import re
from typing import Any

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, StepsConfig
from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.heads.registry import head_kind
from oneshot_dp.linear_dp.heads.whitened.rule import WhiteningRule
from oneshot_dp.linear_dp.noise.rounded_gaussian import (
  GaussianChain,
  rounded_gaussian,
)
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows import unit_norm_rows as secret_rows
from oneshot_dp.linear_dp.statistics import gradient_sum
from oneshot_dp.pipeline.audit.head_attack import STEPS_ROWS, Scores
from oneshot_dp.pipeline.audit.heads import any_bound, audit_head, noise_bound
from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import fails, succeeds

DELTA = 1e-5
NOISE_BOUND = "published heads, noise of another size"
ANY_BOUND = "published heads, any mechanism"
LEAST_SQUARES = HeadConfig(head="least-squares")
WHITENED = HeadConfig(head="whitened")


def steps(**settings: Any) -> HeadConfig:
  chosen: dict[str, Any] = {"epochs": 1} | settings
  return HeadConfig(head="multi-step", steps=StepsConfig(**chosen))


POISSON = steps(sampling="poisson", batch_size=32)
PARTITION = steps(sampling="partition", batch_size=32)


def audit(
  config: HeadConfig,
  epsilon: float,
  runs: int,
  *,
  relation: NeighboringRelation = NeighboringRelation.REPLACE_SPECIAL,
):
  plan = ReleasePlan(
    epsilons=(epsilon,),
    delta=DELTA,
    neighboring_relation=relation,
    order="independent",
    num_draws=runs,
    sampling=head_kind(config.head).sampling(config, STEPS_ROWS),
  )
  return audit_head(config, plan, NoiseSource(1), confidence=0.95)


@pytest.fixture(autouse=True)
def small_chunks_on_one_device(monkeypatch):
  """Of 64 rows there is one chunk, and padding it to more takes time alone."""
  first = jax.local_devices()[:1]
  monkeypatch.setattr(jax, "local_devices", lambda: first)
  for module in (gradient_sum, secret_rows):
    monkeypatch.setattr(module, "ROWS_PER_DEVICE", 512)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "epsilon", "runs", "share"),
  [
    (LEAST_SQUARES, 4.0, 500, 0.7),
    (steps(), 8.0, 150, 0.5),
    (POISSON, 8.0, 200, 0.3),
    (PARTITION, 8.0, 150, 0.3),
  ],
  ids=["least-squares", "full", "poisson", "partition"],
)
def test_bound_is_below_the_claim_and_says_something(
  config, epsilon, runs, share
):
  report = audit(config, epsilon, runs)
  assert share * epsilon < report.lower_bound < epsilon
  assert report.lower_bounds[NOISE_BOUND] == report.lower_bound
  assert 0 <= report.lower_bounds[ANY_BOUND] < report.lower_bound
  assert report.verdict.startswith("consistent")


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "runs"),
  [
    (LEAST_SQUARES, 300),
    (steps(unit_norm=False, loss="sigmoid", initial_bias=-10.0), 150),
    (steps(optimizer="adam", ema_decay=0.5), 150),
  ],
  ids=["least-squares", "rows of any norm", "adam, averaged"],
)
def test_a_replaced_row_is_audited_at_twice_the_sensitivity(config, runs):
  report = audit(config, 8.0, runs, relation=NeighboringRelation.REPLACE_ONE)
  assert 0.4 * 8 < report.lower_bound < 8


@pytest.mark.slow
def test_bound_on_whitened_heads_says_something(monkeypatch):
  monkeypatch.setattr(WhiteningRule, "num_steps", 3)
  assert 0.5 * 8 < audit(WHITENED, 8.0, 200).lower_bound < 8


class SameNoiseAgain(GaussianChain):
  def __init__(self, shape, source):
    super().__init__(shape, NoiseSource(0))


class HalvedChain(GaussianChain):
  def extend(self, sd):
    return super().extend(sd / 2)


def halved(shape, sd, source):
  return rounded_gaussian(shape, sd / 2, source)


def quartered(shape, sd, source):
  return rounded_gaussian(shape, sd / 4, source)


def of_one_seed(shape, sd, source):
  return rounded_gaussian(shape, sd, NoiseSource(0))


def shared_by_features(shape, sd, source):
  one = rounded_gaussian((1, *shape[1:]), sd, source)
  return np.repeat(one, shape[0], axis=0)


def unclipped(rows, released_map, kernel, clip_norm, **options):
  """The real sum, of a clip norm that no row reaches."""
  secret = real_gradient(
    rows, released_map, kernel, 1000 * clip_norm, **options
  )
  return dataclasses.replace(secret, clip_norm=clip_norm)


real_gradient = gradient_sum.clipped_gradient
real_columns = secret_rows._columns


def first_row_twice(blocks):
  for columns in real_columns(blocks):
    again = [column[:1] for column in columns[:3]]
    yield [*again, columns[3][-1:] + 1]
    yield columns


FAULTS: dict[str, tuple[str, Any]] = {
  "moments, noise halved": (
    "oneshot_dp.linear_dp.statistics.joint_release.GaussianChain",
    HalvedChain,
  ),
  "moments, noise used again": (
    "oneshot_dp.linear_dp.statistics.joint_release.GaussianChain",
    SameNoiseAgain,
  ),
  "steps, noise halved": (
    "oneshot_dp.linear_dp.statistics.gradient_sum.rounded_gaussian",
    halved,
  ),
  "steps, a quarter of the noise": (
    "oneshot_dp.linear_dp.statistics.gradient_sum.rounded_gaussian",
    quartered,
  ),
  "steps, noise used again": (
    "oneshot_dp.linear_dp.statistics.gradient_sum.rounded_gaussian",
    of_one_seed,
  ),
  "steps, noise shared": (
    "oneshot_dp.linear_dp.statistics.gradient_sum.rounded_gaussian",
    shared_by_features,
  ),
  "clipping off": (
    "oneshot_dp.linear_dp.heads.multi_step.training.clipped_gradient",
    unclipped,
  ),
  "a row twice": (
    "oneshot_dp.linear_dp.rows.unit_norm_rows._columns",
    first_row_twice,
  ),
  "all steps for the price of one": (
    "oneshot_dp.linear_dp.heads.multi_step.batches.Batches.step_noise_multiplier",
    lambda self, sigma: sigma,
  ),
  "all rows in every sample": (
    "oneshot_dp.linear_dp.heads.multi_step.batches.Batches.chosen",
    lambda self, source: [None] * self.num_steps,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ("fault", "config", "runs"),
  [
    ("moments, noise halved", LEAST_SQUARES, 300),
    ("moments, noise used again", LEAST_SQUARES, 100),
    ("a row twice", LEAST_SQUARES, 300),
    ("steps, noise halved", steps(), 100),
    ("steps, noise used again", steps(), 60),
    ("steps, noise shared", steps(), 60),
    ("clipping off", steps(), 60),
    ("a row twice", steps(), 100),
    ("all steps for the price of one", steps(epochs=4), 60),
    ("steps, a quarter of the noise", POISSON, 150),
    ("all rows in every sample", POISSON, 100),
  ],
)
def test_faults_are_flagged(monkeypatch, fault, config, runs):
  monkeypatch.setattr(*FAULTS[fault])
  report = audit(config, 8.0, runs)
  assert report.is_violated
  assert report.verdict.startswith("VIOLATION: ")


@pytest.mark.slow
def test_a_fault_of_whitened_heads_is_flagged(monkeypatch):
  monkeypatch.setattr(WhiteningRule, "num_steps", 3)
  monkeypatch.setattr(*FAULTS["steps, noise halved"])
  assert audit(WHITENED, 8.0, 150).is_violated


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.6, 0.95])
def test_bounds_exceed_the_truth_as_seldom_as_they_say(confidence):
  """Of scores whose epsilon is known: exactly Gaussian."""
  plan = ReleasePlan(epsilons=(2.0,), delta=DELTA, order="independent")
  (sigma,) = plan.noise_multipliers.values()
  claim = PrivacyStatement.without_privacy(DELTA, plan.neighboring_relation)
  rng, replicates = np.random.default_rng(0), 80

  def scores(runs: int) -> tuple[np.ndarray, np.ndarray]:
    absent, present = rng.normal(0, sigma, (2, runs))
    return absent, present + 1

  found = []
  for _ in range(replicates):
    known = Scores(claim=claim, pilot=scores(200), tested=scores(1000))
    noise = noise_bound(known, plan, confidence)
    found.append((noise, any_bound(known, DELTA, confidence)))
  above = (np.array(found) > 2.0).mean(axis=0)
  luck = 3 * math.sqrt(confidence * (1 - confidence) / replicates)
  assert (above <= 1 - confidence + luck).all()
  assert above[0] > 0 or confidence > 0.9  # not for want of trying
  assert np.median(found, axis=0)[1] > 0


COMMAND = "audit --delta 1e-5 --noise-seed 1"
SHORT = "--head multi-step --steps.epochs 1"


@pytest.mark.slow
def test_command_prints_claim_bounds_and_verdict(capsys, monkeypatch, tmp_path):
  monkeypatch.setenv("ONESHOT_DP_LEDGER_DIR", str(tmp_path / "ledgers"))
  monkeypatch.chdir(tmp_path)
  argv = f"{COMMAND} --head least-squares --epsilon 4 --runs 200"
  out, _ = succeeds(capsys, *argv.split())
  assert "claim: epsilon = 4 at delta = 1e-05 (REPLACE_SPECIAL)" in out
  assert "noise multiplier 1.08116, noise from seeded: NOT PRIVATE" in out
  for attack in (NOISE_BOUND, ANY_BOUND):
    assert re.search(f"{attack} +epsilon >= ", out)
  assert "200 runs with and 200 without the canary; " in out
  assert "0.95 confidence" in out
  assert "verdict: consistent with the claim" in out
  # It reads no private data, so it charges nothing; and it leaves nothing.
  assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "runs"),
  [(POISSON, 60), (PARTITION, 100)],
  ids=["poisson", "partition"],
)
def test_a_seed_repeats_the_audit(monkeypatch, config, runs):
  """Its direction too: batches of the system's bits might miss the canary."""

  def refused(count: int) -> bytes:
    raise AssertionError(f"{count} bytes of the system's")

  monkeypatch.setattr("oneshot_dp.linear_dp.noise.source.os.urandom", refused)
  first, second = (audit(config, 8.0, runs) for _ in range(2))
  assert first.lower_bounds == second.lower_bounds
  assert first.lower_bound > 0


@pytest.mark.slow
def test_command_fails_on_a_violation(capsys, monkeypatch):
  monkeypatch.setattr(*FAULTS["steps, noise used again"])
  assert main(f"{COMMAND} {SHORT} --epsilon 8 --runs 60".split()) == 1
  said = capsys.readouterr()
  assert "lower bound: " in said.out
  assert "verdict" not in said.out
  assert said.err.startswith("oneshot-dp: error: VIOLATION: epsilon is at")


@pytest.mark.parametrize(
  ("flags", "complaint"),
  [
    ("--head whitened --runs 50", "runs=50 prove nothing at epsilon=1"),
    ("--head whitened --runs 0", "num_draws=0"),
    ("--head whitened --canaries 100", "--canaries is for the audit of --head"),
    (f"{SHORT} --l2-clip-norm 1", "leave it out with --head multi-step"),
    ("--head least-squares --train-bias", "--train-bias is for the audit"),
    ("--head least-squares --num-classes 3", "--num-classes is for"),
    ("--head least-squares --feature-dim 3", "--feature-dim is for"),
    ("--head whitened --steps.epochs 2", "settings of steps are for"),
    ("--steps.epochs 2", "settings of steps are for head='multi-step'"),
    (f"{SHORT} --confidence 95", "confidence=95.0 must lie between"),
    (
      f"{SHORT} --steps.sampling poisson --steps.batch-size 100",
      "batch_size=100 is not between 1 and the 64 rows",
    ),
    ("--head auto", "auto"),
  ],
)
def test_command_refuses_what_proves_nothing(capsys, flags, complaint):
  argv = f"{COMMAND} --epsilon 1 {flags}".split()
  assert complaint in fails(capsys, *argv)


@pytest.mark.slow
def test_the_number_of_runs_that_is_asked_for_is_enough():
  with pytest.raises(InputError, match="give at least") as error:
    audit(steps(epochs=1), 4.0, 3)
  words = str(error.value).replace(",", "").split()
  enough = int(words[words.index("least") + 1])
  assert audit(steps(epochs=1), 4.0, enough).lower_bound < 4
