"""A killed run into a bucket is finished by the same command, at no cost."""

import os
import shutil
from pathlib import Path

import pytest

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import files, places, storage
from oneshot_dp.pipeline.ledger.bucket_output import work_folder_of
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.extract import object_server
from tests.pipeline.buckets.served_runs import (
  PROBE,
  PUT_IN_ORDER,
  Killed,
  Recorder,
  check_whole,
  kill_at,
  objects_of,
  refuse_to_train,
  run,
  write,
)

# Whole runs, each of a tenth of a second or more.
pytestmark = pytest.mark.slow

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
