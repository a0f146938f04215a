import json
import pathlib
import shutil

import numpy as np
import pytest

from extract.cache_identity import BackboneIdentity, numbered_class_names
from extract.cache_writer import begin
from linear_dp import accounting
from pipeline import commands
from pipeline.cli import main, parse
from pipeline.training import cache_ledger
from tests.extract.caches import make_identity
from tests.extract.image_jobs import damage, write_folder, write_npz
from tests.pipeline.command_line import fails, one_line, start, succeeds
from tests.pipeline.sample_caches import write_clusters
from tests.pipeline.small_disk import files_no_larger_than

TRAIN = "train --cache {train} --epsilon 1 --delta 1e-5 --out {out}"
SWEEP = (
  "sweep --cache {train} --eval-cache {eval} --epsilons 1 2 --delta 1e-5"
  " --out {out}"
)
EXTRACT = (
  "extract {config} --source.path {images} --split train --out {out}"
  " --decode-threads 1"
)
CONFIG = """
from configs.schema import *
def get_config():
  return ExtractConfig(
    source=ArraysSource(path="images.npz"),
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
    batch_size=8,
    shard_rows=32,
  )
"""


@pytest.fixture
def place(train_cache, eval_cache, finished_sweep, tmp_path):
  """Puts the paths of this test into a command line."""
  (tmp_path / "config.py").write_text(CONFIG)
  paths = {
    "train": train_cache.path,
    "eval": eval_cache.path,
    "head": finished_sweep.path / "heads/epsilon-2-seed-0",
    "out": tmp_path / "out",
    "config": tmp_path / "config.py",
    "images": tmp_path / "images.npz",
    "tmp": tmp_path,
  }

  def fill(command: str) -> list[str]:
    return command.format(**paths).split()

  return fill


@pytest.fixture
def images(tmp_path) -> pathlib.Path:
  return write_npz(tmp_path / "images.npz", 70)


@pytest.fixture
def spoilt(tmp_path) -> pathlib.Path:
  """A cache of one's own, to damage."""
  return write_clusters(tmp_path / "cache").path


