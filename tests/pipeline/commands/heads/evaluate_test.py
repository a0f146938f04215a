"""`evaluate` and `verify` as commands, of a head."""

import json

import pytest

from tests.pipeline.command_line import (
  succeeds,
)


class TestHeads:
  def evaluate(self, head, eval_cache) -> list:
    return ["evaluate", head, "--cache", eval_cache.path, "--not-trained-on"]

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
      "balanced": row.balanced,
      "recall": dict(zip(eval_cache.info.class_names, row.recall, strict=True)),
      "evaluation": {
        "labels": "public",
        "mechanism": "test labels treated as public",
      },
    }
    assert "labels of this cache are treated as public" in err

  @pytest.mark.parametrize(
    ("name", "said"),
    [("epsilon-2-draw-0", ""), ("baseline-NOT-PRIVATE", "NOT PRIVATE")],
  )
  def test_a_sound_head_verifies(self, finished_sweep, capsys, name, said):
    path = finished_sweep.path / "heads" / name
    out, _ = succeeds(capsys, "verify", path)
    assert out.startswith("ok: the receipt's numbers follow from the noise")
    assert ("NOT PRIVATE" in out) is bool(said)
