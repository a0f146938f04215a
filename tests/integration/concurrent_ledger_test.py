"""Four processes that release from one data set while they are being killed."""

import collections
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from dp_accounting import NeighboringRelation

from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.integration import releasing
from tests.pipeline import paid
from tests.pipeline.command_line import ROOT

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  folder: pathlib.Path
  kills: int


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
  folder = tmp_path_factory.mktemp("releases")
  process = subprocess.run(
    [sys.executable, releasing.__file__, str(folder)],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    check=True,
    timeout=200,
    capture_output=True,
    text=True,
  )
  assert process.stderr == ""  # nobody complained of the ledger on the way
  return Run(folder=folder, kills=int(process.stdout))


@pytest.fixture
def released(run) -> list[dict]:
  """What the workers say they let out; a torn last line let nothing out."""
  return [
    json.loads(line)
    for path in run.folder.glob("released-*")
    for line in path.read_text().splitlines(keepends=True)
    if line.endswith("\n")
  ]


@pytest.fixture
def ledger(run, tmp_path) -> Ledger:
  """As the last kill left it, in a copy of its own."""
  shutil.copytree(run.folder / "ledgers", tmp_path / "ledgers")
  return Ledger("pets", tmp_path / "ledgers")


@pytest.mark.slow
class TestKilledReleases:
  def test_enough_was_released(self, run, released):
    assert run.kills >= releasing.KILLS
    assert len(released) >= releasing.RELEASES * len(releasing.EPSILONS)

  def test_every_release_was_charged_and_no_charge_used_twice(
    self, released, ledger
  ):
    charged = {e["entry"]: e for e in ledger.entries()}
    heads = collections.defaultdict(list)
    for r in released:
      heads[r["entry"]].append(r)
    assert heads.keys() <= charged.keys()
    for name, of_entry in heads.items():
      epsilons = [r["epsilon"] for r in of_entry]
      # A kill between two heads of a draw leaves the first.
      assert epsilons == charged[name]["epsilons"][: len(epsilons)]
      sigma = of_entry[0]["noise_multiplier"]
      assert paid.gaussians(charged[name]) == {sigma: 1}

  def test_it_composes_to_at_least_what_was_released(
    self, run, released, ledger
  ):
    least: dict[str, float] = {}
    for r in released:
      sigma = r["noise_multiplier"]
      least[r["entry"]] = min(sigma, least.get(r["entry"], sigma))
    # One draw is post-processing of its least noisy head.
    sigma = accounting.compose(least.values())
    spent = ledger.spending(REPLACE_SPECIAL)
    assert spent.noise_multiplier() is not None
    assert spent.noise_multiplier() <= sigma * (1 + 1e-12)
    assert spent.charges >= len(least) >= releasing.RELEASES
    # A kill costs one charge at most.
    assert spent.charges - len(least) <= run.kills

  def test_no_two_releases_share_a_noise_draw(self, released):
    rows = [row for r in released for row in r["noise"]]
    assert len(rows) == 3 * len(released)
    assert len(set(rows)) == len(rows)

  def test_the_ledger_goes_on(self, ledger):
    before = ledger.entries()
    plan = ReleasePlan(epsilons=(1.0,), delta=releasing.DELTA)
    ledger.charge(Charge.of_plan(plan, NoiseSource()))
    assert ledger.entries()[:-1] == before
    files = {p.suffix for p in ledger.path.parent.iterdir()}
    assert files == {".jsonl", ".head", ""}  # and a lock
