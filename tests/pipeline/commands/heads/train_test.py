"""`train` and `sweep` as commands."""

import json

import pytest

from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import SWEEP, TRAIN, fails, one_line, succeeds
from tests.pipeline.small_disk import files_no_larger_than


class TestTrainAndSweep:
  def test_a_delta_of_one_in_n_is_insisted_on(self, place, capsys):
    said = fails(capsys, *place(TRAIN), "--delta", 1 / 180)
    assert said.startswith("--delta=0.00555556 is not below 1/n = 0.0056: ")
    assert said.endswith("insist: --large-delta, in Python large_delta=True.")
    insisted = [*place(TRAIN), "--delta", 1 / 180, "--large-delta"]
    _, err = succeeds(capsys, *insisted)
    asked, head, charged, new = err.splitlines()
    assert asked.startswith("asks for 1 release of 6 x 4 weights: about ")
    assert head.startswith("head: lamb, the paper's single step; costs ")
    assert new.startswith("its first charge: ")
    assert charged.startswith("charged to ")

  @pytest.mark.parametrize("command", [TRAIN, SWEEP])
  def test_a_full_disk(self, place, capsys, tmp_path, command):
    with files_no_larger_than(3000):
      assert main(place(command)) == 1
    *_, error = lines = capsys.readouterr().err.splitlines()
    assert not any(line.startswith("charged to ") for line in lines)
    assert "out cannot be written: File too large; mend" in one_line(error)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
      "config.py",
      "photos.py",
    ]

  def test_flags_reach_the_head(self, place, capsys, tmp_path):
    flags = "--head adam --train-bias --l2-clip-norm 2 --initial-bias -3"
    relation = "--neighboring-relation replace-one"
    out, _ = succeeds(capsys, *place(f"{TRAIN} {flags} {relation}"))
    assert "epsilon = 1 at delta = 1e-05 (REPLACE_ONE)" in out
    assert "noise multiplier 3.7306, noise from os.urandom" in out
    receipt = json.loads((tmp_path / "out" / "receipt.json").read_text())
    assert receipt["training"]["head"] == "adam"
    assert receipt["mechanism"]["train_bias"] is True
    assert receipt["mechanism"]["l2_clip_norm"] == 2
    assert receipt["mechanism"]["initial_bias"] == -3
    assert receipt["privacy"]["neighboring_relation"] == "REPLACE_ONE"
