"""Nothing is charged less than it cost by kills, races or full disks.

ONESHOT_DP_KILLS=200 pytest tests/faults/ledger_faults_test.py is the long form.
"""

import contextlib
import os
import random
import sqlite3
import subprocess
import time
from fractions import Fraction
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import places
from oneshot_dp.linear_dp.accounting import epsilon_of
from oneshot_dp.pipeline.ledger import delivery
from oneshot_dp.pipeline.ledger.entries import Cap, spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.extract import object_server
from tests.faults import writers
from tests.faults.harness import KILLS, everything_in, files_no_larger_than
from tests.pipeline.command_line import start
from tests.sample_caches import write_clusters

pytestmark = pytest.mark.long

COST = Fraction(writers.COST)
COMMANDS = {
  "train": "train --epsilon 2 --head auto",
  "sweep": "sweep --eval-cache TEST --epsilons 1 4 --head lamb",
}


@pytest.fixture
def path(tmp_path, monkeypatch):
  monkeypatch.setenv("ONESHOT_DP_LEDGER", str(tmp_path / "ledger.sqlite"))
  return tmp_path / "ledger.sqlite"


def count_charges(path, returned):
  """All that returned is there, and the file is whole by SQLite's own check."""
  ledger = Ledger(path)
  ids = [entry.id for entry in ledger.entries("pets")]
  assert set(returned) <= set(ids)
  assert len(ids) == len(set(ids))
  assert spent(ledger.entries("pets")) == len(ids) * COST
  with contextlib.closing(sqlite3.connect(path)) as db:
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
  ledger.set_cap("wolves", Cap(1.0, 1e-5))  # the next to write clears up
  assert everything_in(path.parent) == {path.name}
  return len(ids)


def test_ledger_writers_that_are_killed_lose_no_charge(path):
  """Whether killed before, within or after its charge, the file goes on."""
  count = 100 + 5 * KILLS
  draw = random.Random(1)
  returned = []
  for i in range(count):
    process, pipe = writers.started(writers.charge, path, i)
    if i % 2:
      pipe.poll(2)  # until its first charge
    time.sleep(draw.random() ** 2 * 0.04)
    process.kill()
    process.join()
    returned.extend(writers.received(pipe))

  assert len(returned) > count / 4
  count_charges(path, returned)


def test_ledger_cap_holds_in_a_race_of_eight_processes(path):
  fits = 37
  epsilon = epsilon_of(float(fits * COST), 1e-5) * (1 + 1e-6)
  cap = Cap(epsilon, 1e-5)
  assert fits <= cap.mu_squared / COST < fits + 1
  Ledger(path).set_cap("pets", cap)

  all_of_them = writers.FORKS.Barrier(8)
  pipes = []
  for i in range(8):
    _, pipe = writers.started(writers.charge, path, i, all_of_them)
    pipes.append(pipe)
  lines = []
  for pipe in pipes:
    lines.extend(writers.received(pipe))

  charged = [line for line in lines if "refused" not in line]
  refused = [line for line in lines if "would break the cap" in line]
  assert len(charged) == fits
  assert len(refused) == 8
  assert spent(Ledger(path).entries()) == fits * COST


@pytest.mark.parametrize("ledger_is_new", [True, False])
def test_charge_on_a_full_disk_is_made_whole_or_not_at_all(path, ledger_is_new):
  ledger = Ledger(path)
  draw = random.Random(0)
  charged = []
  failed = 0

  def charge(rows):
    run = Path(f"/runs/{draw.random()}")
    charged.extend(ledger.charge([writers.bill(rows)], run, {}))

  if not ledger_is_new:
    charge(3)
  sizes = [0, 1, 512, 4095]
  for _ in range(30):
    sizes.append(draw.randrange(1 << 16))
  for size in sizes:
    for _ in range(4):
      try:
        with files_no_larger_than(size):
          charge(2 + draw.randrange(1000))
      except RunError as error:
        failed += 1
        assert str(path) in str(error)  # noqa: PT017
    if charged:
      assert count_charges(path, charged) == len(charged)

  assert failed > 20
  assert len(charged) > 20


