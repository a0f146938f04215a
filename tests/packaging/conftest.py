"""The wheel, built and installed once."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
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


def pip(command: str, *arguments: object) -> None:
  said = subprocess.run(
    [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", "--no-index"]
    + [str(word) for word in arguments],
    capture_output=True,
    text=True,
  )
  assert said.returncode == 0, said.stderr
