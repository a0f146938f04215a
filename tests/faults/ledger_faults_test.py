"""Nothing is charged less than it cost by kills, races or full disks."""

import json
import random
import resource
import sqlite3
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp.accounting import epsilon_of
from oneshot_dp.pipeline.ledger import deliver
from oneshot_dp.pipeline.ledger.charges import Cap, spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults import writers
from tests.faults.harness import KILLS, ROOT, everything_in

pytestmark = pytest.mark.slow

COST = Fraction(writers.COST)


@pytest.fixture
def path(tmp_path, monkeypatch):
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(tmp_path / "ledger.sqlite"))
  return tmp_path / "ledger.sqlite"


def said(what, path, count):
  """What processes of `writers` found, which ended well."""
  command = [sys.executable, "-m", writers.__name__]
  words = [what, str(path), str(count), "1"]
  pipe = subprocess.PIPE
  found = subprocess.run(command + words, cwd=ROOT, stdout=pipe, check=True)
  return json.loads(found.stdout)


def check(path, returned):
  """All that returned is there, and the file is whole by SQLite's own check."""
  ledger = Ledger(path)
  there = [each.id for each in ledger.entries("pets")]
  assert {*returned} <= {*there}
  assert len(there) == len({*there})
  assert spent(ledger.entries("pets")) == len(there) * COST
  with sqlite3.connect(path) as db:
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
  db.close()
  ledger.set_cap("wolves", Cap(1.0, 1e-5))  # the next to write clears up
  assert everything_in(path.parent) == {path.name}
  return len(there)


def test_kills_of_writers_lose_nothing(path):
  """Whether killed before, within or after its charge, the file goes on."""
  count = 100 + 5 * KILLS
  returned = said("kills", path, count)
  assert len(returned) > count / 4
  check(path, returned)


def test_eight_processes_race_for_a_cap(path):
  fits = 37
  epsilon = epsilon_of(float(fits * COST), 1e-5) * (1 + 1e-6)
  Ledger(path).set_cap("pets", Cap(epsilon, 1e-5))
  assert fits <= Cap(epsilon, 1e-5).mu2 / COST < fits + 1
  lines = said("race", path, 8)
  assert len([line for line in lines if "refused" not in line]) == fits
  assert len([line for line in lines if "would break the cap" in line]) == 8
  assert spent(Ledger(path).entries()) == fits * COST


@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_charges_nothing_or_all(path, first):
  """No file may grow beyond a size: EFBIG, where a full disk says ENOSPC."""
  ledger, made, draw, failed = Ledger(path), [], random.Random(0), 0

  def charge(rows):
    run = Path(f"/runs/{draw.random()}")
    made.extend(ledger.charge([writers.bill(rows)], run, {}))

  if not first:
    charge(3)
  limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
  for size in [0, 1, 512, 4095, *(draw.randrange(1 << 16) for _ in range(30))]:
    for _ in range(4):
      resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
      try:
        charge(2 + draw.randrange(1000))
      except RunError as error:
        failed += 1
        assert str(path) in str(error)  # noqa: PT017
      finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    if made:
      assert check(path, made) == len(made)
  assert failed > 20
  assert len(made) > 20


def test_killed_runs_have_one_charge_and_show_what_was_noted(path):
  count, out = 20 + KILLS, path.parent / "results"
  out.mkdir()
  assert said("deliveries", path, count) > count / 2
  assert {p.name for p in out.iterdir()} == {f"run {i}" for i in range(count)}
  for place in out.iterdir():
    heads = deliver._heads_in(place)
    assert len(heads) == 3
    assert len({each.charge for each in heads.values()}) == 1
  assert deliver._heads_in(out) == Ledger(path).heads()
  assert len(Ledger(path).entries()) == count
