import json
import os
import secrets
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.ledger import delivery as deliver
from oneshot_dp.pipeline.ledger.delivery import Delivery
from oneshot_dp.pipeline.ledger.entries import spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from tests.pipeline.sample_heads import make_charge_request


@pytest.fixture
def out(tmp_path):
  (tmp_path / "here").mkdir()
  return tmp_path / "here" / "run"


def write(folder, ids):
  """Two heads of random bytes, one of them deep down, and a table."""
  for name in "heads/1", "heads/of/2":
    place = folder / name
    place.mkdir(parents=True)
    (place / "head.safetensors").write_bytes(secrets.token_bytes(16))
    receipt = json.dumps({"stated": {"charge": ids[0]}})
    (place / "receipt.json").write_text(receipt)
  (folder / "results.csv").write_text(secrets.token_hex())


def run(ledger, out, train=write, mu2=1.0, asked=None, **options):
  """Without `train` all is noted, and shown as it is."""
  requests = [make_charge_request(mu2)]
  with Delivery(
    out, ledger, requests, identity=asked or {}, **options
  ) as delivery:
    delivery.open()
    if not delivery.already_done:
      train(delivery.folder, delivery.charge_ids)
    delivery.commit()


def shown(folder):
  files = [path for path in folder.rglob("*") if path.is_file()]
  return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def check_whole(ledger, out, charges=1):
  """These charges, the noted heads, and nothing beside them."""
  assert len(ledger.entries("pets")) == charges
  assert set(out.parent.iterdir()) == {out}
  found = deliver.find_heads(out)
  assert len(found) == 2
  assert ledger.heads() == found


def test_what_is_made_is_noted_and_shown_at_once(ledger, out):
  seen = []

  def train(folder, ids):
    write(folder, ids)
    seen.append((out.exists(), stat.S_IMODE(folder.parent.stat().st_mode)))
    assert spent(ledger.entries()) == 1
    assert not ledger.heads()
    with pytest.raises(InputError, match="another run is writing"):
      run(ledger, out)  # a second copy

  run(ledger, out, train)
  assert seen == [(False, 0o700)]
  check_whole(ledger, out)
  (charge,) = ledger.entries()
  assert {left.charge for left in ledger.heads().values()} == {charge.id}


@pytest.mark.parametrize("error", [RunError("busy."), KeyboardInterrupt()])
@pytest.mark.parametrize("noted", [True, False])
def test_what_was_noted_is_kept_whatever_ends_the_note(
  ledger, out, monkeypatch, error, noted
):
  seen = {}
  note = Ledger.deliver

  def train(folder, ids):
    write(folder, ids)
    seen.update(shown(folder))

  def stop(*arguments):
    if noted:
      note(*arguments)
    raise error

  with monkeypatch.context() as patch:
    patch.setattr(Ledger, "deliver", stop)
    with pytest.raises(type(error)):
      run(ledger, out, train)
  assert not out.exists()
  train_again = None if noted else write
  run(ledger, out, train_again)
  check_whole(ledger, out)
  assert (shown(out) == seen) == noted


def test_a_hidden_folder_that_others_may_read_is_closed_before_the_draw(
  ledger, out
):
  """As after `cp -r` or `chmod -R` of what a killed run has left."""
  hidden = out.parent / ".run.unfinished"
  hidden.mkdir()
  hidden.chmod(0o755)
  modes = []

  def train(folder, ids):
    modes.append(stat.S_IMODE(hidden.stat().st_mode))
    write(folder, ids)

  run(ledger, out, train)

  assert modes == [0o700]


@pytest.mark.parametrize(
  ("mu2", "modes"), [(1.0, (0o755, 0o644)), (None, (0o700, 0o600))]
)
def test_others_may_read_what_is_private_and_nothing_else(
  ledger, out, mu2, modes, umask
):
  umask(0o022)
  run(ledger, out, mu2=mu2)
  for each in out, *out.rglob("*"):
    assert stat.S_IMODE(each.stat().st_mode) == modes[each.is_file()]


@pytest.fixture
def taken(out):
  """A folder that has a file, a folder, a link, and a link to itself."""
  folder = out.parent
  (folder / "file").touch()
  (folder / "folder").mkdir()
  (folder / "link").symlink_to("file")
  (folder / "loop").symlink_to("loop")
  return folder


def check_refused_before_the_charge(ledger, out, message, kinds=InputError):
  """Nothing is charged, and nothing is made or removed."""
  before = {*ledger.path.parent.parent.rglob("*")}
  with pytest.raises(kinds, match=message):
    run(ledger, out)
  assert not ledger.path.exists()
  assert {*ledger.path.parent.parent.rglob("*")} == before


@pytest.mark.parametrize("name", ["file", "folder", "link", "folder/.."])
def test_a_place_that_is_taken_is_refused_before_the_charge(
  ledger, taken, name
):
  check_refused_before_the_charge(
    ledger, taken / name, "already exists; choose another"
  )


TOO_LONG_NAME = "x".ljust(250, "x")


@pytest.mark.parametrize(
  "name", ["file/below", "/proc/run", TOO_LONG_NAME, "/", "loop/run"]
)
def test_a_place_that_cannot_be_made_is_refused_before_the_charge(
  ledger, taken, name
):
  check_refused_before_the_charge(
    ledger, taken / name, ".", (InputError, RunError)
  )


def test_a_url_as_a_place_on_a_disk_is_refused_before_the_charge(ledger):
  check_refused_before_the_charge(
    ledger, Path("gs://bucket/run"), "not a place on a disk"
  )


def test_a_hidden_folder_that_is_a_link_is_refused_before_the_charge(
  ledger, out
):
  (out.parent / ".theirs.unfinished").symlink_to(out.parent)

  check_refused_before_the_charge(
    ledger, out.parent / "theirs", "belongs to another user"
  )


