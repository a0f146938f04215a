"""Doors against hostile files, words and requests; see fuzz_test.py, too."""

import io
import json
import os
import shutil
import zipfile

import numpy as np
import pytest

from oneshot_dp.pipeline.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_a_bomb_is_refused_before_memory_is_asked_for(tmp_path, capsys):
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    header, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 8)}
  )
  with zipfile.ZipFile(tmp_path / "f.npz", "w") as file:
    for name in ("embedding", "label"):
      file.writestr(f"{name}.npy", header.getvalue())
      file.infolist()[-1].file_size = 2**40
  assert main(["import", str(tmp_path / "f.npz"), "--out", "out"]) == 2
  (said,) = capsys.readouterr().err.splitlines()
  assert "its arrays take 2048.0 GiB, and there are" in said


@pytest.mark.parametrize(
  ("line", "word"),
  [
    (
      "train --cache {c} --epsilon 1 --delta 1e-5 --ledger-dir {l} --out",
      "a\x1b[2J",
    ),
    ("import f.npz --out o --dataset-name", "a\u202eb"),
    ("import f.npz --out o --dataset-name", os.fsdecode(b"\xff")),
    ("extract x --out o --split", "a\nb"),
  ],
)
def test_words_that_no_terminal_should_show(
  tmp_path, train_cache, capsys, line, word
):
  words = line.format(c=train_cache.path, l=tmp_path / "l").split()
  assert main([*words, word]) == 2
  said = capsys.readouterr().err
  assert "holds control characters, or bytes that are not UTF-8" in said
  assert len(said.splitlines()) == 1
  assert said.isascii()
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("flags", "part"),
  [
    ("--head multi-step --steps.epochs 1000000000", "epochs=1e+09 is absurd"),
    ("--head multi-step --steps.learning-rate 1e300", "learning-rate=1e+300"),
    ("--learning-rate 1e300", "learning-rate=1e+300 is absurd"),
    ("--num-draws 100001", "are more than 100000 heads"),
    ("--num-draws 1000", "take 112 kB of memory, of 64 kB that there are"),
  ],
)
def test_absurd_requests_are_not_charged(
  tmp_path, train_cache, eval_cache, capsys, monkeypatch, flags, part
):
  line = f"train --cache {train_cache.path} --epsilon 1"
  if "draws" in flags:
    line = line.replace("train ", f"sweep --eval-cache {eval_cache.path} ", 1)
    line = line.replace("--epsilon ", "--epsilons ")
    monkeypatch.setattr(os, "sysconf", lambda _: 253)
  words = f"{line} --delta 1e-5 {flags} --out {tmp_path}/out".split()
  assert main([*words, "--ledger-dir", f"{tmp_path}/l"]) == 2
  assert part in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_an_edited_accuracy_is_refused(finished_sweep, tmp_path, capsys):
  shutil.copytree(finished_sweep.path, tmp_path / "run")
  file = tmp_path / "run" / "results.json"
  results = json.loads(file.read_text())
  results["heads"][0]["top1"] = 0.999
  file.write_text(json.dumps(results))
  assert main(["report", str(tmp_path / "run")]) == 2
  assert "was edited; restore it" in capsys.readouterr().err
