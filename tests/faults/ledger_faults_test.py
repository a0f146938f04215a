"""Nothing is charged less than it cost by kills, races or full disks.

ONESHOT_DP_KILLS=200 pytest tests/faults/ledger_faults_test.py is the long form.
"""

import contextlib
import random
import resource
import sqlite3
import subprocess
import time
from fractions import Fraction
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.accounting import epsilon_of
from oneshot_dp.pipeline.ledger import delivery as deliver
from oneshot_dp.pipeline.ledger.entries import Cap, spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.faults import writers
from tests.faults.harness import KILLS, everything_in
from tests.pipeline.command_line import start
from tests.sample_caches import write_clusters

pytestmark = pytest.mark.slow

COST = Fraction(writers.COST)
COMMANDS = {
  "train": "train --epsilon 2 --head auto",
  "sweep": "sweep --eval-cache TEST --epsilons 1 4 --head lamb",
}


@pytest.fixture
def path(tmp_path, monkeypatch):
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(tmp_path / "ledger.sqlite"))
  return tmp_path / "ledger.sqlite"


def check(path, returned):
  """All that returned is there, and the file is whole by SQLite's own check."""
  ledger = Ledger(path)
  there = [each.id for each in ledger.entries("pets")]
  assert {*returned} <= {*there}
  assert len(there) == len({*there})
  assert spent(ledger.entries("pets")) == len(there) * COST
  with contextlib.closing(sqlite3.connect(path)) as db:
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
  ledger.set_cap("wolves", Cap(1.0, 1e-5))  # the next to write clears up
  assert everything_in(path.parent) == {path.name}
  return len(there)


def test_kills_of_writers_lose_nothing(path):
  """Whether killed before, within or after its charge, the file goes on."""
  count, draw, returned = 100 + 5 * KILLS, random.Random(1), []
  for i in range(count):
    process, said = writers.started(writers.charge, path, i)
    said.poll(2 if i % 2 else 0)  # until its first charge, or before
    time.sleep(draw.random() ** 2 * 0.04)
    process.kill()
    process.join()
    returned += writers.received(said)
  assert len(returned) > count / 4
  check(path, returned)


def test_eight_processes_race_for_a_cap(path):
  fits = 37
  epsilon = epsilon_of(float(fits * COST), 1e-5) * (1 + 1e-6)
  Ledger(path).set_cap("pets", Cap(epsilon, 1e-5))
  assert fits <= Cap(epsilon, 1e-5).mu_squared / COST < fits + 1
  all_of_them = writers.FORKS.Barrier(8)
  words = [(path, i, all_of_them) for i in range(8)]
  racers = [writers.started(writers.charge, *each) for each in words]
  lines = [line for _, said in racers for line in writers.received(said)]
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
  """At random moments; the same command goes on until heads are shown."""
  count, out, draw = 20 + KILLS, path.parent / "results", random.Random(1)
  killed, longest = 0, 0.01
  out.mkdir()
  for i in range(count):
    place, tries = out / f"run {i}", 0
    while not place.exists():
      assert (tries := tries + 1) < 100
      process, _ = writers.started(writers.deliver, path, place)
      begun = time.monotonic()
      process.join(draw.random() * 1.2 * longest)
      if process.exitcode is None:
        process.kill()
        process.join()
        killed += 1
        longest *= 1.05
      else:
        assert process.exitcode == 0
        longest = max(0.01, (longest + time.monotonic() - begun) / 2)
    with contextlib.suppress(InputError):
      writers.deliver(None, path, place)  # clears up after what was killed
  assert killed > count / 2
  assert {p.name for p in out.iterdir()} == {f"run {i}" for i in range(count)}
  for place in out.iterdir():
    heads = deliver.find_heads(place)
    assert len(heads) == 3
    assert len({each.charge for each in heads.values()}) == 1
  assert deliver.find_heads(out) == Ledger(path).heads()
  assert len(Ledger(path).entries()) == count


@pytest.mark.parametrize("name", COMMANDS)
def test_killed_commands_have_one_charge_and_one_set_of_heads(
  tmp_path, path, name
):
  train = write_clusters(tmp_path / "train").path
  test = write_clusters(tmp_path / "test", split="test", seed=1).path
  (results := tmp_path / "results").mkdir()

  def run(out, seconds=300.0):
    """What it says of how it ended; it is killed after so long: None."""
    line = f"{COMMANDS[name]} --cache {train} --delta 1e-5 --out {out}"
    process = start(line.replace("TEST", str(test)).split())
    with contextlib.suppress(subprocess.TimeoutExpired):
      err = process.communicate(timeout=seconds)[1]
      assert process.returncode == 0 or "already exists" in err
      return err
    process.kill()
    process.communicate()
    return None

  begun = time.monotonic()
  run(results / "first")
  longest = time.monotonic() - begun
  draw, kills, runs = random.Random(name), 0, 1
  while kills < KILLS:
    out = results / f"run-{runs}"
    while not out.exists() and kills < KILLS:
      kills += run(out, draw.random() * longest) is None
    assert run(out) is not None  # at last, or it clears up
    runs += 1
    assert len([*results.iterdir()]) == runs
    shown = deliver.find_heads(results)
    assert shown == Ledger(path).heads()
    charged = [each.id for each in Ledger(path).entries()]
    assert {each.charge for each in shown.values()} == {*charged}
    assert len(charged) == runs
