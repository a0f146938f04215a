"""A head that goes on from another, a run that was stopped, many hosts."""

import socket
from fractions import Fraction
from pathlib import Path

import pytest

from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.verify import verify_head
from oneshot_dp.pipeline.ledger.entries import spent
from tests.pipeline.command_line import fails, one_line, start, succeeds
from tests.pipeline.sample_heads import heads_in, mu2_of
from tests.sample_caches import write_clusters


class TestGoingOn:
  @pytest.mark.parametrize("head", ["auto", "lamb"])
  def test_the_difference_is_charged(self, capsys, place, ledger, head):
    succeeds(capsys, *place(f"TRAIN --epsilon 1 --head {head} --out a"))
    words = place(f"TRAIN --epsilon 8 --head {head} --from a --out b")
    _, err = succeeds(capsys, *words)
    assert "and 8 in total" in err
    off = spent(ledger.entries("clusters")) - mu2_of(8.0)
    assert abs(off) <= mu2_of(8.0) / 10**9
    first = read_head(Path("a"))
    later = read_head(Path("b"))
    assert later.stated["went_on_from"] == first.stated["charge"]
    assert later.receipt["follows"]["epsilon"] <= 8.0
    assert verify_head(Path("b"), ledger).vouched
    releases = [
      sum(each["count"] for each in saved.stated["releases"])
      for saved in (first, later)
    ]
    assert releases == [releases[1] // 2, releases[1]]

  def test_a_cap_can_be_used_up(self, capsys, place, ledger, train_cache):
    """Nothing of the cap is lost to noise multipliers that are rounded up."""
    cap = f"budget --cache {train_cache.path} --max-epsilon 2 --max-delta 1e-6"
    succeeds(capsys, *cap.split())
    words = "TRAIN --head lamb --delta 1e-6 --epsilon"
    succeeds(capsys, *place(f"{words} 1 --out a"))
    succeeds(capsys, *place(f"{words} 2 --out b --from a"))
    assert spent(ledger.entries("clusters")) == Fraction(
      mu_squared_from_epsilon(2.0, 1e-6)
    )

  def test_other_rows_under_the_same_name_are_refused(
    self, capsys, place, ledger
  ):
    """All that is public of them is equal; only the ledger can tell."""
    write_clusters(Path("c1"), seed=1)
    write_clusters(Path("c2"), seed=2)
    words = place("TRAIN --head lamb --epsilon")
    succeeds(capsys, *words, 2, "--cache", "c1", "--out", "a")
    go_on = [*words, 8, "--cache", "c2", "--from", "a", "--out", "b"]
    assert "trained on other rows than" in fails(capsys, *go_on)

  @pytest.mark.slow
  def test_rows_that_were_scored_are_not_those_trained_on(self, capsys, place):
    write_clusters(Path("t"), seed=4)
    words = "SWEEP --eval-cache t --epsilons 2 --private-eval 1 --head lamb"
    succeeds(capsys, *place(f"{words} --out s"))
    words = "TRAIN --cache t --head lamb --epsilon 8 --out b --from"
    (head,) = heads_in("s")
    line = fails(capsys, *place(f"{words} {head.parent}"))
    assert "trained on other rows than" in line


def stop(*_):
  raise KeyboardInterrupt


class TestStopped:
  def test_a_cap_that_a_stopped_run_used_up_does_not_stop_it(
    self, capsys, place, train_cache, monkeypatch
  ):
    cap = f"budget --cache {train_cache.path} --max-epsilon 2 --max-delta 1e-5"
    succeeds(capsys, *cap.split())
    words = place("TRAIN --head lamb --epsilon 2 --out h")
    with monkeypatch.context() as patch:
      patch.setattr("oneshot_dp.pipeline.runs.training.write_head", stop)
      fails(capsys, *words, status=130)
    succeeds(capsys, *words)
    line = fails(capsys, *place("TRAIN --head lamb --epsilon 1 --out i"))
    assert "would break the cap of 'clusters'" in line

  @pytest.mark.slow
  def test_the_same_command_goes_on_without_a_new_charge(
    self, capsys, place, ledger, monkeypatch
  ):
    words = place("SWEEP --epsilons 1 8 --head lamb --out s")
    with monkeypatch.context() as patch:
      patch.setattr("oneshot_dp.pipeline.runs.sweep_files.write_report", stop)
      line = fails(capsys, *words, status=130)
    assert "the same command resumes without a new charge" in line
    assert not list(Path().rglob("head.safetensors"))
    other = [*words, "--num-draws", 2]
    assert "num_draws" in fails(capsys, *other)
    succeeds(capsys, *words)
    assert spent(ledger.entries("clusters")) == mu2_of(8.0)
    assert all(verify_head(p.parent, ledger).vouched for p in heads_in("s"))

  def test_an_error_in_the_middle_leaves_nothing(
    self, capsys, place, monkeypatch
  ):
    there = {*Path().iterdir()}

    def full(*_):
      raise OSError(28, "No space left on device")

    monkeypatch.setattr("oneshot_dp.pipeline.runs.training.write_head", full)
    words = place("TRAIN --epsilon 8 --head lamb --out h")
    assert "No space left" in fails(capsys, *words, status=1)
    assert {*Path().iterdir()} - there == {Path("state")}


@pytest.fixture
def on_two_hosts(place):
  """What both say of a command, and how they end."""

  def run(line):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      where = f"127.0.0.1:{free.getsockname()[1]}"
    words = place(f"{line} --hosts")
    hosts = [start([*words, f"{i}/2@{where}"]) for i in (0, 1)]
    said = [host.communicate(timeout=120) for host in hosts]
    return said, [host.returncode for host in hosts]

  return run


class TestHosts:
  @pytest.mark.slow
  def test_one_host_is_a_case_of_many(self, capsys, place):
    words = "TRAIN --epsilon 8 --hosts 0/1@127.0.0.1:1 --out h"
    succeeds(capsys, *place(words))

  @pytest.mark.long
  def test_two_hosts_make_one_charge_and_one_set_of_heads(
    self, on_two_hosts, ledger
  ):
    said, statuses = on_two_hosts("SWEEP --epsilons 8 --head lamb auto --out s")
    assert statuses == [0, 0], said
    assert "all private heads together: epsilon = " in said[0][0]
    assert said[1] == ("", "")
    assert spent(ledger.entries("clusters")) == 2 * mu2_of(8.0)
    assert len(heads_in("s")) == 2
    assert all(verify_head(p.parent, ledger).vouched for p in heads_in("s"))

  @pytest.mark.long
  def test_what_the_first_refuses_ends_all(self, on_two_hosts, ledger):
    Path("h").mkdir()
    said, statuses = on_two_hosts("TRAIN --epsilon 8 --head lamb --out h")
    assert statuses == [2, 2], said
    assert all("h already exists" in one_line(each) for _, each in said)
    assert not ledger.path.exists()
