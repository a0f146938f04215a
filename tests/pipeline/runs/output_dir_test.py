import errno
import json
import os
import pathlib
import shutil
import stat

import pytest

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.output_dir import (
  check_absent,
  left_of,
  reserved,
  whole_directory,
)
from oneshot_dp.pipeline.runs.reserved import Reserved
from tests.faults.places_test import modes_hold
from tests.pipeline.small_disk import files_no_larger_than
from tests.syncs import noted_syncs


def test_it_appears_whole(tmp_path):
  out = tmp_path / "new" / "results"
  with whole_directory(out) as directory:
    (directory / "a.txt").write_text("a")
    assert not out.exists()
  assert [p.name for p in out.iterdir()] == ["a.txt"]
  assert [p.name for p in out.parent.iterdir()] == ["results"]


def test_its_mode_is_what_the_umask_says_or_was_set(tmp_path):
  before = os.umask(0o002)
  try:
    with whole_directory(tmp_path / "out") as directory:
      # Until it is whole, nobody else can look.
      assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    with whole_directory(tmp_path / "set") as directory:
      directory.chmod(0o700)
  finally:
    os.umask(before)
  assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o775
  assert stat.S_IMODE((tmp_path / "set").stat().st_mode) == 0o700


def test_an_empty_directory_may_be_there(tmp_path):
  check_absent(tmp_path)
  with whole_directory(tmp_path / "out"):
    (tmp_path / "out").mkdir()
  assert (tmp_path / "out").is_dir()


def write(out: pathlib.Path, size: int, error: type | None = None) -> None:
  with whole_directory(out) as directory:
    (directory / "mine.txt").write_text("a" * size)
    if error:
      raise error
    out.mkdir()
    (out / "theirs.txt").write_text("theirs")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_nothing_is_left_when_the_block_fails(tmp_path, error):
  with pytest.raises(error):
    write(tmp_path / "out", 100, error)
  full = r"out cannot be written: File too large; m"
  with files_no_larger_than(1000), pytest.raises(RunError, match=full):
    write(tmp_path / "out", 2000)
  assert not list(tmp_path.iterdir())


def test_results_that_came_meanwhile_are_not_overwritten(tmp_path):
  with pytest.raises(RunError, match="out cannot be written"):
    write(tmp_path / "out", 100)
  assert [p.name for p in tmp_path.iterdir()] == ["out"]
  assert [p.name for p in (tmp_path / "out").iterdir()] == ["theirs.txt"]


def test_what_is_there_is_refused(tmp_path):
  (tmp_path / "file").write_text("mine")
  (tmp_path / "out" / "inner").mkdir(parents=True)
  for name in ("file", "out"):
    with pytest.raises(InputError, match=f"{name} already holds something; n"):
      check_absent(tmp_path / name)
  with pytest.raises(RunError, match=r"cannot be made: .*file is not writable"):
    check_absent(tmp_path / "file" / "deep" / "out")


def test_no_folder_is_made_of_a_url():
  said = "^s3://bucket/out is no place on a disk"
  with pytest.raises(InputError, match=said):
    check_absent(pathlib.Path("s3://bucket/out"))
  with pytest.raises(InputError, match=said):
    Ledger("pets", pathlib.Path("s3://bucket/out"))


