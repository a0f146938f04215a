"""--json: one object on standard output, and nothing of it private."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from oneshot_dp.pipeline.commands.registry import COMMANDS
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.report import report
from oneshot_dp.pipeline.report.report import WrittenReport
from oneshot_dp.pipeline.shell.answer import Answer, plain
from tests.pipeline.command_line import AUDIT, EXTRACT, SWEEP, TRAIN, succeeds

RUN = "--cache {train} --eval-cache {eval} --out {out}"
ALL = [
  EXTRACT,
  "backbones random_patches",
  "import {tmp}/rows.npz --num-classes 3 --out {out}",
  "inspect {train}",
  "verify {head}",
  "verify {train} --duplicates --min-cosine 0.9 --out {out}",
  TRAIN,
  f"compare {RUN} --epsilons 1 --delta 1e-5 --heads lamb adam",
  f"figures {RUN} --epsilons 1 --deltas 1e-5 --num-draws 1 --baseline",
  f"ablate {RUN} --epsilon 1 --delta 1e-5 --axes clip --clip-norms 2",
  "evaluate {head} --cache {eval} --private-eval 1 --delta 1e-5",
  "predict {head} {eval} --out {tmp}/predictions.csv",
  "report {tmp}/results",
  "budget --cache {train}",
  "budget set --cache {train} --max-epsilon 2 --max-delta 1e-5",
  AUDIT,
]


def read(out: str) -> dict[str, Any]:
  """The one object of an output, which has no NaN nor infinity."""
  (line,) = out.splitlines()
  constants: list[str] = []
  found = json.loads(line, parse_constant=constants.append)
  assert isinstance(found, dict)
  assert not constants
  return found


@pytest.fixture
def typed(place, head, images, rows_npz, tmp_path, monkeypatch):
  page = WrittenReport(page=tmp_path / "page", figures=(), notes=("a note",))
  monkeypatch.setattr(report, "write_report", lambda **options: page)
  return place


def test_every_command_is_here():
  named = {name for name in COMMANDS for words in ALL if words.startswith(name)}
  # These have tests of their own.
  assert named == COMMANDS.keys() - {"completion", "demo", "export", "sweep"}


@pytest.mark.slow
@pytest.mark.parametrize("words", ALL)
def test_one_object_and_nothing_else(typed, capsys, words):
  out, err = succeeds(capsys, *typed(words), "--json")
  assert read(out)
  assert "%|" not in err


def test_the_numbers_are_those_of_the_files(typed, capsys, tmp_path):
  out, _ = succeeds(capsys, *typed(f"{SWEEP} --baseline"), "--json")
  found = read(out)
  written = json.loads((tmp_path / "out/results.json").read_text())
  assert found["heads"] == written["heads"]
  assert found["heads"][-1]["epsilon"] == "inf"
  assert found["out"] == str(tmp_path / "out")
  (composed,) = found["composed_epsilon"].values()
  assert composed == written["composed_epsilon"]


def test_a_ledger_keeps_what_tells_its_rows(typed, capsys, train_cache):
  """Whoever holds a candidate could see from the digest that it is the one."""
  succeeds(capsys, *typed(TRAIN))
  (entry,) = Ledger(train_cache.info.dataset).entries()
  out, _ = succeeds(capsys, *typed("budget --cache {train}"), "--json")
  assert entry["private_digest"] not in out
  assert entry["nonce"] not in out
  found = read(out)
  assert found["entries"][0]["entry"] == entry["entry"]
  assert found["odometer"]["epsilon"]["REPLACE_SPECIAL"] == pytest.approx(1)


def test_what_json_can_hold():
  facts: dict[Any, Any] = {
    "out": pathlib.Path("a/b"),
    "inf": math.inf,
    "minus": -math.inf,
    "nan": math.nan,
    "array": (np.float32(0.5), np.int64(3)),
    1e-5: None,
  }
  assert read(Answer(text="", facts=facts).json()) == {
    "out": "a/b",
    "inf": "inf",
    "minus": "-inf",
    "nan": None,
    "array": [0.5, 3],
    "1e-05": None,
  }
  with pytest.raises(TypeError, match="no fact"):
    plain(object())
