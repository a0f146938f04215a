"""The wheel has the packages whole and nothing else, and runs from anywhere."""

import importlib.metadata
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.conftest import FOLDERS, ROOT, ends_well

EXTRAS = {"demo", "gcp", "lint", "plots", "pretrain", "test"}

# `oneshot-dp --help` and the embedded weights, with the repository out of
# reach: -I leaves out the current folder and PYTHONPATH, and what is installed
# for development comes after the wheel.
IN_PLACE = """
import importlib.resources, sys
sys.path.insert(0, sys.argv[1])
import safetensors.numpy
import oneshot_dp.pipeline.cli
weights = importlib.resources.files("oneshot_dp.extract.backbones.vit")
weights = weights / "glyph_vit.safetensors"
assert safetensors.numpy.load(weights.read_bytes())
print(oneshot_dp.pipeline.cli.__file__)
sys.exit(oneshot_dp.pipeline.cli.main(["--help"]))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def distribution(installed):
  (found,) = importlib.metadata.distributions(path=[str(installed)])
  return found


def test_one_package_is_whole_and_nothing_is_beside_it(source, wheel):
  not_packed = {"__pycache__", "pretraining"}
  there = {
    f"oneshot_dp/{path.relative_to(source).as_posix()}"
    for folder in FOLDERS
    for path in (source / folder).rglob("*")
    if path.is_file() and not_packed.isdisjoint(path.parts)
  } | {
    f"oneshot_dp/{name}" for name in ("__init__.py", "__main__.py", "py.typed")
  }
  packed = {
    name
    for name in zipfile.ZipFile(wheel).namelist()
    if not name.startswith("oneshot_dp-0.1.0.dist-info/")
  }
  assert packed == there


def test_metadata(distribution):
  said = distribution.metadata
  assert said["Requires-Python"] == ">=3.11"
  assert said["License-Expression"] == "Apache-2.0"
  assert said["License-File"] == "LICENSE"
  assert set(said.get_all("Provides-Extra")) == EXTRAS
  (command,) = distribution.entry_points
  assert (command.group, command.name) == ("console_scripts", "oneshot-dp")
  assert command.value == "oneshot_dp.pipeline.cli:main"
  license_text = distribution.read_text("licenses/LICENSE")
  assert license_text == (ROOT / "LICENSE").read_text()


def test_pictures_and_digits_are_extras(distribution):
  for extra, brings in {
    "": set(),
    "plots": {"matplotlib", "jinja2"},
    "demo": {"matplotlib", "jinja2", "scikit-learn"},
  }.items():
    names = {
      canonicalize_name(need.name)
      for need in map(Requirement, distribution.requires)
      if need.marker is None or need.marker.evaluate({"extra": extra})
    }
    assert names & {"matplotlib", "jinja2", "scikit-learn"} == brings


def test_it_runs_with_the_repository_out_of_reach(installed, tmp_path):
  said = ends_well("-I", "-c", IN_PLACE, installed, cwd=tmp_path)
  assert said.startswith(str(installed))
  assert "usage: oneshot-dp" in said
