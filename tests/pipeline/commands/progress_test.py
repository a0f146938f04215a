"""Long steps show how far they are, on a terminal and nowhere else."""

import contextlib
import io
import re

import numpy as np
import pytest

from oneshot_dp.extract import progress
from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import (
  AUDIT,
  EXTRACT,
  SWEEP,
  TRAIN,
  succeeds,
)

ABLATE = (
  "ablate --cache {train} --eval-cache {eval} --epsilon 1 --delta 1e-5"
  " --out {out} --axes clip --clip-norms 2"
)
DUPLICATES = "verify {train} --duplicates --min-cosine 0.99"


class Terminal(io.StringIO):
  def isatty(self) -> bool:
    return True


@pytest.fixture
def typed(place, images, tmp_path):
  rows = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
  np.savez(tmp_path / "rows.npz", embedding=rows, label=np.arange(9) % 3)
  return place


def shown(argv: list[str]) -> str:
  with contextlib.redirect_stderr(Terminal()) as screen:
    assert main(argv) == 0
  return screen.getvalue()


@pytest.mark.parametrize(
  ("words", "bars"),
  [
    (EXTRACT, {"train"}),
    (
      "import {tmp}/rows.npz --num-classes 3 --out {out}",
      {"read", "import"},
    ),
    ("verify {train}", {"verify"}),
    (DUPLICATES, {"read train", "compare"}),
    (TRAIN, {"clipped sum"}),
    (ABLATE, {"ablation", "clipped sum", "evaluate"}),
    (AUDIT, {"runs"}),
  ],
  ids=lambda each: each.split()[0] if isinstance(each, str) else "",
)
def test_bars(typed, words, bars):
  found = re.findall(r"([A-Za-z ]+): +\d+%\|", shown(typed(words)))
  assert bars <= {name.strip() for name in found}


def test_a_log_has_lines_now_and_then(typed, capsys, monkeypatch):
  """Of which none tells a share of the rows; and none in half a minute."""
  monkeypatch.setattr(progress, "_LOG_SECONDS", 0)
  _, err = succeeds(capsys, *typed(TRAIN))
  assert re.search(r"^clipped sum: 00:00 so far$", err, re.MULTILINE)
  assert not re.search("clipped sum.*%|180/", err)
  assert "\r" not in err
  again = typed(f"{DUPLICATES} --quiet")
  assert succeeds(capsys, *again)[1] == ""
  monkeypatch.undo()
  assert succeeds(capsys, *typed(DUPLICATES))[1].count("\n") == 1


@pytest.mark.parametrize(
  ("words", "flag"), [(SWEEP, "--quiet"), ("verify {train}", "--json")]
)
def test_none_when_asked_to_be_quiet(typed, words, flag):
  screen = shown([*typed(words), flag])
  assert "%|" not in screen
  assert "\r" not in screen
  if flag == "--quiet":
    assert all(line.startswith("warning: ") for line in screen.splitlines())
