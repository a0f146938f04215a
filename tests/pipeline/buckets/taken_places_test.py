"""A place in a bucket is one run's: others are refused before they show."""

import stat
import subprocess
import sys

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import storage
from oneshot_dp.pipeline.ledger.bucket_output import work_folder_of
from oneshot_dp.pipeline.ledger.delivery import Delivery
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.buckets.served_runs import (
  Killed,
  Recorder,
  check_whole,
  kill_at,
  objects_of,
  refuse_to_train,
  run,
  write,
)
from tests.pipeline.sample_heads import make_charge_request

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow


def test_a_place_with_an_object_is_refused_before_the_charge(
  ledger, out, server
):
  server.objects["runs/1/mine"] = b"mine"

  with pytest.raises(InputError, match="already exists, as it has 'mine'"):
    run(ledger, out, refuse_to_train)

  assert not ledger.path.exists()
  assert server.objects == {"runs/1/mine": b"mine"}


def test_a_place_whose_name_another_begins_with_is_free(ledger, s3_out, server):
  server.objects["runs/10/mine"] = b"mine"

  run(ledger, s3_out)

  check_whole(server, ledger, s3_out)


def test_a_console_s_empty_folder_is_free(ledger, s3_out, server):
  server.objects["runs/1/"] = b""

  run(ledger, s3_out)

  assert server.objects.pop("runs/1/") == b""
  check_whole(server, ledger, s3_out)


def test_a_finished_run_is_found_although_the_listing_lags(
  ledger, s3_out, server, monkeypatch
):
  run(ledger, s3_out)
  nothing = b"<ListBucketResult><IsTruncated>false</IsTruncated>"
  answer = (200, [], nothing + b"</ListBucketResult>")
  monkeypatch.setattr(server, "_list", lambda query: answer)

  with pytest.raises(InputError, match="already exists, as it has 'results"):
    run(ledger, s3_out, refuse_to_train)

  assert len(ledger.entries("pets")) == 1


def test_a_second_run_with_one_ledger_is_refused(ledger, out, server):
  def train(folder, charge_ids):
    write(folder, charge_ids)
    with pytest.raises(InputError, match="another run is writing"):
      run(ledger, out, refuse_to_train)

  run(ledger, out, train)

  check_whole(server, ledger, out)


HOLD_SQLITES_KIND_OF_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_run_on_a_machine_that_shares_the_ledgers_disk_is_refused(
  ledger, s3_out, server
):
  """There flock may not hold; the locks that SQLite takes do."""
  work_folder = work_folder_of(s3_out, ledger.path)
  work_folder.mkdir(mode=0o700, parents=True)
  (work_folder / "whole").mkdir()
  words = [sys.executable, "-c", HOLD_SQLITES_KIND_OF_LOCK]
  with subprocess.Popen(
    [*words, str(work_folder / "lock")],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as other:
    assert other.stdout is not None
    assert other.stdout.readline() == b"locked\n"
    with pytest.raises(InputError, match="another run is writing"):
      run(ledger, s3_out, refuse_to_train)
    other.communicate()

  assert (work_folder / "whole").exists()
  assert not ledger.path.exists()
  run(ledger, s3_out)
  check_whole(server, ledger, s3_out)


def test_without_a_common_lock_the_second_is_refused_before_it_shows(
  ledger, s3_out, server
):
  """As on two machines without common locks: each has a folder of its own."""
  first = Recorder()
  work_folder = work_folder_of(s3_out, ledger.path)

  def train(folder, charge_ids):
    write(folder, charge_ids)
    work_folder.rename(work_folder.with_name("mine"))
    run(ledger, s3_out, first)
    work_folder.with_name("mine").rename(work_folder)

  with pytest.raises(InputError, match="another run of the same command was f"):
    run(ledger, s3_out, train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_of_two_ledgers_runs_the_slower_puts_nothing_and_keeps_its_heads(
  ledger, s3_out, server, tmp_path
):
  slower = Recorder()
  faster = Recorder()
  other_ledger = Ledger(tmp_path / "other")

  def train(folder, charge_ids):
    slower(folder, charge_ids)
    run(other_ledger, s3_out, faster)

  with pytest.raises(RunError, match="was put by another meanwhile"):
    run(ledger, s3_out, train)
  assert objects_of(server) == faster.files
  with pytest.raises(InputError, match="already exists"):
    run(ledger, s3_out, refuse_to_train)
  assert objects_of(server) == faster.files
  server.objects.clear()
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == slower.files


def test_another_run_into_the_place_of_one_that_is_half_put_is_refused(
  ledger, s3_out, server
):
  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, storage, "write_if_absent", 3, after=True)
    with pytest.raises(Killed):
      run(ledger, s3_out)
  half = objects_of(server)
  other = Delivery(
    s3_out, ledger, [make_charge_request(2.0)], identity={"epsilon": 2}
  )

  with pytest.raises(InputError, match="another by its epsilon"), other:
    other.open()

  assert objects_of(server) == half
  assert len(ledger.entries("pets")) == 1


def test_files_of_another_run_that_were_moved_here_are_not_its_results(
  ledger, s3_out, server, tmp_path
):
  work_folder = work_folder_of(s3_out, ledger.path)
  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, storage, "write_if_absent", 1, after=False)
    with pytest.raises(Killed):
      run(ledger, s3_out)
  (work_folder / "whole").rename(tmp_path / "of one")
  request = make_charge_request(2.0)
  other = Delivery(s3_out, ledger, [request], identity={"epsilon": 2})
  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, Ledger, "charge", 0, after=True)
    with pytest.raises(Killed), other:
      other.open()
  work_folder.mkdir()
  (tmp_path / "of one").rename(work_folder / "whole")

  again = Delivery(s3_out, ledger, [request], identity={"epsilon": 2})
  with pytest.raises(InputError, match="another by its epsilon"), again:
    again.open()

  assert not objects_of(server)


def test_a_folder_that_others_may_read_is_closed_before_anything_is_drawn(
  ledger, s3_out, server
):
  work_folder = work_folder_of(s3_out, ledger.path)
  work_folder.mkdir(parents=True)
  work_folder.chmod(0o755)
  modes = []

  def train(folder, charge_ids):
    modes.append(stat.S_IMODE(work_folder.stat().st_mode))
    write(folder, charge_ids)

  run(ledger, s3_out, train)

  assert modes == [0o700]


def test_a_new_ledgers_folder_is_its_owners_alone(
  s3_out, server, tmp_path, umask
):
  umask(0o002)
  folder = tmp_path / "new"

  run(Ledger(folder / "ledger"), s3_out)

  assert stat.S_IMODE(folder.stat().st_mode) == 0o700
