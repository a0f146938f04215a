"""Noisy scores that were paid for: in view once, and after they were noted."""

import json
from pathlib import Path

import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.command_line import (
  fails,
  one_line,
  succeeds,
  with_changes,
)
from tests.sample_caches import write_clusters

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow


def test_scores_that_were_paid_for_are_kept_where_nobody_reads(
  capsys, place, ledger
):
  write_clusters(Path("t"), (40,) * 4, seed=4, dataset="tests")
  succeeds(capsys, *place("TRAIN --epsilon 8 --head lamb --out h"))
  words = "evaluate h --cache t --private-eval 2 --delta 1e-5 --out a.json"
  printed, _ = succeeds(capsys, *place(f"{words} --json"))
  assert json.loads(Path("a.json").read_text()) == json.loads(printed)
  assert Path("a.json").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def private_eval(capsys, place):
  """The words of a private evaluation, but for its --out."""
  write_clusters(Path("t"), (40,) * 4, seed=4, dataset="tests")
  succeeds(capsys, *place("TRAIN --epsilon 8 --head lamb --out h"))
  return place("evaluate h --cache t --private-eval 2 --delta 1e-5")


def test_private_scores_are_in_view_only_after_the_ledger_noted_them(
  capsys, private_eval, monkeypatch
):
  """Else a kill in between, and the command again, show two for one charge."""

  def killed(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(Ledger, "deliver", killed)
    assert main([*private_eval, "--out", "a.json"]) == 130

  succeeds(capsys, *private_eval, "--out", "b.json")

  assert not Path("a.json").exists()


def test_private_scores_of_the_slower_of_two_commands_are_not_shown(
  capsys, private_eval, monkeypatch, ledger
):
  deliver = Ledger.deliver

  def after_another(self, charge_ids, heads):
    deliver(self, charge_ids, {})  # the same command on another machine
    deliver(self, charge_ids, heads)

  monkeypatch.setattr(Ledger, "deliver", after_another)

  status = main(with_changes([*private_eval, "--out", "a.json"]))
  stderr = capsys.readouterr().err

  assert status == 2
  assert "is charged epsilon" in stderr  # by the faster one, too
  message = one_line(stderr)
  assert "another run of the same command was faster" in message
  assert not Path("a.json").exists()


def test_private_scores_without_their_ledger_are_not_shown_but_stay_charged(
  capsys, private_eval, monkeypatch, ledger_file
):
  deliver = Ledger.deliver

  def after_it_went_away(self, charge_ids, heads):
    ledger_file.rename("moved")
    deliver(self, charge_ids, heads)

  with monkeypatch.context() as patch:
    patch.setattr(Ledger, "deliver", after_it_went_away)
    message = fails(capsys, *private_eval, "--out", "a.json", status=1)

  assert "does not exist any more: put it back." in message
  assert f"what was charged to {ledger_file} stays charged" in message
  assert not Path("a.json").exists()
  Path("moved").rename(ledger_file)
  charges = len(Ledger(ledger_file).entries("tests"))
  succeeds(capsys, *private_eval, "--out", "a.json")
  assert len(Ledger(ledger_file).entries("tests")) == charges


def test_private_scores_that_are_interrupted_say_what_was_charged(
  capsys, private_eval, monkeypatch, ledger_file
):
  def interrupted(*_):
    raise KeyboardInterrupt

  monkeypatch.setattr(Ledger, "deliver", interrupted)

  message = fails(capsys, *private_eval, status=130)

  assert message.startswith("interrupted; No accuracies were shown")
  assert f"what was charged to {ledger_file} stays charged" in message


def test_another_budget_than_that_of_a_stopped_evaluation_names_the_way_out(
  capsys, place, private_eval, monkeypatch
):
  def killed(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(Ledger, "deliver", killed)
    fails(capsys, *private_eval, status=130)
  other = place("evaluate h --cache t --private-eval 1 --delta 1e-5")

  message = fails(capsys, *other)

  assert "was charged (accuracies at epsilon 2) and not finished" in message
  assert "run the very same command first" in message
  succeeds(capsys, *private_eval)
  succeeds(capsys, *other)


def test_private_scores_that_cannot_be_written_are_printed(
  capsys, private_eval, monkeypatch
):
  monkeypatch.setattr("oneshot_dp.extract.places.write_new", lambda *_: False)

  status = main([*private_eval, "--out", "a.json"])

  printed = capsys.readouterr()
  assert status == 1
  assert "top-1" in printed.out
  assert "--out a.json has appeared meanwhile" in printed.err
