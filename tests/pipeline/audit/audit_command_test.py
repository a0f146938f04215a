"""The audit command: what it charges, says, and ends with."""

import json
import re

import numpy as np
import pytest

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.audit import attack, bounds
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.entries import spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.command_line import fails, succeeds
from tests.sample_caches import write_clusters

pytestmark = pytest.mark.long

DELTA = 1e-5
CLAIM = ("audit", "--epsilon", 4, "--delta", DELTA)


@pytest.mark.parametrize(
  ("head", "unit"),
  [("lamb", "example"), ("lamb", "user"), ("auto", "user")],
)
def test_audit_of_a_cache_is_charged_and_reaches_a_quarter_of_its_claim(
  capsys, monkeypatch, tmp_path, ledger_file, head, unit
):
  # Audits of sound heads alarm in up to 2.5 %, and did so in 3 of 120 here: in
  # a test, in one of a million.
  monkeypatch.setattr(bounds, "ERROR", 1e-6)
  users = None
  if unit == "user":
    users = np.arange(180) // 2
  write_clusters(tmp_path / "c", dataset="private", unit_id=users)
  words = [*CLAIM, "--cache", tmp_path / "c", "--head", head]
  words += ["--rows", "[:80%]"]

  out, err = succeeds(capsys, *words, "--canaries", 1500, "--json")

  found = json.loads(out)
  assert 1 < found["gaussian"] <= 4
  assert found["blind"] <= 4
  assert found["ok"] is True
  where = r"one run of 1,500 canaries among 1[345]\d rows"
  assert re.fullmatch(where, found["where"])
  assert f"audit of {head} at epsilon 4: 'private' is charged epsilon 4" in err
  entries = Ledger(ledger_file).entries("private")
  assert spent(entries) == mu_squared_from_epsilon(4.0, DELTA)
  (entry,) = entries
  assert entry.description == f"audit of {head} at epsilon 4"
  assert entry.unit == unit
  assert not Ledger(ledger_file).heads()


def test_audit_of_a_balanced_head_among_real_rows_is_charged_and_sound(
  capsys, monkeypatch, tmp_path, ledger_file
):
  monkeypatch.setattr(bounds, "ERROR", 1e-6)
  write_clusters(tmp_path / "c", dataset="private")
  words = [*CLAIM, "--cache", tmp_path / "c", "--head", "auto", "--balanced"]

  out, _ = succeeds(capsys, *words, "--canaries", 500, "--json")

  found = json.loads(out)
  assert found["ok"] is True
  assert found["balanced"] is True
  (entry,) = Ledger(ledger_file).entries("private")
  assert spent([entry]) == mu_squared_from_epsilon(4.0, DELTA)


def test_audit_above_a_cap_is_refused_and_charges_nothing(
  capsys, tmp_path, ledger_file
):
  write_clusters(tmp_path / "c", dataset="private")
  cap = ["--max-epsilon", 2, "--max-delta", DELTA]
  succeeds(capsys, "budget", "--cache", tmp_path / "c", *cap)
  before = ledger_file.read_bytes()

  message = fails(capsys, *CLAIM, "--cache", tmp_path / "c", "--canaries", 100)

  assert "cap" in message
  assert ledger_file.read_bytes() == before


def test_audit_of_more_canaries_than_directions_hold_is_refused(
  capsys, tmp_path, ledger_file
):
  write_clusters(tmp_path / "c", dataset="private")

  message = fails(
    capsys, *CLAIM, "--cache", tmp_path / "c", "--canaries", 20_000
  )

  assert "give fewer canaries" in message
  assert not ledger_file.exists()


def test_audit_without_a_cache_costs_nothing(capsys, ledger_file):
  words = [*CLAIM, "--head", "lamb", "--canaries", 500]

  out, _ = succeeds(capsys, *words)

  assert re.search(r"lower bound  [23]\.\d{4}", out)
  assert "10 runs of 500 canaries" in out
  assert not ledger_file.exists()


def test_audit_of_a_claim_that_does_not_hold_ends_with_1(capsys, monkeypatch):
  monkeypatch.setattr(
    attack,
    "mu_squared_from_epsilon",
    lambda epsilon, delta: mu_squared_from_epsilon(4 * epsilon, delta),
  )
  words = f"audit --epsilon 1 --delta {DELTA} --head lamb --canaries 500"

  status = main(words.split())

  printed = capsys.readouterr()
  assert status == 1
  assert "lower bound" in printed.out
  assert "epsilon is at least" in printed.err
  assert printed.err.endswith("epsilon 1 of lamb does not hold.\n")
