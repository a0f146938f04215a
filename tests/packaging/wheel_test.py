"""The wheel has the packages whole and nothing else, and runs from anywhere.

Beside a user's files, too: a `configs/`, an `extract.py` and more of theirs
end whatever imports them.
"""

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("configs", "extract", "linear_dp", "pipeline")
NOT_OURS = "raise SystemExit('the file of the user was imported')\n"
# The repository is out of reach: what is installed for development comes after
# the wheel. What makes charts and pages warns of nothing, either.
COMMANDS = """
import sys; sys.path.insert(0, installed := sys.argv.pop(1))
import oneshot_dp.pipeline.cli as cli
print(cli.__file__, flush=True)
for line in sys.argv[1:]:
  if status := cli.main(line.split()):
    sys.exit(status)
ours = [m for name, m in sys.modules.items() if name.startswith("oneshot_dp")]
files = [m.__file__ for m in ours if m.__file__]
print("BESIDE IT:", [f for f in files if not f.startswith(installed)])
"""
# What TFDS 4.9.10 does whenever it opens a data set, with protobuf 6.33.
THEIRS = "ignore:label() is deprecated:DeprecationWarning"

pytestmark = pytest.mark.long


def python(*words: object, cwd: pathlib.Path) -> str:
  """What Python prints in a folder; it ends well."""
  done = subprocess.run(
    [sys.executable, *map(str, words)],
    cwd=cwd,
    capture_output=True,
    text=True,
    timeout=300,
    env=os.environ | {"ONESHOT_DP_LEDGER": f"{cwd}/ledger.sqlite"},
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def pip(command: str, *words: object) -> None:
  quiet = ("--quiet", "--no-deps", "--no-index")
  python("-m", "pip", command, *quiet, *words, cwd=ROOT)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
  """A copy of the repository, with what an older build may have left in it."""
  pytest.importorskip("hatchling", reason="the build backend, of the lock")
  copy = tmp_path_factory.mktemp("source")
  cached = shutil.ignore_patterns("__pycache__")
  for folder in (*FOLDERS, "oneshot_dp", "tests"):
    shutil.copytree(ROOT / folder, copy / folder, ignore=cached, symlinks=True)
  for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
    shutil.copy(ROOT / name, copy)
  (copy / "build/lib/configs").mkdir(parents=True)
  (copy / "build/lib/configs/gone.py").write_text("stale\n")
  return copy


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory):
  """The wheel, and where it is installed."""
  folder, target = (tmp_path_factory.mktemp(name) for name in ("wheel", "it"))
  pip("wheel", "--no-build-isolation", "--wheel-dir", folder, source)
  (path,) = folder.glob("*.whl")
  pip("install", "--target", target, path)
  return path, target


@pytest.fixture(scope="module")
def user(tmp_path_factory):
  """A user's folder: features, and files that are called as ours are."""
  place = tmp_path_factory.mktemp("user")
  for name in FOLDERS:
    (place / f"{name}.py").write_text(NOT_OURS)
  for name in FOLDERS[:3]:
    (place / name).mkdir()
    (place / name / "__init__.py").write_text(NOT_OURS)
  label = np.arange(400) % 4
  rows = np.eye(8, dtype=np.float32)[label]
  np.savez(place / "features.npz", embedding=rows, label=label)
  return place


def test_one_package_is_whole_and_nothing_is_beside_it(source, installed):
  names = ["__init__.py", "__main__.py", "py.typed"]
  for folder in FOLDERS:
    for path in (source / folder).rglob("*"):
      if path.is_file() and "__pycache__" not in path.parts:
        names.append(path.relative_to(source).as_posix())
  wheel, target = installed
  packed = zipfile.ZipFile(wheel).namelist()
  assert sorted(n for n in packed if ".dist-info/" not in n) == sorted(
    f"oneshot_dp/{name}" for name in names
  )
  (found,) = importlib.metadata.distributions(path=[str(target)])
  assert found.metadata["License-Expression"] == "Apache-2.0"
  extras = found.metadata.get_all("Provides-Extra") or ()
  assert {*extras} == {"docs", "gcp", "heic", "lint", "sklearn", "test"}
  (command,) = found.entry_points
  assert command.value == "oneshot_dp.__main__:main"
  license_text = found.read_text("licenses/LICENSE")
  assert license_text == (ROOT / "LICENSE").read_text()


def test_the_wheel_alone_runs_beside_a_users_files_and_warns_of_nothing(
  installed, user
):
  said = python(
    *("-W", "error", "-W", THEIRS, "-c", COMMANDS, installed[1]),
    "import features.npz --num-classes 4 --out train",
    "train --cache train --epsilon 1 --head lamb --delta 1e-5 --out head",
    "verify head",
    "budget --cache train",
    "demo",
    cwd=user,
  )
  assert said.startswith(str(installed[1]))
  assert said.endswith("BESIDE IT: []\n")
  for name in "results.csv", "report.html", "accuracy.png":
    assert os.path.getsize(user / "demo" / "results" / name)
