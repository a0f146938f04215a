"""Runs `oneshot-dp` in this process, or in one of its own."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from oneshot_dp.pipeline.cli import main
from oneshot_dp.pipeline.commands.data.extract import RUNS

ROOT = pathlib.Path(__file__).parents[2]
TRAIN = "train --cache {train} --epsilon 1 --delta 1e-5 --head lamb --out {out}"
SWEEP = (
  "sweep --cache {train} --eval-cache {eval} --epsilons 1 2 --delta 1e-5"
  " --out {out}"
)
# Seeded: of sound releases too, audits flag some.
AUDIT = (
  "audit --epsilon 1 --delta 1e-5 --runs 32 --canaries 16 --num-classes 2"
  " --noise-seed 1"
)
EXTRACT = (
  "extract {config} --source.path {images} --split train --out {out}"
  " --decode-threads 1"
)
EXTRACT_PHOTOS = "extract {tmp}/photos.py --split all --out {out} --quiet"
CONFIG = """
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ArraysSource(path="images.npz"),
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
    batch_size=8,
    shard_rows=32,
  )
"""

# A suite that runs in the background ignores Ctrl-C, and so would its children.
_START = (
  "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
  "; from oneshot_dp.pipeline.cli import main; sys.exit(main())"
)


def succeeds(capsys: pytest.CaptureFixture, *argv: object) -> tuple[str, str]:
  """What a command says on standard output and standard error."""
  status = main([str(word) for word in argv])
  said = capsys.readouterr()
  assert status == 0, said.err
  return said.out, said.err


def fails(capsys: pytest.CaptureFixture, *argv: object, status: int = 2) -> str:
  """The one line that a command fails with."""
  found = main([str(word) for word in argv])
  said = capsys.readouterr()
  assert found == status, said.err
  assert said.out == ""
  return one_line(said.err)


def one_line(stderr: str) -> str:
  (line,) = (x for x in stderr.splitlines() if not x.startswith(RUNS))
  assert line.startswith("oneshot-dp: error: ")
  assert "Traceback" not in line
  return line.removeprefix("oneshot-dp: error: ")


def start(
  argv: Sequence[object], *, first: str = "pass", **options: Any
) -> subprocess.Popen[str]:
  """The command as a process of its own, which does something else first."""
  words = [sys.executable, "-c", f"{first}\n{_START}", *map(str, argv)]
  environment = os.environ | {"PYTHONPATH": str(ROOT)}
  return subprocess.Popen(
    words,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=environment,
    **options,
  )
