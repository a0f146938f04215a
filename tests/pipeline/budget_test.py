import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from tests.pipeline.command_line import succeeds
from tests.pipeline.sample_heads import make_charge_request

DELTA = 1e-5


def charge(ledger, *costs, dataset="pets", run="/run", **changes):
  keys = {"image": np.array([hash(dataset) % 1000 + 1], np.uint64)}
  bill = make_charge_request(*costs, dataset=dataset, keys=keys, **changes)
  return ledger.charge([bill], Path(run), {"private": "SECRET"})


def test_what_was_spent_of_all_data_sets(ledger, capsys):
  out, _ = succeeds(capsys, "budget")
  assert "nothing was charged" in out
  assert not ledger.path.exists()
  charge(ledger, mu_squared_from_epsilon(1.0, DELTA), None)
  charge(
    ledger,
    mu_squared_from_epsilon(2.0, DELTA),
    dataset="cats",
    unit="user",
    run="/b",
  )
  out, _ = succeeds(capsys, "budget")
  pets, cats = out.split("\npets:\n")[1].split("\ncats:\n")
  assert "spent, all together: epsilon 1 at delta 1e-05; 2." in pets
  assert "1 are NOT PRIVATE: no epsilon covers them" in pets
  assert "charge 1 per example; charge" in pets
  assert "no cap" in pets
  assert "epsilon 2 at delta 1e-05" in cats
  assert "per user" in cats
  assert "SECRET" not in out
  assert "keys" not in out
  out, _ = succeeds(capsys, "budget", "--json")
  told = json.loads(out)["datasets"]
  assert [each["dataset"] for each in told] == ["pets", "cats"]
  assert 1 - 1e-6 < told[0]["spent"]["epsilon"] <= 1 + 1e-6
  assert told[0]["spent"]["not_private"] == 1
  assert told[0]["cap"] is None
  assert "SECRET" not in out
  assert "/run" not in out


def test_a_cap_is_set_and_what_is_left_is_said(ledger, capsys, train_cache):
  name = train_cache.info.dataset
  cache = train_cache.path
  cap = "--cache", cache, "--max-epsilon", 3, "--max-delta", DELTA
  out, err = succeeds(capsys, "budget", *cap)
  assert "warning" not in err
  assert "cap: epsilon 3 at delta 1e-05; one release of epsilon 3 at" in out
  charge(ledger, mu_squared_from_epsilon(3.0, DELTA), dataset=name)
  out, _ = succeeds(capsys, "budget", "--cache", cache)
  assert "nothing is left" in out
  assert "cap set to epsilon 3" in out
  out, _ = succeeds(capsys, "budget", "--cache", cache, "--json")
  assert json.loads(out)["datasets"][0]["left"] == 0
  charge(ledger, 1.0, dataset="wolves", run="/b")
  out, err = succeeds(capsys, "budget", *cap[:3], 2, *cap[4:])
  assert "warning: more than this is spent" in err
  assert "wolves" not in out
  _, err = succeeds(capsys, "budget", *cap[:3], 4, *cap[4:])
  assert "THE CAP WAS RAISED" in err


TIMED = """
import sys, time
from oneshot_dp.pipeline.cli import main

assert main(["budget", "--ledger", sys.argv[1] + ".none"]) == 2  # imports
begun = time.process_time()
assert main(["budget", "--ledger", sys.argv[1]]) == 0
print(time.process_time() - begun)
"""


@pytest.mark.slow
def test_three_thousand_charges_are_read_in_a_third_of_a_second(ledger):
  """In a process of its own, where no annotation is checked."""
  charge(ledger, *(1e-4 * (1 + i / 1e5) for i in range(3_000)))
  run = subprocess.run(
    [sys.executable, "-c", TIMED, str(ledger.path)],
    capture_output=True,
    text=True,
    check=True,
  )
  *lines, seconds = run.stdout.splitlines()
  assert len(lines) > 3_000
  assert float(seconds) < 0.33
