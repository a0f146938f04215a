"""Long steps show how far they are, on a terminal and nowhere else."""

import contextlib
import re

import pytest

from oneshot_dp.extract import progress
from oneshot_dp.pipeline.cli import main
from tests.pipeline.command_line import (
  ABLATE,
  AUDIT,
  EXTRACT,
  SWEEP,
  TRAIN,
  Terminal,
  succeeds,
)

DUPLICATES = "verify {train} --duplicates --min-cosine 0.99"


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
def test_bars(place, images, rows_npz, words, bars):
  found = re.findall(r"([A-Za-z ]+): +\d+%\|", shown(place(words)))
  assert bars <= {name.strip() for name in found}


def test_a_log_has_lines_now_and_then(place, capsys, monkeypatch):
  """Of which none tells a share of the rows; and none in half a minute."""
  monkeypatch.setattr(progress, "_LOG_SECONDS", 0)
  _, err = succeeds(capsys, *place(TRAIN))
  assert re.search(r"^clipped sum: 00:00 so far$", err, re.MULTILINE)
  assert not re.search("clipped sum.*%|180/", err)
  assert "\r" not in err
  again = place(f"{DUPLICATES} --quiet")
  assert succeeds(capsys, *again)[1] == ""
  monkeypatch.undo()
  assert succeeds(capsys, *place(DUPLICATES))[1].count("\n") == 1


@pytest.mark.parametrize(
  ("words", "flag"), [(SWEEP, "--quiet"), ("verify {train}", "--json")]
)
def test_none_when_asked_to_be_quiet(place, words, flag):
  screen = shown([*place(words), flag])
  assert "%|" not in screen
  assert "\r" not in screen
  if flag == "--quiet":
    assert all(line.startswith("warning: ") for line in screen.splitlines())
