"""budget: what was spent of each data set, and caps."""

import json
import subprocess
import sys

import pytest

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from tests.pipeline.command_line import succeeds
from tests.pipeline.sample_heads import row_keys

DELTA = 1e-5
SECRET = {"private": "SECRET"}


@pytest.fixture
def charged(ledger, charge):
  """A ledger of two data sets, with charges that are private or not."""
  charge(
    mu_squared_from_epsilon(1.0, DELTA),
    None,
    keys=row_keys(1),
    identity=SECRET,
    run="/run",
  )
  charge(
    mu_squared_from_epsilon(2.0, DELTA),
    dataset="cats",
    keys=row_keys(2),
    identity=SECRET,
    unit="user",
  )
  return ledger


def test_budget_of_a_ledger_that_is_not_there_says_so_and_makes_none(
  ledger, capsys
):
  out, _ = succeeds(capsys, "budget")

  assert "nothing was charged" in out
  assert not ledger.path.exists()


def test_budget_tells_what_each_data_set_spent(charged, capsys):
  out, _ = succeeds(capsys, "budget")

  pets, cats = out.split("\npets:\n")[1].split("\ncats:\n")
  assert "spent, all together: epsilon 1 at delta 1e-05; 2." in pets
  assert "1 are NOT PRIVATE: no epsilon covers them" in pets
  assert "charge 1 per example; charge" in pets
  assert "no cap" in pets
  assert "epsilon 2 at delta 1e-05" in cats
  assert "per user" in cats


def test_budget_tells_nothing_of_runs_and_rows(charged, capsys):
  out, _ = succeeds(capsys, "budget")

  assert "SECRET" not in out
  assert "keys" not in out


def test_budget_as_json_has_what_each_data_set_spent(charged, capsys):
  out, _ = succeeds(capsys, "budget", "--json")

  pets, cats = json.loads(out)["datasets"]
  assert (pets["dataset"], cats["dataset"]) == ("pets", "cats")
  assert 1 - 1e-6 < pets["spent"]["epsilon"] <= 1 + 1e-6
  assert pets["spent"]["not_private"] == 1
  assert pets["cap"] is None


def test_budget_as_json_tells_nothing_of_runs_and_rows(charged, capsys):
  out, _ = succeeds(capsys, "budget", "--json")

  assert "SECRET" not in out
  assert "/run" not in out


# Caps.


@pytest.fixture
def set_cap(capsys, train_cache):
  """Sets the cap of the data set of a cache to ε; returns what was said."""

  def run(epsilon):
    return succeeds(
      capsys,
      *("budget", "--cache", train_cache.path),
      *("--max-epsilon", epsilon, "--max-delta", DELTA),
    )

  return run


@pytest.fixture
def used_up(charge, set_cap, train_cache):
  """The cache of a data set whose cap of ε = 3 is spent."""
  set_cap(3)
  charge(
    mu_squared_from_epsilon(3.0, DELTA),
    dataset=train_cache.info.dataset,
    keys=row_keys(1),
  )
  return train_cache


def test_budget_sets_a_cap_and_tells_what_is_left(set_cap):
  out, err = set_cap(3)

  assert "warning" not in err
  assert "cap: epsilon 3 at delta 1e-05; enough is left for one more" in out


def test_budget_of_a_used_up_cap_tells_that_nothing_is_left(capsys, used_up):
  out, _ = succeeds(capsys, "budget", "--cache", used_up.path)

  assert "nothing is left" in out
  assert "cap set to epsilon 3" in out


def test_budget_of_a_used_up_cap_as_json_has_zero_left(capsys, used_up):
  out, _ = succeeds(capsys, "budget", "--cache", used_up.path, "--json")

  assert json.loads(out)["datasets"][0]["left"] == 0


def test_budget_of_a_cache_tells_of_no_other_data_set(charge, set_cap, used_up):
  charge(1.0, dataset="wolves", keys=row_keys(2))

  out, _ = set_cap(2)

  assert "wolves" not in out


def test_budget_warns_of_a_cap_that_is_lower_than_what_is_spent(
  set_cap, used_up
):
  _, err = set_cap(2)

  assert "WARNING: more than this is spent" in err


def test_budget_warns_of_a_cap_that_was_raised(set_cap, used_up):
  set_cap(2)

  _, err = set_cap(4)

  assert "THE CAP WAS RAISED" in err


# Many charges.


TIMED = """
import sys, time
from oneshot_dp.pipeline.cli import main

assert main(["budget", "--ledger", sys.argv[1] + ".none"]) == 2  # imports
begun = time.process_time()
assert main(["budget", "--ledger", sys.argv[1]]) == 0
print(time.process_time() - begun)
"""


@pytest.mark.slow
def test_three_thousand_charges_are_read_in_a_third_of_a_second(ledger, charge):
  """In a process of its own, where no annotation is checked."""
  # All different, or their sum would be quicker than sums are.
  costs = []
  for i in range(3_000):
    costs.append(1e-4 * (1 + i / 1e5))
  charge(*costs)

  run = subprocess.run(
    [sys.executable, "-c", TIMED, str(ledger.path)],
    capture_output=True,
    text=True,
    check=True,
  )

  *lines, seconds = run.stdout.splitlines()
  assert len(lines) > 3_000
  assert float(seconds) < 0.33
