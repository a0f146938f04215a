"""A run into a bucket, killed, refused or raced at each of its steps."""

import json
import os
import secrets
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import files, places, storage
from oneshot_dp.pipeline.ledger.bucket_output import work_folder_of
from oneshot_dp.pipeline.ledger.delivery import Delivery, find_heads
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.extract import object_server
from tests.pipeline.sample_heads import make_charge_request

PUT_IN_ORDER = (
  "heads/1/head.safetensors",
  "heads/of/2/head.safetensors",
  "results.csv",
  "heads/1/receipt.json",
  "heads/of/2/receipt.json",
  "results.json",
)
PROBE = ".oneshot-dp-write-test"


@pytest.fixture
def server(tmp_path, monkeypatch):
  with object_server.served(monkeypatch, tmp_path) as made:
    yield made


@pytest.fixture(params=["s3", "gs"])
def out(request, server) -> places.Url:
  return places.Url(f"{request.param}://{object_server.BUCKET}/runs/1")


@pytest.fixture
def s3_out(server) -> places.Url:
  return places.Url(f"s3://{object_server.BUCKET}/runs/1")


def write(folder, charge_ids):
  """A run of two heads of random bytes, as noise is."""
  for name in "heads/1", "heads/of/2":
    head = folder / name
    head.mkdir(parents=True)
    (head / "head.safetensors").write_bytes(secrets.token_bytes(16))
    receipt = json.dumps({"stated": {"charge": charge_ids[0]}, "head": name})
    (head / "receipt.json").write_text(receipt)
  (folder / "results.csv").write_text(secrets.token_hex())
  (folder / "results.json").write_text(secrets.token_hex())


def refuse_to_train(folder, charge_ids):
  raise AssertionError("what was noted is shown as it is")


def run(ledger, out, train=write):
  requests = [make_charge_request(1.0)]
  with Delivery(out, ledger, requests, identity={}) as delivery:
    delivery.open()
    if not delivery.already_done:
      train(delivery.folder, delivery.charge_ids)
    delivery.commit()


def objects_of(server):
  """The objects of the run by their names in it."""
  prefix = "runs/1/"
  objects = {}
  for name, content in server.objects.items():
    if name.startswith(prefix):
      objects[name.removeprefix(prefix)] = content
  return objects


def files_of(folder):
  contents = {}
  for path in folder.rglob("*"):
    if path.is_file():
      contents[path.relative_to(folder).as_posix()] = path.read_bytes()
  return contents


class Recorder:
  """Trains, and keeps what it wrote."""

  def __init__(self):
    self.files = {}

  def __call__(self, folder, charge_ids):
    write(folder, charge_ids)
    self.files = files_of(folder)


def check_whole(server, ledger, out):
  """One charge, the noted heads, and nothing beside ledger and objects."""
  assert len(ledger.entries("pets")) == 1
  assert set(objects_of(server)) == set(PUT_IN_ORDER)
  assert ledger.heads() == find_heads(out)
  assert len(ledger.heads()) == 2
  assert not work_folder_of(out, ledger.path).exists()


def test_objects_are_put_after_the_note_and_what_completes_is_last(
  ledger, out, server, monkeypatch
):
  put = storage.write_if_absent
  noted_at_put = []
  names = []

  def noting_put(store, name, content):
    names.append(name)
    noted_at_put.append(bool(ledger.path.exists() and ledger.heads()))
    return put(store, name, content)

  monkeypatch.setattr(storage, "write_if_absent", noting_put)
  run(ledger, out)

  assert names == [PROBE, *PUT_IN_ORDER]
  assert noted_at_put == [False] + [True] * len(PUT_IN_ORDER)
  check_whole(server, ledger, out)


class Killed(BaseException):
  """In place of SIGKILL: nothing of ours runs after it."""


def kill_at(patch, owner, name, call, *, after):
  """The run ends just before, or just after, a call, counted from 0."""
  function = vars(owner)[name]
  calls = []

  def counted(*arguments, **options):
    calls.append(name)
    if len(calls) <= call:
      return function(*arguments, **options)
    if after:
      function(*arguments, **options)
    raise Killed

  patch.setattr(owner, name, counted)


