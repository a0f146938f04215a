"""What a user calls files and folders is no business of ours.

Beside the user's script lie a `configs/`, an `extract/`, a `linear_dp/`, a
`pipeline.py` and more, and the same once more as the names of files; each ends
whatever imports it.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from oneshot_dp.extract.cache.verify import verify_cache
from tests.packaging.conftest import ROOT

NOT_OURS = "raise SystemExit('the file of the user was imported')\n"
SCRIPT = """
import numpy as np
import oneshot_dp
rows, labels = np.eye(40, 8, dtype=np.float32), np.arange(40) % 4
head = oneshot_dp.train_head(
  rows, labels, num_classes=4, epsilon=1.0, delta=1e-5
)
print(oneshot_dp.__file__, head)
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
# As the installed script does, whose folder is its own.
COMMAND = "import sys; from {module} import {name}; sys.exit({name}())"

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  for name in ("configs", "extract", "linear_dp"):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(NOT_OURS)
  for name in ("pipeline", "configs", "extract", "linear_dp", "tests"):
    (tmp_path / f"{name}.py").write_text(NOT_OURS)
  (tmp_path / "job.py").write_text(CONFIG)
  (tmp_path / "script.py").write_text(SCRIPT)
  images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 3), np.uint8)
  np.savez(
    tmp_path / "arrays.npz",
    image=images,
    label=np.arange(64) % 4,
    class_names=np.array(["a", "b", "c", "d"]),
  )
  return tmp_path


def run(
  place: pathlib.Path, folder: pathlib.Path, *words: object
) -> subprocess.CompletedProcess[str]:
  """In the user's folder, with the installation behind it on the path."""
  ended = subprocess.run(
    [sys.executable, *map(str, words)],
    cwd=folder,
    capture_output=True,
    text=True,
    timeout=300,
    env=os.environ
    | {
      "PYTHONPATH": str(place),
      "JAX_PLATFORMS": "cpu",
      "ONESHOT_DP_LEDGER_DIR": str(folder / "ledgers"),
    },
  )
  assert ended.returncode == 0, ended.stderr
  return ended


# One of the two ways in which it is installed each: they have the same modules.
def test_a_script(folder):
  said = run(ROOT, folder, "script.py").stdout
  assert said.startswith(str(ROOT / "oneshot_dp" / "__init__.py"))
  assert "feature_dim=8" in said


def test_the_command_and_the_workers_of_beam(installed, folder):
  """`-c` and Beam's `-m` look first in the folder that they run in."""
  command = COMMAND.format(module="oneshot_dp.pipeline.cli", name="main")
  run(
    *(installed, folder, "-c", command, "extract", "job.py", "--out", "cache"),
    *("--direct_running_mode=multi_processing", "--direct_num_workers=1"),
  )
  assert verify_cache(folder / "cache").ok


def test_the_installed_command(folder):
  """The script of the environment, where there is one."""
  script = pathlib.Path(sys.prefix) / "bin" / "oneshot-dp"
  if not script.exists():
    pytest.skip(f"there is no {script}: the package is not installed")
  assert "usage: oneshot-dp" in run(ROOT, folder, script, "--help").stdout