class TestTrainAndSweep:
  @pytest.mark.parametrize(
    ("flags", "said"),
    [
      ("--epsilon 0", "epsilon=0.0 must be positive"),
      ("--epsilon -1", "epsilon=-1.0 must be positive"),
      ("--epsilon nan", "epsilon=nan must be positive and finite"),
      ("--epsilon inf", "epsilon=inf must be positive and finite"),
      ("--epsilon much", "could not convert string to float: 'much'"),
      ("--delta 0", "delta=0.0 must lie strictly between 0 and 1"),
      ("--delta 1", "delta=1.0 must lie"),
      ("--delta -1", "delta=-1.0 must lie"),
      ("--delta 2", "delta=2.0 must lie"),
      ("--delta nan", "delta=nan must lie"),
      ("--delta tiny", "could not convert string to float: 'tiny'"),
      ("--l2-clip-norm 0", "l2_clip_norm=0.0 must be positive"),
      ("--l2-clip-norm -1", "l2_clip_norm=-1.0 must be positive"),
      ("--l2-clip-norm nan", "l2_clip_norm=nan must be positive"),
      ("--l2-clip-norm inf", "l2_clip_norm=inf must be positive"),
      ("--initial-bias nan", "initial_bias=nan must be finite"),
      ("--learning-rate 0", "learning_rate=0.0 must be positive"),
      ("--eps -1", "eps=-1.0 must be finite and not negative"),
      ("--eps-in-noise-sds nan", "eps_in_noise_sds=nan must be finite"),
      ("--head sgd", "sgd"),
      ("--neighboring-relation any", "any"),
      ("--noise-seed -1", "noise seed -1 must not be negative"),
      ("--noise-seed x", "x"),
      ("--train-bais", "--train-bais"),
      ("--num-seeds 2", "--num-seeds"),
    ],
  )
  def test_bad_numbers(self, place, capsys, train_cache, tmp_path, flags, said):
    """The last of two equal flags counts."""
    assert said in fails(capsys, *place(f"{TRAIN} {flags}"))
    assert cache_ledger(train_cache, None).entries() == []
    assert not (tmp_path / "out").exists()

  @pytest.mark.parametrize(
    ("flags", "said"),
    [
      ("--num-seeds 0", "num_seeds=0 must be at least 1"),
      ("--num-seeds -2", "num_seeds=-2 must be"),
      ("--num-seeds 1.5", "1.5"),
      ("--epsilons 1 1.0", "epsilons=[1.0, 1.0] has an epsilon twice"),
      ("--epsilons 1 0", "epsilon=0.0 must be positive"),
      ("--epsilons 1 inf", "use the flag of its own (--baseline)"),
      ("--epsilons", "epsilons"),
      ("--release both", "both"),
      ("--delta 0", "delta=0.0 must lie"),
      ("--baselines", "--baselines"),
    ],
  )
  def test_bad_sweeps(self, place, capsys, train_cache, tmp_path, flags, said):
    assert said in fails(capsys, *place(f"{SWEEP} {flags}"))
    assert cache_ledger(train_cache, None).entries() == []
    assert not (tmp_path / "out").exists()

  @pytest.mark.parametrize("delta", [1 / 180, 0.1, 0.999])
  def test_a_delta_above_one_in_n_is_warned_of_but_runs(
    self, place, capsys, delta
  ):
    _, err = succeeds(capsys, *place(TRAIN), "--delta", delta)
    (warning, charged) = err.splitlines()
    assert warning.startswith(f"warning: delta={delta:g} is not below 1/n")
    assert charged.startswith("charged to ")

  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  @pytest.mark.parametrize("kind", ["file", "directory"])
  def test_earlier_results_are_not_overwritten(
    self, place, capsys, tmp_path, train_cache, command, kind
  ):
    kept = tmp_path / "out" / "kept.txt"
    if kind == "file":
      kept = tmp_path / "out"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("mine")
    assert "already holds something" in fails(capsys, *place(command))
    assert kept.read_text() == "mine"
    assert cache_ledger(train_cache, None).entries() == []

  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  def test_a_place_that_cannot_be_written(
    self, place, capsys, tmp_path, train_cache, command
  ):
    (tmp_path / "file").write_text("mine")
    argv = [*place(command), "--out", tmp_path / "file" / "out"]
    assert "file is not writable" in fails(capsys, *argv, status=1)
    assert cache_ledger(train_cache, None).entries() == []

  def test_a_ledger_that_cannot_be_written(self, place, capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    argv = [*place(TRAIN), "--ledger-dir", tmp_path / "file"]
    assert "so nothing is released" in fails(capsys, *argv, status=1)
    assert not (tmp_path / "out").exists()

  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  def test_a_full_disk(self, place, capsys, tmp_path, command):
    with files_no_larger_than(1500):
      assert main(place(command)) == 1
    charged, error = capsys.readouterr().err.splitlines()
    assert charged.startswith("charged to ")
    assert "out cannot be written: File too large." in one_line(error)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
      "config.py",
      "ledgers",
    ]

  def test_training_prints_the_guarantee(self, place, capsys):
    out, _ = succeeds(capsys, *place(TRAIN))
    assert "epsilon = 1 at delta = 1e-05 (ADD_OR_REMOVE_ONE)" in out
    assert "noise multiplier 3.7306, noise from os.urandom" in out

  def test_a_sweep_prints_the_table(self, place, capsys):
    out, _ = succeeds(capsys, *place(SWEEP))
    assert "all private heads together: epsilon = 2 at delta" in out
    assert "2 heads in" in out

  def test_flags_reach_the_head(self, place, capsys, tmp_path):
    flags = "--head adam --train-bias --l2-clip-norm 2 --initial-bias -3"
    relation = "--neighboring-relation replace-one"
    succeeds(capsys, *place(f"{TRAIN} {flags} {relation}"))
    receipt = json.loads((tmp_path / "out" / "receipt.json").read_text())
    assert receipt["training"]["head"] == "adam"
    assert receipt["mechanism"]["train_bias"] is True
    assert receipt["mechanism"]["l2_clip_norm"] == 2
    assert receipt["mechanism"]["initial_bias"] == -3
    assert receipt["privacy"]["neighboring_relation"] == "REPLACE_ONE"


