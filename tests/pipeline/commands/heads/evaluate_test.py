"""`evaluate` and `verify` as commands, of a head."""

import json

import pytest

from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import (
  fails,
  one_line,
  succeeds,
)


class TestHeads:
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
