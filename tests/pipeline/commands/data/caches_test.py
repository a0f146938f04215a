"""Commands that read or import a cache."""

import json

import numpy as np
import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.data.folder_report import look_at
from tests.extract.image_jobs import CLASSES, pixels, write_folder
from tests.extract.tables import KINDS, png, write_table
from tests.pipeline.command_line import one_line, succeeds


class TestCaches:
  def test_verify_names_every_fault(self, capsys, spoilt):
    for shard in sorted(spoilt.glob("*.array_record-*"))[:2]:
      shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert main(["verify", str(spoilt)]) == 2
    *faults, error = capsys.readouterr().err.splitlines()
    assert len(faults) >= 2
    assert f"{spoilt}: {len(faults)} fault(s) found." in one_line(error)
    assert main(["verify", str(spoilt), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"]
    assert found["faults"] == faults

  def test_a_sound_cache_verifies(self, place, capsys):
    out, err = succeeds(capsys, *place("verify {train}"))
    assert out == "ok: 3 shards, 180 rows\n"
    assert err == ""


class TestFolder:
  def test_a_look_finds_what_is_wrong_and_changes_nothing(
    self, capsys, tmp_path
  ):
    root = tmp_path / "photos"
    files = write_folder(root / "train", 6, bad=[1, 2])
    (root / "test" / "cat").mkdir(parents=True)
    (root / "test" / "cat" / "x.PNG").write_bytes(files[4].read_bytes())
    (root / "test" / "owl").mkdir()
    (root / "stray.png").symlink_to("nowhere")
    (root / "train" / "notes.txt").touch()

    def seen() -> list:  # (reading changes the time of access)
      there = ((path, path.lstat()) for path in root.rglob("*"))
      return sorted((p, s.st_ino, s.st_size, s.st_mtime_ns) for p, s in there)

    before = seen()
    out, err = succeeds(capsys, "inspect", root)
    for said in (
      *("PRIVATE", "test/owl        0  no image", "train/cat       2"),
      *("all images: 8", "8 x 8 at least", "broken: 3\n  stray.png: No such"),
      *("train/cat/00001.png: ", "train/dog/00002.png: "),
      *("in no class folder, an error: 1\n  stray.png", "  train/notes.txt"),
      "the same bytes: 1\n  test/cat/x.PNG = train/owl/00004.png",
    ):
      assert said in out
    assert err == ""
    assert seen() == before
    out, _ = succeeds(capsys, "inspect", root, "--json")
    classes = {"test": ["cat", "owl"], "train": ["cat", "dog", "owl"]}
    assert json.loads(out)["classes"] == classes
    assert "png" not in out


def test_what_is_broken_is_no_copy():
  _, (broken, *_), twice = look_at(["a.png", "b.png"], lambda row: b"")
  assert (broken, twice) == ("broken: 2", ["the same bytes: 0"])


class TestTable:
  @pytest.mark.parametrize("kind", KINDS)
  def test_a_look_at_every_row(self, capsys, tmp_path, kind):
    images = [png(image) for image in pixels(6)]
    images[3:5] = images[2], b"no"
    label = [0, 1, 1, 0, 2, 7]
    for i, rows in enumerate((slice(4), slice(4, 6))):
      path = tmp_path / f"train-{i}-of-2.{kind}"
      write_table(path, images[rows], CLASSES, label=label[rows])
    write_table(tmp_path / f"test.{kind}", images[:1], CLASSES, label=["dog"])
    out, err = succeeds(capsys, "inspect", tmp_path)
    named = kind != "tar"
    for said in (
      *("PRIVATE", "split test\n", "split train\n", "all images: 6"),
      *("cat         2" if named else "0           2", "8 x 8 at least"),
      *("7           1  of no class" if named else "7           1\n",),
      *("dog         1\n", f"broken: 1\n  train-1-of-2.{kind}[0]: "),
      f"train-0-of-2.{kind}[2] = train-0-of-2.{kind}[3]",
    ):
      assert said in out
    assert err == ""
    out, _ = succeeds(capsys, "inspect", tmp_path / f"test.{kind}", "--json")
    classes = list(CLASSES) if named else []
    assert json.loads(out)["classes"] == {"test": classes}
    assert f"test.{kind}[" not in out


def test_an_import_describes_the_cache(capsys, tmp_path):
  arrays = {"test_embedding": np.ones((5, 3), "f"), "test_label": [0] * 5}
  np.savez(tmp_path / "features.npz", **arrays)
  argv = ["import", tmp_path / "features.npz", "--split", "test"]
  argv += ["--num-classes", 2, "--out", tmp_path / "cache"]
  out, err = succeeds(capsys, *argv)
  assert "features, split test" in out
  assert "3 x float32" in out
  assert "warning: without --backbone-name" in err
