"""requirements.lock pins what pyproject.toml asks, by hash, from any index."""

import pathlib
import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging import versions

ROOT = pathlib.Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
# Of each package its line and those of its hashes.
PINS = re.findall(r"^([\w.-]+)==([\w.]+)((?:.*\\\n)*.*)", LOCK, re.MULTILINE)
VERSIONS = {canonicalize_name(name): version for name, version, _ in PINS}


def asked():
  """Everything that `make lock` resolves: `gcp` is for users alone."""
  described = tomllib.loads((ROOT / "pyproject.toml").read_text())
  project = described["project"]
  groups = described["dependency-groups"]
  extras = dict(project["optional-dependencies"])
  del extras["gcp"]
  lists = [project["dependencies"], groups["build"], *extras.values()]
  needs = [Requirement(need) for needs in lists for need in needs]
  return [need for need in needs if need.name != project["name"]]


def test_every_dependency_is_pinned_as_asked_with_hashes_from_any_index():
  for need in asked():
    assert need.specifier.contains(VERSIONS[canonicalize_name(need.name)]), need
  assert len(PINS) > 100
  assert [name for name, _, rest in PINS if "--hash=sha256:" not in rest] == []
  assert re.findall(r"^-.*|.*://.*|.* @ .*", LOCK, re.MULTILINE) == []


def test_what_other_versions_are_tried_on_is_there():
  assert [path for path in versions.SUITE if not (ROOT / path).exists()] == []
