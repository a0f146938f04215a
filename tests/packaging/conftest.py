"""The wheel, built and installed once, and processes beside a user's files."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.pipeline.command_line import CONFIG, ROOT

FOLDERS = ("configs", "extract", "linear_dp", "pipeline")


@pytest.fixture(scope="session")
def source(tmp_path_factory):
  """A copy of the repository, with what an older build may have left in it."""
  pytest.importorskip("hatchling", reason="the build backend, of the lock")
  copy = tmp_path_factory.mktemp("source")
  for folder in (*FOLDERS, "oneshot_dp", "tests"):
    cached = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / folder, copy / folder, ignore=cached, symlinks=True)
  for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
    shutil.copy(ROOT / name, copy)
  stale = "configs/gone.py"
  for leftover in (
    f"build/lib/{stale}",
    "configs/__pycache__/gone.cpython-311.pyc",
    "oneshot_dp.egg-info/SOURCES.txt",
  ):
    path = copy / leftover
    path.parent.mkdir(parents=True)
    path.write_text(stale)
  return copy


@pytest.fixture(scope="session")
def wheel(source, tmp_path_factory):
  folder = tmp_path_factory.mktemp("wheel")
  pip("wheel", "--no-build-isolation", "--wheel-dir", folder, source)
  (path,) = folder.glob("*.whl")
  return path


@pytest.fixture(scope="session")
def installed(wheel, tmp_path_factory):
  target = tmp_path_factory.mktemp("installed")
  pip("install", "--target", target, wheel)
  return target


def pip(command: str, *words: object) -> None:
  quiet = ("--quiet", "--no-deps", "--no-index")
  ends_well("-m", "pip", command, *quiet, *words, cwd=ROOT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
  """A user's: images with embeddings of 40 rows, and a config of them."""
  place = tmp_path_factory.mktemp("user")
  rng = np.random.default_rng(0)
  np.savez(
    place / "images.npz",
    image=rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8),
    embedding=rng.normal(size=(40, 8)).astype(np.float32),
    label=np.arange(40) % 4,
    class_names=np.array(["a", "b", "c", "d"]),
  )
  (place / "job.py").write_text(CONFIG)
  return place


def ends_well(
  *words: object, cwd: pathlib.Path, path: pathlib.Path = ROOT
) -> str:
  """What Python prints in a folder, with an installation behind it."""
  done = subprocess.run(
    [sys.executable, *map(str, words)],
    cwd=cwd,
    capture_output=True,
    text=True,
    timeout=300,
    env=os.environ
    | {"PYTHONPATH": str(path), "ONESHOT_DP_LEDGER_DIR": f"{cwd}/ledgers"},
  )
  assert done.returncode == 0, done.stderr
  return done.stdout