class TestWhatIsPaidForIsDelivered:
  """Whatever --out is: nothing is charged, or a head is there afterwards."""

  @pytest.fixture
  def place(self, tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").touch()
    for name, to in (
      ("link", "empty"),
      ("dangling", "nowhere"),
      ("loop", "loop"),
      ("to-taken", "taken"),
    ):
      (tmp_path / name).symlink_to(to)
    return tmp_path

  @pytest.mark.parametrize(
    ("out", "delivered_at"),
    [
      ("link", "empty"),
      ("dangling", "nowhere"),
      ("new/../out", "out"),
      ("x" * 250, "x" * 250),
      ("loop", None),
      ("newdir/..", None),
      ("to-taken", None),
      ("/proc/out", None),
      ("x" * 256, None),
      ("empty/" + "x/" * 2100, None),
    ],
  )
  def test_odd_places(self, place, out, delivered_at, train_cache, capsys):
    line = f"train --cache {train_cache.path} --epsilon 1 --delta 1e-5"
    words = f"{line} --head lamb --ledger-dir ledgers --out".split()
    status = main([*words, out])
    charged = Ledger(train_cache.info.dataset, place / "ledgers").entries()
    if delivered_at is None:
      assert status in (1, 2)
      assert not charged
      assert len(capsys.readouterr().err.strip().splitlines()[-1]) < 9000
    else:
      assert (status, len(charged)) == (0, 1)
      assert (place / delivered_at / "receipt.json").exists()
    assert not list(place.rglob("*.unfinished"))

  def test_room_is_taken_before_the_charge(self, place, train_cache, capsys):
    line = f"train --cache {train_cache.path} --epsilon 1 --delta 1e-5"
    with files_no_larger_than(100_000):
      status = main(
        [*f"{line} --head lamb --ledger-dir ledgers --out out".split()]
      )
    assert status == 1
    assert "out cannot be written: File too large" in capsys.readouterr().err
    assert not Ledger(train_cache.info.dataset, place / "ledgers").entries()

  def test_it_is_on_the_disk_before_it_is_shown(self, place, monkeypatch):
    """After new folders above it."""
    synced = noted_syncs(monkeypatch)
    with whole_directory(place / "a" / "b" / "out") as directory:
      assert sorted(synced) == sorted(["a", place.name])
      synced.clear()
      (directory / "inner").mkdir()
      (directory / "inner" / "a.txt").write_text("a")
    assert synced == ["a.txt", "inner", "whole", "b"]

  @pytest.mark.parametrize("taken", [False, True])
  def test_heads_that_an_earlier_version_kept(self, place, taken):
    """They are paid for: said, and never removed."""
    head = place / ".out.unfinished" / "released" / "head" / "head.safetensors"
    head.parent.mkdir(parents=True)
    head.write_text("weights")
    if taken:
      (place / "taken").rename(place / "out")
    with pytest.raises(InputError, match=r"released has heads .* move it away"):
      reserved(place / "out").__enter__()
    assert head.read_text() == "weights"

  def test_what_a_run_left_is_told_who_may_look(self, place):
    (place / ".nowhere.unfinished" / "steps").mkdir(parents=True)
    (place / ".nowhere.unfinished" / "steps" / "training.json").touch()
    assert left_of(place / "dangling").startswith("nothing is released yet")
    (place / ".nowhere.unfinished").chmod(0)
    with modes_hold():
      for name in ("dangling", "loop", "to-taken", "empty", "x" * 256):
        assert left_of(place / name) == ""

  def test_what_a_run_left_that_had_delivered_is_removed(self, place, capsys):
    """Killed at the end, or before: what is paid for stays till it is there."""
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(Reserved, "remove", lambda _: None)
      with whole_directory(place / "out") as directory:
        (directory / "head").write_text("weights")
    steps = place / ".out.unfinished" / "steps"
    for theirs in (True, False):
      if theirs:
        (place / "out").rename(place / "delivered")
        shutil.copytree(place / "delivered", place / "out")
      steps.mkdir(exist_ok=True)
      (steps / "training.json").touch()
      instead = "move it away" if theirs else "name another place"
      with pytest.raises(InputError, match=f"holds something; {instead}"):
        check_absent(place / "out")
      assert steps.exists() == theirs
      if theirs:
        shutil.rmtree(place / "out")
        (place / "delivered").rename(place / "out")
    assert not steps.parent.exists()

  def test_what_cannot_be_removed_is_named(self, place, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    with reserved(place / "out"):
      pass
    assert ".out.unfinished could not be removed" in capsys.readouterr().err

  def test_two_runs_into_one_place(self, place):
    again = reserved(place / "out")
    with (
      reserved(place / "out"),
      pytest.raises(InputError, match="another run is writing"),
    ):
      again.__enter__()

  def test_what_a_killed_run_left_is_cleaned(self, place):
    left = place / ".out.unfinished"
    (left / "whole").mkdir(parents=True)
    (left / "whole" / "secret").touch()
    with reserved(place / "out"):
      assert not (left / "whole").exists()
    assert not left.exists()

  @pytest.mark.parametrize("command", ["train", "sweep", "compare"])
  def test_a_run_that_could_not_deliver_goes_on(
    self, place, command, train_cache, eval_cache, capsys, monkeypatch
  ):
    """The disk fails at the last step; nothing is charged a second time."""
    rows = f"--cache {train_cache.path}"
    run = f"{rows} --eval-cache {eval_cache.path} --epsilons 1 2 --delta 1e-5"
    line = {
      "train": f"train {rows} --epsilon 1 --delta 1e-5 --head lamb",
      "sweep": f"sweep {run} --private-eval 1",
      "compare": f"compare {run} --heads lamb least-squares",
    }[command] + " --ledger-dir ledgers --out out"
    rename = os.rename

    def fails(old, new):
      if pathlib.Path(old).name == "whole":
        raise OSError(errno.EIO, "Input/output error")
      rename(old, new)

    with monkeypatch.context() as patch:
      patch.setattr(os, "rename", fails)
      assert main(line.split()) == 1
    said = capsys.readouterr().err
    assert "kept, and the same command goes on without a new charge" in said
    assert not (place / "out").exists()
    ledger = Ledger(train_cache.info.dataset, place / "ledgers")
    charged = ledger.entries()
    assert len(charged) == (1 if command == "train" else 2)
    assert main(line.split()) == 0
    heads = [p.parent for p in (place / "out").rglob("receipt.json")]
    assert len(heads) == {"train": 1, "sweep": 2, "compare": 4}[command]
    for head in heads:
      assert main(["verify", str(head), "--ledger-dir", "ledgers"]) == 0
    assert "these very bytes" in capsys.readouterr().out
    assert ledger.entries() == charged
    if command == "sweep":
      found = json.loads((place / "out" / "results.json").read_text())
      assert found["evaluation"]["ledger_entry"] == charged[1]["entry"]
    assert not list(place.glob(".*"))
