"""Heads of a notebook in the command line's directory."""

import json
import stat
from typing import Any

import numpy as np
import pytest
import scipy.special

import oneshot_dp
from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.heads.registry import METHODS
from tests.pipeline.command_line import succeeds

ROWS = (
  np.random.default_rng(0).standard_normal((300, 4))
  + 9 * np.eye(4)[np.arange(300) % 3]
)
LABELS = np.arange(300) % 3


def train(**changes):
  given: dict[str, Any] = {
    "num_classes": 3,
    "epsilon": 4.0,
    "delta": 1e-5,
  } | changes
  return oneshot_dp.train_head(ROWS, LABELS, **given)


@pytest.mark.parametrize(
  "given",
  [
    *({"head": name} for name in METHODS if name != "multi-step"),
    {"head": "lamb", "unit_ids": np.arange(300) // 2},
    {"class_names": ["cat", "dog", "owl"]},
    {"source": oneshot_dp.NoiseSource(3), "head": "lamb"},
  ],
)
def test_saved_loaded_and_verified(tmp_path, capsys, given):
  head, place = train(**given), tmp_path / "head"
  oneshot_dp.save_head(head, place, dataset="pets", backbone="net")
  again = oneshot_dp.load_head(place)
  assert again.receipt() == json.loads(json.dumps(head.receipt()))
  assert again.class_names == tuple(given.get("class_names", "012"))
  assert again.statement == head.statement
  assert again.plan == head.plan
  np.testing.assert_array_equal(again.logits(ROWS), head.logits(ROWS))
  capsys.readouterr()
  out, _ = succeeds(capsys, "verify", place)
  assert "no ledger was charged for it" in out
  assert ("NOT PRIVATE" in out) == ("source" in given)
  mode = stat.S_IMODE((place / "receipt.json").stat().st_mode)
  assert (mode == 0o600) == ("source" in given)
  assert "No ledger was charged" in (place / "README.md").read_text()
  cache = oneshot_dp.write_cache(
    tmp_path / "cache",
    ROWS,
    LABELS,
    dataset="other",
    split="test",
    num_classes=3,
    class_names=again.class_names,
    backbone="net",
  )
  out, _ = succeeds(
    capsys,
    *("evaluate", place, "--cache", cache.path, "--json", "--not-trained-on"),
  )
  top1 = json.loads(out)["top1"]
  assert top1 == pytest.approx(again.score(ROWS, LABELS))


def test_scores():
  head = train()
  logits = head.decision_function(ROWS)
  assert head.score(ROWS, LABELS) == (logits.argmax(1) == LABELS).mean()
  np.testing.assert_allclose(
    head.predict_proba(ROWS), scipy.special.softmax(logits.astype(float), 1)
  )


@pytest.mark.parametrize("names", [["a", "b"], ["a", "a", "b"], ["", "a", "b"]])
def test_names_that_are_none(names):
  charged = []
  with pytest.raises(InputError, match="must be 3 different names"):
    train(class_names=names, charge=lambda *_: charged.append(1))
  assert not charged


def test_what_is_not_saved(tmp_path):
  head, place = train(), tmp_path / "head"
  for wrong in ({"dataset": " "}, {"dataset": "a", "split": "train[:10%]"}):
    with pytest.raises(InputError, match=r"must be a name|is a part of"):
      oneshot_dp.save_head(head, place, **wrong)
  assert not place.exists()
  oneshot_dp.save_head(head, place, dataset="pets")
  with pytest.raises(InputError, match="already holds something"):
    oneshot_dp.save_head(head, place, dataset="pets")
  weights = place / "head.safetensors"
  *before, last = weights.read_bytes()
  weights.write_bytes(bytes([*before, last ^ 1]))
  with pytest.raises(InputError, match="not the file that the receipt is"):
    oneshot_dp.load_head(place)


def test_a_head_of_the_command_line_loads(tmp_path, finished_sweep):
  row = next(row for row in finished_sweep.rows if row.private)
  head = oneshot_dp.load_head(finished_sweep.path / row.path)
  assert head.is_charged
  assert head.statement.epsilon == row.epsilon
  with pytest.raises(InputError, match="copy that instead"):
    oneshot_dp.save_head(head, tmp_path / "head", dataset="pets")