def test_a_disk_without_room_is_refused_before_the_charge(ledger, out):
  with pytest.raises(RunError, match="cannot be written"):
    run(ledger, out, room=1 << 60)
  assert not ledger.path.exists()
  assert not [*out.parent.iterdir()]
  run(ledger, out / "deep" / "down", room=1 << 16)


def test_room_is_tried_for_what_the_ledger_grows_by_as_well(
  ledger, out, monkeypatch
):
  """They may share a disk, and the ledger takes its part before the draw."""
  room = 1 << 20
  keys = {"image": np.arange(200_000, dtype=np.uint64)}
  request = make_charge_request(1.0, 1.0, keys=keys)
  tried = []

  def allocate(handle, offset, length):
    tried.append(length)

  monkeypatch.setattr(os, "posix_fallocate", allocate)
  with Delivery(out, ledger, [request], identity={}, room=room) as delivery:
    delivery.open()
    write(delivery.folder, delivery.charge_ids)
    delivery.commit()

  # Of the pages that are changed SQLite keeps copies until it commits.
  assert tried[0] - room >= 2 * keys["image"].nbytes
  assert tried[0] - room >= ledger.path.stat().st_size


@pytest.mark.parametrize(
  "error", [InputError("bad."), RunError("bad."), KeyboardInterrupt()]
)
def test_a_failed_run_goes_on_at_no_cost(ledger, out, error):
  def train(folder, ids):
    write(folder, ids)
    raise error

  link = out.parent.with_name("link")  # a run is known by its place
  link.symlink_to(out.parent)
  with pytest.raises(type(error)) as stopped:
    run(ledger, link / "run", train)
  assert "resumes without a new charge" in str(stopped.value)
  assert not [*out.parent.iterdir()]
  assert not ledger.heads()
  with pytest.raises(InputError, match="another by its seed"):
    run(ledger, out, asked={"seed": 1})
  run(ledger, out)
  assert spent(ledger.entries()) == 1
  assert len(ledger.heads()) == 2


def test_without_a_common_lock_the_second_is_refused_before_it_shows(
  ledger, out
):
  """As on two machines: each has its folder, and one ledger has both."""

  def train(folder, ids):
    write(folder, ids)
    (out.parent / ".run.unfinished").rename(out.parent / "mine")
    run(ledger, out)
    first.update(shown(out))
    shutil.rmtree(out)  # (on its own machine)
    (out.parent / "mine").rename(out.parent / ".run.unfinished")

  first = {}
  with pytest.raises(InputError, match="another run of the same command was f"):
    run(ledger, out, train)
  assert not out.exists()
  assert len(ledger.heads()) == 2
  assert len(ledger.entries("pets")) == 1


class Killed(BaseException):
  """In place of SIGKILL: nothing of ours runs after it."""


STEPS = {
  "charged": (Ledger, "charge", True),
  "deliver": (Ledger, "deliver", False),
  "delivered": (Ledger, "deliver", True),
  "rename": (Path, "rename", False),
  "renamed": (Path, "rename", True),
}


def run_until(step, ledger, out, train=write):
  """The run ends just before, or just after, this step."""
  owner, name, after = STEPS[step]
  does = getattr(owner, name)

  def stop(*arguments):
    if after:
      does(*arguments)
    raise Killed

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(owner, name, stop)
    patch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(Killed):
      run(ledger, out, train)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_run_has_one_charge_and_one_set_of_heads(ledger, out, step):
  seen = {}

  def train(folder, ids):
    write(folder, ids)
    seen.update(shown(folder))

  run_until(step, ledger, out, train)
  noted = ledger.heads()
  assert bool(noted) == (step not in ("charged", "deliver"))
  if step == "renamed":
    with pytest.raises(InputError, match="already exists"):
      run(ledger, out)  # and it clears up
  else:
    assert not out.exists()
    if step == "rename":
      with pytest.raises(InputError, match="another by its seed"):
        run(ledger, out, asked={"seed": 1})
    run(ledger, out, None if noted else write)
  check_whole(ledger, out)
  if noted:
    assert shown(out) == seen
    assert ledger.heads() == noted


@pytest.mark.parametrize("damage", ["edited", "gone"])
def test_noted_heads_that_are_damaged_are_not_shown(ledger, out, damage):
  """They are paid for anew: nobody can show what was noted."""
  run_until("rename", ledger, out)
  (weights, _) = sorted(out.parent.rglob("head.safetensors"))
  weights.write_bytes(b"others")
  if damage == "gone":
    weights.unlink()
  run(ledger, out)
  assert len(ledger.entries("pets")) == 2
  assert deliver.find_heads(out).items() <= ledger.heads().items()
  assert set(out.parent.iterdir()) == {out}


def test_heads_of_a_folder_that_the_ledger_does_not_know_are_not_shown(
  ledger, out
):
  """Somebody put them there, or a killed run's never were delivered."""
  whole = out.parent / ".run.unfinished" / "whole"
  whole.mkdir(parents=True)
  write(whole, ["0".zfill(32)])
  before = shown(whole)
  run(ledger, out)
  check_whole(ledger, out)
  assert not before.items() & shown(out).items()


def test_a_name_is_taken_while_it_trains(ledger, out):
  def train(folder, ids):
    write(folder, ids)
    seen.update(shown(folder))
    out.mkdir()
    (out / "mine").touch()

  seen = {}
  with pytest.raises(RunError, match="cannot be written"):
    run(ledger, out, train)
  shutil.rmtree(out)
  run(ledger, out, None)
  check_whole(ledger, out)
  assert shown(out) == seen
