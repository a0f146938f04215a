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


def count_releases(head):
  """How many sums of the rows a head's receipt tells of."""
  count = 0
  for release in head.stated["releases"]:
    count += release["count"]
  return count


def check_heads_are_vouched_for(folder, ledger):
  for weights in heads_in(folder):
    assert verify_head(weights.parent, ledger).vouched


class TestGoingOn:
  @pytest.fixture(params=[pytest.param("auto", marks=pytest.mark.slow), "lamb"])
  def continued(self, request, capsys, place):
    """A head of ε = 1 in `a`, one of 8 from it in `b`, and what was said."""
    words = f"TRAIN --head {request.param} --epsilon"
    succeeds(capsys, *place(f"{words} 1 --out a"))
    _, err = succeeds(capsys, *place(f"{words} 8 --from a --out b"))
    return read_head(Path("a")), read_head(Path("b")), err

  def test_the_difference_is_charged(self, continued, ledger):
    _, later, err = continued

    off = spent(ledger.entries("clusters")) - mu2_of(8.0)

    assert abs(off) <= mu2_of(8.0) / 10**9
    assert later.receipt["follows"]["epsilon"] <= 8.0
    assert "and 8 in total" in err

  def test_the_head_names_the_charge_that_it_continues(self, continued, ledger):
    first, later, _ = continued

    assert later.stated["went_on_from"] == first.stated["charge"]
    assert verify_head(Path("b"), ledger).vouched

  def test_the_receipt_tells_of_the_releases_of_both(self, continued):
    first, later, _ = continued

    # As many again: both heads are of the same kind.
    assert count_releases(later) == 2 * count_releases(first)

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
  @pytest.fixture
  def stopped_at_the_cap(self, capsys, place, train_cache, monkeypatch):
    """The words of a run that used up its cap and was stopped."""
    cap = f"budget --cache {train_cache.path} --max-epsilon 2 --max-delta 1e-5"
    succeeds(capsys, *cap.split())
    words = place("TRAIN --head lamb --epsilon 2 --out h")
    with monkeypatch.context() as patch:
      patch.setattr("oneshot_dp.pipeline.runs.run.write_head", stop)
      fails(capsys, *words, status=130)
    return words

  def test_a_cap_that_a_stopped_run_used_up_does_not_stop_it(
    self, capsys, stopped_at_the_cap
  ):
    succeeds(capsys, *stopped_at_the_cap)

  def test_a_cap_that_a_stopped_run_used_up_stops_others(
    self, capsys, place, stopped_at_the_cap
  ):
    line = fails(capsys, *place("TRAIN --head lamb --epsilon 1 --out i"))

    assert "would break the cap of 'clusters'" in line

  @pytest.fixture
  def stopped_sweep(self, capsys, place, monkeypatch):
    """The words of a sweep that was stopped after its heads, and its error."""
    words = place("SWEEP --epsilons 1 8 --head lamb --out s")
    with monkeypatch.context() as patch:
      patch.setattr("oneshot_dp.pipeline.runs.sweep_files.write_report", stop)
      line = fails(capsys, *words, status=130)
    return words, line

  @pytest.mark.slow
  def test_a_stopped_run_shows_no_head(self, stopped_sweep):
    _, line = stopped_sweep

    assert "the same command resumes without a new charge" in line
    assert not list(Path().rglob("head.safetensors"))

  @pytest.mark.slow
  def test_the_same_command_resumes_without_a_new_charge(
    self, capsys, ledger, stopped_sweep
  ):
    words, _ = stopped_sweep
    # Another command into the same place is refused, and changes nothing.
    other = [*words, "--num-draws", 2]
    assert "num_draws" in fails(capsys, *other)

    succeeds(capsys, *words)

    assert spent(ledger.entries("clusters")) == mu2_of(8.0)
    assert len(heads_in("s")) == 2
    check_heads_are_vouched_for("s", ledger)

  def test_an_error_in_the_middle_leaves_nothing(
    self, capsys, place, monkeypatch
  ):
    there = {*Path().iterdir()}

    def full(*_):
      raise OSError(28, "No space left on device")

    monkeypatch.setattr("oneshot_dp.pipeline.runs.run.write_head", full)
    words = place("TRAIN --epsilon 8 --head lamb --out h")

    assert "No space left" in fails(capsys, *words, status=1)
    assert {*Path().iterdir()} - there == {Path("state")}


@pytest.fixture
def on_two_hosts(place):
  """Runs a command on two: what each printed, and how each ended."""

  def run(line):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      address = f"127.0.0.1:{free.getsockname()[1]}"
    words = place(f"{line} --hosts")
    # Both are started before the first is waited for: they meet.
    first = start([*words, f"0/2@{address}"])
    second = start([*words, f"1/2@{address}"])
    printed = [first.communicate(timeout=120), second.communicate(timeout=120)]
    return printed, [first.returncode, second.returncode]

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
    printed, statuses = on_two_hosts(
      "SWEEP --epsilons 8 --head lamb auto --out s"
    )

    assert statuses == [0, 0], printed
    assert "all private heads together: epsilon = " in printed[0][0]
    assert printed[1] == ("", "")
    assert spent(ledger.entries("clusters")) == 2 * mu2_of(8.0)
    assert len(heads_in("s")) == 2
    check_heads_are_vouched_for("s", ledger)

  @pytest.mark.long
  def test_what_the_first_refuses_ends_all(self, on_two_hosts, ledger):
    Path("h").mkdir()

    printed, statuses = on_two_hosts("TRAIN --epsilon 8 --head lamb --out h")

    assert statuses == [2, 2], printed
    for _, err in printed:
      assert "h already exists" in one_line(err)
    assert not ledger.path.exists()