def test_delivery_that_is_killed_has_one_charge_and_shows_noted_heads(path):
  """At random moments; the same command goes on until heads are shown."""
  count = 20 + KILLS
  out = path.parent / "results"
  out.mkdir()
  draw = random.Random(1)
  kills = 0
  usual_seconds = 0.01
  for i in range(count):
    place = out / f"run {i}"
    tries = 0
    while not place.exists():
      tries += 1
      assert tries < 100
      process, _ = writers.started(writers.deliver, path, place)
      begun = time.monotonic()
      process.join(draw.random() * 1.2 * usual_seconds)
      if process.exitcode is None:
        process.kill()
        process.join()
        kills += 1
        usual_seconds *= 1.05
      else:
        assert process.exitcode == 0
        took = time.monotonic() - begun
        usual_seconds = max(0.01, (usual_seconds + took) / 2)
    with contextlib.suppress(InputError):
      writers.deliver(None, path, place)  # clears up after what was killed

  assert kills > count / 2
  assert {p.name for p in out.iterdir()} == {f"run {i}" for i in range(count)}
  for place in out.iterdir():
    heads = delivery.find_heads(place)
    assert len(heads) == 3
    assert len({head.charge for head in heads.values()}) == 1
  assert delivery.find_heads(out) == Ledger(path).heads()
  assert len(Ledger(path).entries()) == count


def test_delivery_into_a_bucket_that_is_killed_has_one_charge(
  path, tmp_path, monkeypatch
):
  """Two at once, killed at random moments, until one ends by itself."""
  count = 10 + KILLS
  draw = random.Random(1)
  kills = 0
  usual_seconds = 0.1
  with object_server.served(monkeypatch, tmp_path) as server:
    for i in range(count):
      url = f"s3://{object_server.BUCKET}/run-{i}"
      last = f"run-{i}/heads/2/receipt.json"
      words = [writers.deliver_to_bucket, path, url, dict(os.environ)]
      while last not in server.objects:
        processes = [writers.started(*words)[0] for _ in range(2)]
        for process in processes:
          process.join(draw.random() * 1.2 * usual_seconds)
          if process.exitcode is None:
            process.kill()
            kills += 1
            usual_seconds *= 1.05
          process.join()
        seen = {name.partition("/")[0] for name in server.objects}
        noted = Ledger(path).heads() if path.exists() else {}
        for name in seen:
          found = delivery.find_heads(places.Url(f"s3://data/{name}"))
          assert found.items() <= noted.items()

    assert kills > count / 2
    shown = delivery.find_heads(places.Url(f"s3://{object_server.BUCKET}"))
    assert len(shown) == 3 * count
    assert shown == Ledger(path).heads()
    assert len(Ledger(path).entries()) == count


@pytest.fixture
def run_command(tmp_path, path):
  """Runs a command on two caches, which may be killed after some seconds."""
  train = write_clusters(tmp_path / "train").path
  test = write_clusters(tmp_path / "test", split="test", seed=1).path

  def run(name, out, seconds=300.0):
    """Whether it ended, well or because its heads were there already."""
    line = f"{COMMANDS[name]} --cache {train} --delta 1e-5 --out {out}"
    process = start(line.replace("TEST", str(test)).split())
    try:
      _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
      process.kill()
      process.communicate()
      return False
    assert process.returncode == 0 or "already exists" in err
    return True

  return run


@pytest.mark.parametrize("name", COMMANDS)
def test_command_that_is_killed_has_one_charge_and_one_set_of_heads(
  tmp_path, path, run_command, name
):
  results = tmp_path / "results"
  results.mkdir()
  begun = time.monotonic()
  assert run_command(name, results / "first")
  usual_seconds = time.monotonic() - begun

  draw = random.Random(name)
  kills = 0
  runs = 1
  while kills < KILLS:
    out = results / f"run-{runs}"
    while not out.exists() and kills < KILLS:
      if not run_command(name, out, draw.random() * usual_seconds):
        kills += 1
    assert run_command(name, out)  # it ends at last, or clears up
    runs += 1

    assert len(list(results.iterdir())) == runs
    shown = delivery.find_heads(results)
    charged = {entry.id for entry in Ledger(path).entries()}
    assert shown == Ledger(path).heads()
    assert {head.charge for head in shown.values()} == charged
    assert len(charged) == runs
