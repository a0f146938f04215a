"""`evaluate` as a command."""

import json

import pytest

from tests.pipeline.command_line import fails, succeeds


class TestHeads:
  def evaluate(self, head, eval_cache) -> list:
    return ["evaluate", head, "--cache", eval_cache.path, "--not-trained-on"]

  def test_evaluate_says_what_it_found_and_assumes(
    self, head, eval_cache, capsys, finished_sweep
  ):
    said, err = succeeds(capsys, *self.evaluate(head, eval_cache))
    out, _ = succeeds(capsys, *self.evaluate(head, eval_cache), "--json")
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
    lines = [line.rsplit(maxsplit=1) for line in said.splitlines()]
    assert ["top-1", f"{100 * row.top1:.2f}"] in lines
    assert ["balanced", f"{100 * row.balanced:.2f}"] in lines
    assert [f"recall of {eval_cache.info.class_names[0]}"] in (
      line[:1] for line in lines
    )
    assert ["rows", "80"] in lines

  @pytest.mark.parametrize("file", ["receipt.json", "head.safetensors"])
  def test_a_changed_head_has_no_score(self, head, eval_cache, capsys, file):
    content = (head / file).read_bytes()
    (head / file).write_bytes(
      content.replace(b'"epsilon": 2.0', b'"epsilon": 1.0')
      if file == "receipt.json"
      else content[:-1] + bytes([content[-1] ^ 1])
    )
    assert file in fails(capsys, *self.evaluate(head, eval_cache))