STEPS = {
  "probe put": (storage, "write_if_absent", 0, True),
  "probe removed": (storage, "remove", 1, True),
  "charged": (Ledger, "charge", 0, True),
  "note": (Ledger, "deliver", 0, False),
  "noted": (Ledger, "deliver", 0, True),
  "rename": (Path, "rename", 0, False),
  "renamed": (Path, "rename", 0, True),
}
for number, put_name in enumerate(PUT_IN_ORDER):
  STEPS[f"before {put_name}"] = (storage, "write_if_absent", 1 + number, False)
  STEPS[f"after {put_name}"] = (storage, "write_if_absent", 1 + number, True)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_shows_what_was_noted_or_begins_anew_at_no_cost(
  ledger, s3_out, server, step
):
  owner, name, call, after = STEPS[step]
  first = Recorder()
  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, owner, name, call, after=after)
    patch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed):
      run(ledger, s3_out, first)

  noted = ledger.heads() if ledger.path.exists() else {}
  there = objects_of(server)
  there.pop(PROBE, None)
  if there:
    assert len(noted) == 2, "something is visible that the ledger lacks"
  assert there.items() <= first.files.items()
  for path in there:
    if path.endswith("receipt.json"):
      assert path.replace("receipt.json", "head.safetensors") in there
  if "results.json" in there:
    assert set(there) == set(PUT_IN_ORDER)

  if step == "renamed":
    with pytest.raises(InputError, match="already exists"):
      run(ledger, s3_out, refuse_to_train)  # and it clears up
  else:
    run(ledger, s3_out, refuse_to_train if noted else write)

  check_whole(server, ledger, s3_out)
  if noted:
    assert ledger.heads() == noted
    assert objects_of(server) == first.files


@pytest.mark.parametrize(
  ("request_kind", "permission"),
  [
    ("PUT", "s3:PutObject"),
    ("POST", "s3:DeleteObject"),
    ("LIST", "s3:ListBucket"),
    ("HEAD", "s3:GetObject"),
  ],
)
def test_a_permission_that_lacks_is_found_before_the_charge(
  ledger, s3_out, server, request_kind, permission
):
  server.fault = lambda kind: 403 if kind == request_kind else None

  with pytest.raises(InputError, match=f"lack the permission {permission}"):
    run(ledger, s3_out, refuse_to_train)

  assert not ledger.path.exists()
  assert not work_folder_of(s3_out, ledger.path).exists()


def test_credentials_that_expire_while_it_trains_cost_nothing_more(
  ledger, s3_out, server
):
  first = Recorder()

  def train(folder, charge_ids):
    first(folder, charge_ids)
    server.fault = lambda kind: (400, "ExpiredToken") if kind == "PUT" else None

  with pytest.raises(RunError, match=r"expired.*same command puts the rest"):
    run(ledger, s3_out, train)
  server.fault = lambda kind: None
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_a_bucket_that_refuses_half_way_gets_the_rest_of_the_same_bytes(
  ledger, s3_out, server
):
  first = Recorder()
  puts = []

  def fault(kind):
    if kind == "PUT":
      puts.append(kind)
    return 403 if len(puts) > 4 and kind == "PUT" else None

  server.fault = fault
  with pytest.raises(RunError, match="Not all was put"):
    run(ledger, s3_out, first)
  assert set(objects_of(server)) == set(PUT_IN_ORDER[:3])
  server.fault = lambda kind: None
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_interrupted_while_it_puts_says_that_the_same_command_goes_on(
  ledger, s3_out, server
):
  put = storage.write_if_absent
  first = Recorder()

  def stop_at_table(store, name, content):
    if name == "results.csv":
      raise KeyboardInterrupt
    return put(store, name, content)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(storage, "write_if_absent", stop_at_table)
    with pytest.raises(KeyboardInterrupt) as stopped:
      run(ledger, s3_out, first)
  assert "the same command puts the rest" in str(stopped.value)
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


def test_puts_whose_answers_are_lost_are_found_to_be_its_own(
  ledger, s3_out, server
):
  lost = []

  def fault(kind):
    if kind == "PUT" and len(lost) < 3:
      lost.append(kind)
      return "lose"
    return None

  server.fault = fault
  run(ledger, s3_out)

  check_whole(server, ledger, s3_out)


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


def test_a_place_that_was_emptied_is_used_after_a_kill_before_clearing_up(
  ledger, s3_out, server
):
  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, Path, "rename", 0, after=True)
    patch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed):
      run(ledger, s3_out)
  server.objects.clear()

  run(ledger, s3_out)

  assert set(objects_of(server)) == set(PUT_IN_ORDER)
  assert not work_folder_of(s3_out, ledger.path).exists()


