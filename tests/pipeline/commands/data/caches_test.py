"""Commands that read or import a cache."""

import numpy as np
import pytest

from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  numbered_class_names,
)
from oneshot_dp.extract.cache.writer import begin
from oneshot_dp.pipeline.cli import main
from tests.extract.caches import make_identity
from tests.pipeline.command_line import (
  SWEEP,
  TRAIN,
  fails,
  one_line,
  succeeds,
)
from tests.pipeline.sample_caches import write_clusters


class TestCaches:
  """What may be wrong with the directory behind --cache."""

  @pytest.mark.parametrize(
    ("command", "kind"),
    [
      (f"{TRAIN} --cache {{bad}}", "missing"),
      (f"{TRAIN} --cache {{bad}}", "unfinished"),
      (f"{SWEEP} --cache {{bad}}", "empty"),
      (f"{SWEEP} --eval-cache {{bad}}", "unfinished"),
      ("evaluate {head} --cache {bad}", "empty"),
      ("inspect {bad}", "unfinished"),
      ("verify {bad}", "unfinished"),
      ("budget --cache {bad}", "missing"),
    ],
  )
  def test_no_cache(self, place, capsys, tmp_path, command, kind):
    said = {
      "missing": "no such directory",
      "empty": "not a feature cache (no cache_info.json)",
      "unfinished": "not a finished cache; re-run the extraction to resume",
    }
    bad = tmp_path / "bad"
    if kind == "empty":
      bad.mkdir()
    elif kind == "unfinished":
      begin(bad, make_identity())
    argv = place(command.replace("{bad}", str(bad)))
    assert said[kind] in fails(capsys, *argv)
    assert not (tmp_path / "out").exists()

  def test_a_corrupted_shard(self, place, capsys, spoilt):
    shard = sorted(spoilt.glob("*.array_record-*"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    line = fails(capsys, *place(SWEEP), "--cache", spoilt)
    assert line.startswith(f"{shard}: damaged")

  def test_a_shard_cut_short(self, place, capsys, spoilt):
    shard = sorted(spoilt.glob("*.array_record-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-1])
    line = fails(capsys, *place(TRAIN), "--cache", spoilt)
    assert f"{shard}: {shard.stat().st_size} bytes, not" in line

  def test_an_edited_description(self, place, capsys, spoilt):
    info = spoilt / "cache_info.json"
    info.write_text(info.read_text().replace('"pets"', '"toys"'))
    line = fails(capsys, *place(TRAIN), "--cache", spoilt)
    assert "the file was edited" in line

  def test_verify_names_every_fault(self, capsys, spoilt):
    for shard in sorted(spoilt.glob("*.array_record-*"))[:2]:
      shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert main(["verify", str(spoilt)]) == 2
    *faults, error = capsys.readouterr().err.splitlines()
    assert len(faults) >= 2
    assert f"{spoilt}: {len(faults)} fault(s) found." in one_line(error)

  def test_a_sound_cache_verifies(self, place, capsys):
    out, err = succeeds(capsys, *place("verify {train}"))
    assert out == "ok: 3 shards, 180 rows\n"
    assert err == ""

  @pytest.mark.parametrize(
    ("changes", "said"),
    [
      ({"backbone": BackboneIdentity(name="another")}, "the same backbone"),
      ({"class_names": numbered_class_names(7)}, "has 4 classes"),
      ({"class_names": ("a", "b", "c", "d")}, "name their classes differently"),
    ],
    ids=["backbone", "K", "names"],
  )
  @pytest.mark.parametrize(
    "command", ["evaluate {head} --cache {tmp}/cache", SWEEP]
  )
  def test_another_feature_space(
    self, place, capsys, tmp_path, changes, said, command
  ):
    write_clusters(tmp_path / "cache", split="test", **changes)
    argv = place(command)
    if command == SWEEP:
      argv += ["--eval-cache", str(tmp_path / "cache")]
    assert said in fails(capsys, *argv)


class TestImport:
  def test_it_describes_the_cache(self, capsys, tmp_path):
    file = tmp_path / "features.npz"
    np.savez(
      file,
      test_embedding=np.ones((5, 3), np.float32),
      test_label=np.zeros(5, int),
    )
    argv = ["import-features", file, "--split", "test", "--num-classes", 2]
    out, err = succeeds(capsys, *argv, "--out", tmp_path / "cache")
    assert "features, split test" in out
    assert "3 x float32" in out
    assert "warning: without --backbone-name" in err

  @pytest.mark.parametrize(
    ("flags", "said"), [("{images}", "--out"), ("--out {out}", "file")]
  )
  def test_bad_input(self, place, capsys, images, flags, said):
    assert said in fails(capsys, *place(f"import-features {flags}"))
