"""What a user calls files and folders is no business of ours.

Beside the user's script lie a `configs/`, an `extract/`, a `linear_dp/`, a
`pipeline.py` and more, and the same once more as the names of files; each ends
whatever imports it.
"""

import pathlib
import sys

import pytest

from oneshot_dp.extract.cache.verify import verify_cache
from tests.packaging.conftest import ROOT, ends_well

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
# As the installed script does, whose folder is its own.
COMMAND = (
  "import sys; from oneshot_dp.pipeline.cli import main; sys.exit(main())"
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def theirs(folder):
  for name in ("configs", "extract", "linear_dp"):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(NOT_OURS)
  for name in ("pipeline", "configs", "extract", "linear_dp", "tests"):
    (folder / f"{name}.py").write_text(NOT_OURS)
  (folder / "script.py").write_text(SCRIPT)


# One of the two ways in which it is installed each: they have the same modules.
def test_a_script(folder):
  said = ends_well("script.py", cwd=folder)
  assert said.startswith(str(ROOT / "oneshot_dp" / "__init__.py"))
  assert "feature_dim=8" in said


def test_the_command_and_the_workers_of_beam(installed, folder):
  """`-c` and Beam's `-m` look first in the folder that they run in."""
  words = "extract job.py --out cache --direct_num_workers=1"
  words += " --direct_running_mode=multi_processing"
  ends_well("-c", COMMAND, *words.split(), cwd=folder, path=installed)
  assert verify_cache(folder / "cache").ok


def test_the_installed_command(folder):
  """The script of the environment, where there is one."""
  script = pathlib.Path(sys.prefix) / "bin" / "oneshot-dp"
  if not script.exists():
    pytest.skip(f"there is no {script}: the package is not installed")
  assert "usage: oneshot-dp" in ends_well(script, "--help", cwd=folder)