def test_files_above_the_usual_limit_of_reading_are_put_by_the_next_run(
  ledger, s3_out, server, monkeypatch
):
  monkeypatch.setattr(files, "MOST_BYTES", 10)
  monkeypatch.setattr(storage.read, "__defaults__", (10,))
  first = Recorder()
  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, storage, "write_if_absent", 3, after=True)
    with pytest.raises(Killed):
      run(ledger, s3_out, first)
  puts = []

  def lose_an_answer(kind):
    if kind != "PUT":
      return None
    puts.append(kind)
    return "lose" if len(puts) == 5 else None

  server.fault = lose_an_answer
  run(ledger, s3_out, refuse_to_train)

  assert objects_of(server) == first.files


def test_an_object_that_the_store_lost_is_put_by_the_next_run(
  ledger, s3_out, server
):
  first = Recorder()
  ask = server.ask

  def lose_weights(method, path, headers, body):
    if method == "PUT" and path.endswith("heads/1/head.safetensors"):
      return 200, [("etag", "x")], b""
    return ask(method, path, headers, body)

  server.ask = lose_weights
  with pytest.raises(RunError, match="was put, and the store does not"):
    run(ledger, s3_out, first)
  server.ask = ask
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


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


def test_a_console_s_empty_folder_is_free(ledger, s3_out, server):
  server.objects["runs/1/"] = b""

  run(ledger, s3_out)

  assert server.objects.pop("runs/1/") == b""
  check_whole(server, ledger, s3_out)


def test_the_hidden_folder_is_on_the_disk_before_the_note(
  ledger, s3_out, server, monkeypatch
):
  work_folder = work_folder_of(s3_out, ledger.path)
  fsync = os.fsync
  synced = []
  synced_at_note = []
  deliver = Ledger.deliver

  def noting_sync(handle):
    synced.append(os.readlink(f"/proc/self/fd/{handle}"))
    fsync(handle)

  def note(*arguments):
    synced_at_note.extend(synced)
    deliver(*arguments)

  def train(folder, charge_ids):
    write(folder, charge_ids)
    synced.clear()  # what made and locked the folder

  monkeypatch.setattr(os, "fsync", noting_sync)
  monkeypatch.setattr(Ledger, "deliver", note)
  run(ledger, s3_out, train)

  assert str(work_folder) in synced_at_note
  assert str(work_folder.parent) in synced_at_note


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


@pytest.mark.parametrize("num_put", [1, len(PUT_IN_ORDER)])
def test_objects_whose_note_an_older_ledger_has_lost_are_not_drawn_again(
  ledger, s3_out, server, tmp_path, num_put
):
  first = Recorder()
  newest = tmp_path / "newest"
  older = tmp_path / "older"

  def train(folder, charge_ids):
    shutil.copy(ledger.path, older)
    first(folder, charge_ids)

  with pytest.MonkeyPatch.context() as patch:
    kill_at(patch, storage, "write_if_absent", num_put, after=True)
    with pytest.raises(Killed):
      run(ledger, s3_out, train)
  shutil.copy(ledger.path, newest)
  shutil.copy(older, ledger.path)
  with pytest.raises(InputError, match="put the newest ledger back"):
    run(ledger, s3_out, refuse_to_train)
  assert len(objects_of(server)) == num_put

  shutil.copy(newest, ledger.path)
  run(ledger, s3_out, refuse_to_train)

  check_whole(server, ledger, s3_out)
  assert objects_of(server) == first.files


@pytest.mark.stores
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_real_store_gets_the_rest_of_a_killed_run(
  ledger, tmp_path, monkeypatch, scheme
):
  out = places.Url(f"{scheme}://{object_server.BUCKET}/runs/1")
  first = Recorder()
  with (
    object_server.real_server(scheme, tmp_path) as ask,
    object_server.served(monkeypatch, tmp_path, ask),
  ):
    with pytest.MonkeyPatch.context() as patch:
      kill_at(patch, storage, "write_if_absent", 3, after=True)
      with pytest.raises(Killed):
        run(ledger, out, first)
    run(ledger, out, refuse_to_train)

    for name, content in first.files.items():
      assert places.read(out / name) == content
    assert len(storage.list_files(storage.store_at(str(out)))) == 6
  assert len(ledger.entries("pets")) == 1
