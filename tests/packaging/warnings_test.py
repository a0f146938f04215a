"""No warning comes from our own code: `python -W error` stays silent.

The rest of the suite turns warnings into errors too, but in a process that has
imported everything already and has filters for the oracles.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]

# What TFDS 4.9.10 does whenever it opens a data set, with protobuf 6.33.
THEIRS = "ignore:label() is deprecated:DeprecationWarning"

# Every module, then every command of argv, in one process: they share the
# seconds that JAX, Beam and TFDS take to import.
RUN = """
import importlib, json, pkgutil, sys
import oneshot_dp
for module in pkgutil.walk_packages(oneshot_dp.__path__, "oneshot_dp."):
  importlib.import_module(module.name)
from oneshot_dp.pipeline.cli import main
for argv in json.loads(sys.argv[1]):
  try:
    status = main(argv)
  except SystemExit as end:
    status = end.code
  assert not status, argv
"""

CONFIG = """
from oneshot_dp.configs.extract_config import *
def get_config():
  return ExtractConfig(
    source=ArraysSource(path="arrays.npz"),
    backbone=BackboneConfig(name="random_patches"),
    preprocess=PreprocessConfig(image_size=8),
    batch_size=8,
    shard_rows=32,
  )
"""

COMMANDS = (
  "--help",
  "sweep --help",
  "extract config.py --split train --out images",
  "extract digits_random_patches --split test --out digits"
  " --source.data-dir data",
  "inspect images",
  "verify images",
  "import arrays.npz --split train[:80%] --out train",
  "import arrays.npz --split train[80%:] --out test",
  "train --cache train --epsilon 1 --delta 1e-5 --out head",
  "evaluate head --cache test",
  "sweep --cache train --eval-cache test --epsilons 1 --delta 1e-5 --out heads",
  "report heads",
  "budget --cache train",
)


@pytest.mark.slow
def test_modules_and_commands_warn_of_nothing(tmp_path):
  random = np.random.default_rng(0)
  np.savez(
    tmp_path / "arrays.npz",
    image=random.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8),
    embedding=random.normal(size=(40, 8)).astype(np.float32),
    label=np.arange(40) % 4,
    class_names=np.array(["a", "b", "c", "d"]),
  )
  (tmp_path / "config.py").write_text(CONFIG)
  commands = json.dumps([line.split() for line in COMMANDS])
  said = subprocess.run(
    [sys.executable, "-W", "error", "-W", THEIRS, "-c", RUN, commands],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    env=os.environ
    | {
      "PYTHONPATH": str(ROOT),
      "JAX_PLATFORMS": "cpu",
      "ONESHOT_DP_LEDGER_DIR": str(tmp_path / "ledgers"),
    },
  )
  assert said.returncode == 0, said.stderr
