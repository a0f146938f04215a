"""One training on real rows and canaries: charged, and bounded from below."""

import functools
import json
import pathlib

import numpy as np
import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.audit import CanaryScoreAuditor
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.one_step import release
from oneshot_dp.pipeline.audit import one_run, report
from oneshot_dp.pipeline.audit.report import AuditReport
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.training.train_heads import RELATIONS, plan_heads
from tests.pipeline.command_line import fails, succeeds
from tests.pipeline.sample_caches import write_rows

NULLED = NeighboringRelation.REPLACE_SPECIAL
RUNS = 400


def audited(
  cache: FeatureCache,
  folder: pathlib.Path,
  *,
  head: HeadConfig,
  epsilon: float,
  canaries: int,
  privacy: PrivacyConfig,
) -> AuditReport:
  relation = RELATIONS[privacy.neighboring_relation]
  made = one_run.make_canaries(head, cache, relation, canaries)
  plan = plan_heads(head, len(cache) + made.num_rows, (epsilon,), privacy)
  return one_run.audit_run(
    cache, plan, head, privacy, made, ledger_dir=folder, confidence=0.95
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("method", "epsilon", "relation", "canaries", "share"),
  [
    ("lamb", 1.0, "replace-special", 10_000, 0.5),
    ("adam", 2.0, "replace-one", 10_000, 0.5),
    ("momentum", 4.0, "replace-special", 10_000, 0.5),
    ("least-squares", 4.0, "replace-special", 200, 0.2),
    ("whitened", 4.0, "replace-special", 500, 0.2),
    ("multi-step", 4.0, "replace-one", 500, 0.3),
  ],
)
def test_bound_of_a_real_run_is_below_the_claim_and_says_something(
  train_cache, tmp_path, method, epsilon, relation, canaries, share
):
  found = audited(
    train_cache,
    tmp_path,
    head=HeadConfig(head=method),
    epsilon=epsilon,
    canaries=canaries,
    privacy=PrivacyConfig(
      delta=1e-5, neighboring_relation=relation, noise_seed=3
    ),
  )
  assert share * epsilon < found.lower_bound < epsilon
  assert found.lower_bounds[one_run.NOISE] == found.lower_bound
  assert not found.is_violated


@pytest.mark.slow
def test_sound_runs_raise_no_more_false_alarms_than_is_stated(monkeypatch):
  """Runs of scores whose ε is exactly what is claimed."""
  # It depends on the claim alone, which is that of all runs.
  once = functools.cache(report.best_number_of_guesses)
  monkeypatch.setattr(report, "best_number_of_guesses", once)
  plan = ReleasePlan(epsilons=(2.0,), delta=1e-5, neighboring_relation=NULLED)
  (sigma,) = plan.noise_multipliers.values()
  rng = np.random.default_rng(0)
  alarms = 0
  for _ in range(RUNS):
    there = rng.integers(0, 2, 300).astype(bool)
    scores = rng.standard_normal(300) + (there - 0.5) / sigma
    auditor = CanaryScoreAuditor(absent=scores[~there], present=scores[there])
    bounds = one_run.bounds_of_run(auditor, plan, 0.95)
    alarms += max(bounds.values()) > 2.0
  assert alarms <= 0.05 * RUNS


def test_real_rows_change_nothing_that_the_audit_says(tmp_path):
  """With the same noise, of neighbours too: scores are of releases alone."""
  rng = np.random.default_rng(0)
  rows = Rows(
    embedding=rng.standard_normal((100, 6)).astype(np.float32),
    label=rng.integers(0, 4, 100),
    example_id=np.iinfo(np.int64).max - np.arange(100),
  )
  other = Rows(
    embedding=1 - rows.embedding,
    label=rows.label[::-1].copy(),
    example_id=rows.example_id,
  )
  reports = [
    audited(
      write_rows(tmp_path / name, each),
      tmp_path / f"{name}-ledgers",
      head=HeadConfig(),
      epsilon=2.0,
      canaries=400,
      privacy=PrivacyConfig(delta=1e-5, noise_seed=1),
    )
    for name, each in (("one", rows), ("other", other))
  ]
  assert reports[0].facts == reports[1].facts


COMMAND = "audit --cache {cache} --epsilon 4 --delta 1e-5 --canaries 1000"


def test_command_charges_once_and_leaves_no_head(
  capsys, train_cache, ledger_dir, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  before = {p for p in tmp_path.rglob("*") if p.is_file()}
  # At 95 %, one of twenty sound releases would be flagged.
  argv = COMMAND.format(cache=train_cache.path).split()
  argv += ["--confidence", "0.999999"]
  out, err = succeeds(capsys, *argv)
  assert "claim: epsilon = 4 at delta = 1e-05 (REPLACE_SPECIAL)" in out
  assert "adversary: sees all noisy releases of this one run" in out
  assert "1 run(s) of 1,000 canaries" in out
  assert "verdict: consistent with the claim" in out
  assert "charged to" in err
  (ledger,) = ledger_dir.glob("*.jsonl")
  (entry,) = [json.loads(line) for line in ledger.read_text().splitlines()]
  assert entry["audit_canaries"] == 1000
  assert entry["epsilons"] == [4.0]
  assert entry["private"]
  left = {p for p in tmp_path.rglob("*") if p.is_file()} - before
  assert all(ledger_dir in p.parents for p in left)


def test_command_keeps_to_the_cap(capsys, train_cache, ledger_dir):
  succeeds(
    capsys,
    *f"budget set --cache {train_cache.path} --max-epsilon 1"
    " --max-delta 1e-4".split(),
  )
  argv = COMMAND.format(cache=train_cache.path).split()
  assert "would break the cap" in fails(capsys, *argv)


def test_command_fails_on_a_violation(capsys, train_cache, monkeypatch):
  class Halved(GaussianChain):
    def extend(self, sd):
      return super().extend(sd / 2)

  monkeypatch.setattr(release, "GaussianChain", Halved)
  assert main(COMMAND.format(cache=train_cache.path).split()) == 1
  said = capsys.readouterr()
  assert "verdict" not in said.out
  assert said.err.splitlines()[-1].startswith(
    "oneshot-dp: error: VIOLATION: epsilon is at least"
  )


@pytest.mark.parametrize(
  ("flags", "complaint"),
  [
    ("--runs 100", "--runs is for made-up rows"),
    ("--num-classes 3", "--num-classes is for made-up rows"),
    ("--private-eval", "--private-eval is for made-up rows"),
    ("--canaries 5", "canaries=5 must be 100 to 1000000"),
    ("--confidence 95", "confidence=95.0 must lie between"),
    ("--max-rows-per-unit 2", "--max-rows-per-unit=2"),
  ],
)
def test_command_refuses_in_one_line_and_charges_nothing(
  capsys, train_cache, ledger_dir, flags, complaint
):
  argv = f"{COMMAND.format(cache=train_cache.path)} {flags}".split()
  assert complaint in fails(capsys, *argv)
  assert not list(ledger_dir.glob("*.jsonl"))