class TestCaches:
  """What may be wrong with the directory behind --cache."""

  @pytest.mark.parametrize(
    "command",
    [
      "train --cache {bad} --epsilon 1 --delta 1e-5 --out {out}",
      "sweep --cache {bad} --eval-cache {eval} --epsilons 1 --delta 1e-5"
      " --out {out}",
      "sweep --cache {train} --eval-cache {bad} --epsilons 1 --delta 1e-5"
      " --out {out}",
      "evaluate --head {head} --cache {bad}",
      "inspect {bad}",
      "verify {bad}",
      "budget --cache {bad}",
    ],
  )
  @pytest.mark.parametrize(
    ("kind", "said"),
    [
      ("missing", "no such directory"),
      ("empty", "not a feature cache (no cache_info.json)"),
      ("unfinished", "not a finished cache; re-run the extraction to resume"),
    ],
  )
  def test_no_cache(self, place, capsys, tmp_path, command, kind, said):
    bad = tmp_path / "bad"
    if kind == "empty":
      bad.mkdir()
    elif kind == "unfinished":
      begin(bad, make_identity())
    argv = place(command.replace("{bad}", str(bad)))
    assert said in fails(capsys, *argv)
    assert not (tmp_path / "out").exists()

  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  def test_a_corrupted_shard(self, place, capsys, spoilt, command):
    shard = sorted(spoilt.glob("*.array_record-*"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    line = fails(capsys, *place(command), "--cache", spoilt)
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
    "command", ["evaluate --head {head} --cache {tmp}/cache", SWEEP]
  )
  def test_another_feature_space(
    self, place, capsys, tmp_path, changes, said, command
  ):
    write_clusters(tmp_path / "cache", split="test", **changes)
    argv = place(command)
    if command == SWEEP:
      argv += ["--eval-cache", str(tmp_path / "cache")]
    assert said in fails(capsys, *argv)


class TestHeads:
  @pytest.fixture
  def head(self, finished_sweep, tmp_path) -> pathlib.Path:
    folder = tmp_path / "head"
    shutil.copytree(finished_sweep.path / "heads/epsilon-2-seed-0", folder)
    return folder

  def evaluate(self, head, eval_cache) -> list:
    return ["evaluate", "--head", head, "--cache", eval_cache.path]

  def test_evaluate_prints_json_and_what_it_assumes(
    self, head, eval_cache, capsys, finished_sweep
  ):
    out, err = succeeds(capsys, *self.evaluate(head, eval_cache))
    (row,) = (
      r for r in finished_sweep.rows if r.path.endswith("epsilon-2-seed-0")
    )
    assert json.loads(out) == {
      "top1": row.top1,
      "top5": row.top5,
      "num_examples": 80,
    }
    assert "labels of this cache are treated as public" in err

  @pytest.mark.parametrize(
    ("name", "content", "said"),
    [
      ("receipt.json", None, "it has no receipt.json"),
      ("head.safetensors", None, "it has no head.safetensors"),
      ("head.safetensors", b"\x00" * 99, "head.safetensors is damaged"),
      ("head.safetensors", b"", "head.safetensors is damaged"),
      ("receipt.json", b"{", "receipt.json is damaged"),
      ("receipt.json", b"\xff\xfe", "receipt.json is damaged"),
      ("receipt.json", b"{}", "its receipt does not say"),
    ],
  )
  def test_damaged(self, head, eval_cache, capsys, name, content, said):
    if content is None:
      (head / name).unlink()
    else:
      (head / name).write_bytes(content)
    assert said in fails(capsys, *self.evaluate(head, eval_cache))

  def test_no_head_at_all(self, tmp_path, eval_cache, capsys):
    line = fails(capsys, *self.evaluate(tmp_path / "none", eval_cache))
    assert "none is not a head" in line

  @pytest.mark.parametrize(
    ("name", "said"),
    [("epsilon-2-seed-0", ""), ("baseline-NOT-PRIVATE", "NOT PRIVATE")],
  )
  def test_a_sound_head_verifies(self, finished_sweep, capsys, name, said):
    path = finished_sweep.path / "heads" / name
    out, _ = succeeds(capsys, "verify", path)
    assert out.startswith("ok: the receipt follows from the noise")
    assert ("NOT PRIVATE" in out) is bool(said)

  def test_an_edited_receipt_does_not(self, head, capsys):
    file = head / "receipt.json"
    receipt = json.loads(file.read_text())
    receipt["privacy"]["epsilon"] = 0.1
    file.write_text(json.dumps(receipt))
    assert main(["verify", str(head)]) == 2
    first, *_, error = capsys.readouterr().err.splitlines()
    assert "epsilon is 0.1, but this noise only gives" in first
    assert "fault(s) found" in one_line(error)


def test_the_training_rows_are_not_for_evaluation(place, capsys):
  argv = place("evaluate --head {head} --cache {train}")
  assert "holds the training rows" in fails(capsys, *argv)


class TestBudget:
  def test_nothing_yet(self, place, capsys):
    out, _ = succeeds(capsys, *place("budget --cache {train}"))
    assert "nothing has been released" in out

  def test_it_adds_up(self, place, capsys, tmp_path):
    succeeds(capsys, *place(TRAIN), "--out", tmp_path / "a")
    succeeds(capsys, *place(TRAIN), "--out", tmp_path / "b")
    seeded = ["--noise-seed", 1, "--out", tmp_path / "c"]
    succeeds(capsys, *place(TRAIN), *seeded)
    out, _ = succeeds(capsys, *place("budget --cache {train}"))
    assert out.count("1 draw(s) of epsilon 1 at delta 1e-05") == 3
    sigma = accounting.noise_multiplier(1.0, 1e-5) / 2**0.5
    spent = accounting.printable(accounting.epsilon_of(sigma, 1e-5))
    assert f"epsilon = {spent} at delta = 1e-05, ADD_OR_REMOVE_ONE" in out
    assert "REPLACE_ONE" in out
    assert "1 of 3 entries let out results that are NOT PRIVATE" in out

  def test_at_another_delta(self, place, capsys):
    succeeds(capsys, *place(TRAIN))
    out, _ = succeeds(capsys, *place("budget --cache {train} --delta 1e-9"))
    assert "at delta = 1e-09, ADD_OR_REMOVE_ONE" in out

  @pytest.mark.parametrize("delta", ["0", "1", "2", "-1", "nan"])
  def test_a_delta_that_is_none(self, place, capsys, delta):
    argv = place(f"budget --cache {{train}} --delta {delta}")
    line = fails(capsys, *argv)
    assert f"delta={float(delta)} must lie between 0 and 1" in line

  def test_a_damaged_ledger(self, place, capsys, train_cache):
    succeeds(capsys, *place(TRAIN))
    path = cache_ledger(train_cache, None).path
    path.write_text(path.read_text().replace("[1.0]", "[0.1]"))
    line = fails(capsys, *place("budget --cache {train}"))
    assert f"{path}, line 1: the entry was damaged or edited" in line
    argv = [*place(TRAIN), "--out", path.parent / "again"]
    assert "line 1: the entry was" in fails(capsys, *argv)

  def test_a_folder_where_the_ledger_should_be(
    self, place, capsys, train_cache
  ):
    cache_ledger(train_cache, None).path.mkdir(parents=True)
    line = fails(capsys, *place("budget --cache {train}"), status=1)
    assert "cannot be read: Is a directory." in line


class TestExtract:
  def test_an_experiment_of_ones_own(self, place, capsys, images, tmp_path):
    out, err = succeeds(capsys, *place(EXTRACT))
    assert "70 of 70 (0 skipped)" in out
    assert "70 images in" in out
    assert err == ""
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

  def test_beams_own_flags_may_stand_anywhere(self, place, capsys, images):
    threads = ["--direct_running_mode=multi_threading"]
    argv = [*place(EXTRACT), *threads, "--direct_num_workers", "2"]
    out, _ = succeeds(capsys, *argv)
    assert "70 images in" in out

  @pytest.mark.parametrize(
    ("flags", "said"),
    [
      ("--nope 3", "--nope is neither a flag of `oneshot-dp extract` nor"),
      ("--direct_num_workers many", "invalid int value: 'many'"),
      ("--runner NoSuchRunner", "Unexpected pipeline runner: NoSuchRunner"),
      ("--runner DataflowRunner", "Beam: "),
      ("--batch-size 0", "batch_size=0 must be"),
      ("--shard-rows 0", "shard_rows=0 must be"),
      ("--batch-size many", "many"),
      ("--embedding-dtype int8", "int8"),
      ("--preprocess.image-size 0", "image_size=0"),
      ("--backbone.name vti_ti16", "did you mean vit_ti16"),
      ("--backbone.name vit_ti16", "needs pretrained weights: set backbone"),
      (
        "--backbone.name vit_ti8 --backbone.weights {tmp}/none.npz",
        "none.npz: the weights cannot be read (No such file or directory)",
      ),
      (
        "--backbone.weights {images}",
        "random_patches has nothing to choose: leave out weights=",
      ),
      ("--split tset --source.path {tmp}/splits.npz", "has no split 'tset'"),
      ("--source.path {tmp}/none.npz", "none.npz"),
      ("--out gs://bucket/cache", "mount the bucket"),
      ("--out {images}", "is not a directory; choose another --out"),
      ("--out {tmp}", "is not empty and is not this job's"),
      ("--on-decode-error ignore", "ignore"),
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
    assert said in fails(capsys, *place(f"{EXTRACT} {flags}"))
    assert not (tmp_path / "out" / "cache_info.json").exists()

  def test_weights_of_another_architecture(
    self, place, capsys, images, tmp_path
  ):
    weights = tmp_path / "b32.npz"
    np.savez(
      weights, **{"embedding/kernel": np.zeros((32, 32, 3, 768), np.float32)}
    )
    flags = f"--backbone.name vit_ti8 --backbone.weights {weights}"
    line = fails(capsys, *place(f"{EXTRACT} {flags}"))
    assert "look like width 768 depth 0 patch 32; vit_ti8 expects" in line

  def test_weights_that_are_damaged(self, place, capsys, images, tmp_path):
    weights = tmp_path / "weights.npz"
    weights.write_bytes(images.read_bytes()[:-500])
    flags = f"--backbone.name vit_ti8 --backbone.weights {weights}"
    line = fails(capsys, *place(f"{EXTRACT} {flags}"))
    assert "weights.npz is not an npz file of weights" in line

  @pytest.mark.parametrize(
    ("argv", "said"),
    [
      ("extract cifar_vit_ti16 --out {out}", "did you mean cifar10_vit_ti16"),
      ("extract zzz --out {out}", "there are: arrays_vit_ti16, cifar10_vit"),
      ("extract zzz.py --out {out}", "zzz.py: no such config file"),
      ("extract --out {out}", "Experiment name or Python file. (required)"),
      ("extract {config}", "--out"),
      (
        "extract cifar10_vit_ti16 --source.name cifra10 --out {out}"
        " --source.data-dir {tmp}",
        "Did you mean cifar10",
      ),
      (
        "extract folder_vit_b16 --source.root {tmp}/none --out {out}",
        "none' is not a folder",
      ),
    ],
  )
  def test_bad_experiments(self, place, capsys, argv, said):
    assert said in fails(capsys, *place(argv))

  @pytest.mark.parametrize(
    ("options", "status"), [("--on-decode-error skip", 0), ("", 2)]
  )
  @pytest.mark.parametrize(
    "beam",
    ["", "--direct_running_mode=multi_threading --direct_num_workers=2"],
    ids=["plain", "threads"],
  )
  def test_an_undecodable_image(
    self, place, capsys, tmp_path, options, status, beam
  ):
    files = write_folder(tmp_path / "photos", 70, bad=[40])
    config = CONFIG.replace(
      'ArraysSource(path="images.npz")',
      f'ImageFolderSource(root="{tmp_path / "photos"}")',
    )
    (tmp_path / "config.py").write_text(config)
    argv = place(f"extract {{config}} --out {{out}} {options} {beam}")
    if status:
      line = fails(capsys, *argv)
      assert line.startswith(f"{files[40]} (example_id=40) cannot be decoded: ")
    else:
      out, err = succeeds(capsys, *argv)
      assert "69 of 70 (1 skipped)" in out
      assert "1 undecodable" in out
      assert err == ""

  def test_a_full_disk_can_be_resumed_from(
    self, place, capsys, images, tmp_path
  ):
    with files_no_larger_than(10_000):
      line = fails(capsys, *place(EXTRACT), status=1)
    assert "cannot write: " in line
    assert "then run the same command again" in line
    assert not (tmp_path / "out" / "cache_info.json").exists()
    assert not list((tmp_path / "out").glob("*.array_record-*"))
    out, _ = succeeds(capsys, *place(EXTRACT))
    assert "70 images in" in out

  def test_a_place_that_cannot_be_written(
    self, place, capsys, images, tmp_path
  ):
    (tmp_path / "file").write_text("mine")
    argv = [*place(EXTRACT), "--out", tmp_path / "file" / "out"]
    line = fails(capsys, *argv, status=1)
    assert "file/out: cannot write: File exists; mend" in line

  def test_damage_between_two_tries(self, place, capsys, tmp_path):
    """The message of the first try leads to the second, which succeeds."""
    files = write_folder(tmp_path / "photos", 70)
    whole = damage(files[69])
    config = CONFIG.replace(
      'ArraysSource(path="images.npz")',
      f'ImageFolderSource(root="{tmp_path / "photos"}")',
    )
    (tmp_path / "config.py").write_text(config)
    argv = place("extract {config} --out {out}")
    assert str(files[69]) in fails(capsys, *argv)
    files[69].write_bytes(whole)
    out, _ = succeeds(capsys, *argv)
    assert "2 shards kept from an earlier run" in out


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
    ("flags", "said"),
    [
      ("{tmp}/none.npz --out {out}", "none.npz: no such file."),
      ("{config} --out {out}", "config.py: not a readable npz"),
      (
        "{images} --out {out}",
        "no array embedding or label (or train_embedding",
      ),
      ("{images}", "--out"),
      ("--out {out}", "file"),
    ],
  )
  def test_bad_input(self, place, capsys, images, flags, said):
    assert said in fails(capsys, *place(f"import-features {flags}"))


class TestCommandLine:
  @pytest.mark.parametrize(
    ("argv", "said"),
    [
      ([], "Missing subcommand"),
      (["trian"], "Unrecognized options: trian"),
      (["--epsilon", "1"], "--epsilon"),
      (["train"], "--cache"),
      (["train", "--cashe", "x"], "--cashe"),
      (["demo", "twice"], "twice"),
    ],
  )
  def test_what_makes_no_sense(self, capsys, argv, said):
    assert said in fails(capsys, *argv)

  @pytest.mark.parametrize(
    "command",
    [
      "extract",
      "import-features",
      "inspect",
      "verify",
      "train",
      "sweep",
      "evaluate",
      "budget",
      "demo",
    ],
  )
  def test_help(self, capsys, command):
    with pytest.raises(SystemExit) as stop:
      main([command, "--help"])
    assert not stop.value.code
    out, err = capsys.readouterr()
    assert f"oneshot-dp {command}" in out
    assert err == ""

  def test_help_of_all(self, capsys):
    with pytest.raises(SystemExit) as stop:
      main(["--help"])
    assert not stop.value.code
    assert "import-features" in capsys.readouterr().out

  def test_help_shows_the_experiments_own_defaults(self, capsys):
    with pytest.raises(SystemExit):
      main(["extract", "digits_random_patches", "--help"])
    out = capsys.readouterr().out
    assert "sklearn_digits" in out
    assert "Experiments: arrays_vit_ti16" in " ".join(
      out.replace("│", " ").split()
    )

  @pytest.mark.parametrize(
    ("words", "said"),
    [
      ("extract --out {out} {config}", "CONFIG comes first"),
      ("extract {config} more --out {out}", "'more' is one word too many"),
      ("extract {config} --out {out} --a=b c", "'c' is one word too many"),
    ],
  )
  def test_words_out_of_place(self, place, capsys, words, said):
    assert said in fails(capsys, *place(words))

  def test_beams_flags_are_kept_apart(self, place):
    flags = ["--runner=FlinkRunner", "--flink_master", "host:1"]
    command, beam = parse([*place(EXTRACT), *flags])
    assert beam == flags
    assert command.job.decode_threads == 1

  def test_ctrl_c_has_no_traceback(self, monkeypatch, capsys, place):
    def stop(*args):
      raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run", stop)
    line = fails(capsys, *place("inspect {train}"), status=130)
    assert "interrupted; an extraction resumes" in line


class TestProcess:
  """As a person starts it."""

  def test_bad_input(self, place):
    process = start(place(f"{TRAIN} --epsilon 0"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert "epsilon=0.0 must be positive" in one_line(err)

  def test_an_undecodable_image_among_threads(self, place, tmp_path):
    """Other threads are busy in C++ when the first one fails."""
    files = write_folder(tmp_path / "photos", 400, side=64, bad=[40])
    config = CONFIG.replace(
      'ArraysSource(path="images.npz")',
      f'ImageFolderSource(root="{tmp_path / "photos"}")',
    )
    (tmp_path / "config.py").write_text(config)
    threads = "--direct_running_mode=multi_threading --direct_num_workers=4"
    process = start(place(f"extract {{config}} --out {{out}} {threads}"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert one_line(err).startswith(f"{files[40]} (example_id=40)")

  def test_threads_that_are_busy_do_not_hold_up_a_failure(
    self, place, tmp_path
  ):
    """Nor does the interpreter take them down with it, which would abort."""
    busy = "\nimport threading, time"
    busy += "\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    (tmp_path / "config.py").write_text(CONFIG + busy)
    process = start(place("extract {config} --out {out} --nope 3"))
    try:
      _, err = process.communicate(timeout=45)
    finally:
      process.kill()
    assert process.returncode == 2
    assert "--nope is neither" in one_line(err)

  def test_a_reader_that_has_gone(self, place):
    process = start(place("inspect {train}"))
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stream:
      assert stream.read() == ""
    assert process.wait(60) == 1
