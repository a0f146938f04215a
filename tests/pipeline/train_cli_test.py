"""`train` and `sweep` as commands."""

import json

import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import (
  SWEEP,
  TRAIN,
  fails,
  one_line,
  succeeds,
)
from tests.pipeline.small_disk import files_no_larger_than


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
      ("--num-draws 2", "--num-draws"),
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
      ("--num-draws 0", "num_draws=0 must be at least 1"),
      ("--num-draws -2", "num_draws=-2 must be"),
      ("--num-draws 1.5", "1.5"),
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
    (warning, charged, new) = err.splitlines()
    assert new.startswith("warning: this is a new ledger: ")
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
    charged, new, error = capsys.readouterr().err.splitlines()
    assert new.startswith("warning: this is a new ledger: ")
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
