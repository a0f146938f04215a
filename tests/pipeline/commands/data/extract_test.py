"""`extract` as a command."""

import json

import numpy as np
import pytest

from tests.extract.image_jobs import damage, write_folder
from tests.pipeline.command_line import EXTRACT, EXTRACT_PHOTOS, fails, succeeds
from tests.pipeline.small_disk import files_no_larger_than


class TestExtract:
  def test_an_experiment_of_ones_own(self, place, capsys, images, tmp_path):
    out, err = succeeds(capsys, *place(EXTRACT))
    assert "70 of 70 (0 skipped)" in out
    assert "70 images in" in out
    assert err == f"runs {tmp_path}/config.py, which is Python code\n"
    out, _ = succeeds(capsys, *place(EXTRACT))
    assert "complete already, nothing was extracted" in out
    out, _ = succeeds(capsys, "verify", tmp_path / "out")
    assert out == "ok: 3 shards, 70 rows\n"

  def test_flags_change_the_experiment(self, place, capsys, images, tmp_path):
    flags = "--embedding-dtype bfloat16 --shard-rows 64 --batch-size 16"
    flags += " --preprocess.image-size 12 --preprocess.resample bilinear"
    succeeds(capsys, *place(f"{EXTRACT} {flags}"))
    info = json.loads((tmp_path / "out" / "cache_info.json").read_text())
    assert info["embedding_dtype"] == "bfloat16"
    assert info["shard_rows"] == 64
    assert info["preprocess"]["image_size"] == 12
    assert info["preprocess"]["resample"] == "bilinear"

  @pytest.mark.parametrize(
    ("flags", "said"),
    [
      ("--weights {tmp}/none.npz", "none.npz does not exist"),
      ("--weights {tmp}/b32.npz", "not a file of weights for vit_ti8"),
      ("--weights {tmp}/half.npz", "half.npz is neither an npz nor a whole"),
      ("--split tset --source.path {tmp}/splits.npz", "has no split 'tset'"),
      ("--out {tmp}", "is not empty and is not this job's"),
      (
        "--backbone.weights {images}",
        "random_patches has nothing to choose: leave out weights=",
      ),
    ],
  )
  def test_bad_input(self, place, capsys, images, tmp_path, flags, said):
    arrays = dict(np.load(images))
    np.savez(
      tmp_path / "splits.npz",
      class_names=arrays["class_names"],
      test_image=arrays["image"],
      test_label=arrays["label"],
    )
    kernel = {"embedding/kernel": np.zeros((32, 32, 3, 768), np.float32)}
    np.savez(tmp_path / "b32.npz", **kernel)
    (tmp_path / "half.npz").write_bytes(images.read_bytes()[:-500])
    if flags.startswith("--weights"):
      flags = f"--backbone.name vit_ti8 --backbone.{flags[2:]}"
    assert said in fails(capsys, *place(f"{EXTRACT} {flags}"))
    assert not (tmp_path / "out" / "cache_info.json").exists()

  @pytest.mark.parametrize(
    ("source", "said"),
    [
      ("cifar10_vit_ti16 --source.name cifra10", "Did you mean cifar10"),
      ("folder_vit_b16 --source.root {tmp}/none", "none' is not a folder"),
    ],
  )
  def test_bad_experiments(self, place, capsys, source, said):
    line = f"extract {source} --out {{out}}"
    if "cifar10" in source:
      line += " --source.data-dir {tmp}"
    assert said in fails(capsys, *place(line))

  def test_an_undecodable_image(self, place, capsys, tmp_path):
    """(Among threads it fails in a process of its own, in cli_test.)"""
    files = write_folder(tmp_path / "photos", 70, bad=[40])
    argv = place(EXTRACT_PHOTOS)
    line = fails(capsys, *argv)
    assert line.startswith(f"{files[40]} (example_id=40) cannot be decoded: ")
    threads = ["--direct_running_mode=multi_threading"]
    threads += ["--direct_num_workers", "2"]
    argv += ["--on-decode-error", "skip", *threads]
    out, err = succeeds(capsys, *argv, "--out", tmp_path / "other")
    assert "69 of 70 (1 skipped)" in out
    assert "1 undecodable (skipped.json names them)" in out
    assert err == ""
    named = tmp_path / "other" / "skipped.json"
    assert json.loads(named.read_text()) == {"40": str(files[40])}
    assert named.stat().st_mode & 0o777 == 0o600
    named.unlink()  # as by a kill just before
    _, err = succeeds(capsys, *(w for w in argv if w != "--quiet"))
    assert err.endswith("code\nclasses of photos: 'cat', 'dog', 'owl'\n")
    _, err = succeeds(capsys, *argv, "--out", tmp_path / "other")
    assert named.exists()

  def test_a_full_disk_can_be_resumed_from(
    self, place, capsys, images, tmp_path
  ):
    with files_no_larger_than(10_000):
      line = fails(capsys, *place(EXTRACT), status=1)
    assert "cannot be written: " in line
    assert not (tmp_path / "out" / "cache_info.json").exists()
    assert not list((tmp_path / "out").glob("*.array_record-*"))
    out, _ = succeeds(capsys, *place(EXTRACT))
    assert "70 images in" in out

  def test_damage_between_two_tries(self, place, capsys, tmp_path):
    """The message of the first try leads to the second, which succeeds."""
    files = write_folder(tmp_path / "photos", 70)
    whole = damage(files[69])
    argv = place(EXTRACT_PHOTOS)
    assert str(files[69]) in fails(capsys, *argv)
    files[69].write_bytes(whole)
    out, _ = succeeds(capsys, *argv)
    assert "2 shards kept from an earlier run" in out
