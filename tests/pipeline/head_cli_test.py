"""`evaluate`, `verify` and `budget` as commands."""

import json
import pathlib
import shutil

import pytest

from oneshot_dp.linear_dp.accounting import gaussian as accounting
from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.training.train_heads import cache_ledger
from tests.pipeline.command_line import (
  TRAIN,
  fails,
  one_line,
  succeeds,
)


class TestHeads:
  @pytest.fixture
  def head(self, finished_sweep, tmp_path) -> pathlib.Path:
    folder = tmp_path / "head"
    shutil.copytree(finished_sweep.path / "heads/epsilon-2-draw-0", folder)
    return folder

  def evaluate(self, head, eval_cache) -> list:
    return ["evaluate", head, "--cache", eval_cache.path]

  def test_evaluate_prints_json_and_what_it_assumes(
    self, head, eval_cache, capsys, finished_sweep
  ):
    out, err = succeeds(capsys, *self.evaluate(head, eval_cache))
    (row,) = (
      r for r in finished_sweep.rows if r.path.endswith("epsilon-2-draw-0")
    )
    assert json.loads(out) == {
      "top1": row.top1,
      "top5": row.top5,
      "num_examples": 80,
      "evaluation": {
        "labels": "public",
        "mechanism": "test labels treated as public",
      },
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
    [("epsilon-2-draw-0", ""), ("baseline-NOT-PRIVATE", "NOT PRIVATE")],
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
  argv = place("evaluate {head} --cache {train}")
  assert "may hold training rows" in fails(capsys, *argv)


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
