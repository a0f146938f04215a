"""The image of Beam's workers is made of what is pinned and tested here."""

import importlib
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.cluster.processes import POOL

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "extract" / "Dockerfile").read_text()


def steps() -> list[tuple[str, str]]:
  """Instruction and arguments of each step, as Docker reads them."""
  lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
  joined = re.sub(r" *\\\n *", " ", "\n".join(lines))
  parts = [line.partition(" ") for line in joined.splitlines() if line]
  return [(name, words) for name, _, words in parts]


def test_every_step_is_one_that_docker_has():
  known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL"}
  assert {name for name, _ in steps()} == known
  assert [n for n, _ in steps()][:2] == ["ARG", "FROM"]
  version = importlib.metadata.version("apache-beam")
  assert dict(steps())["ARG"] == f"BEAM={version}"
  assert f"\napache-beam=={version}" in (ROOT / "requirements.lock").read_text()


def copied() -> set[str]:
  """Names at the top of the repository that the image takes."""
  names: set[str] = set()
  for name, words in steps():
    if name == "COPY":
      *sources, _ = words.split()
      names.update(sources)
  return names


def test_the_image_takes_nothing_but_what_the_package_is_made_of():
  """A folder that it is built from may hold private caches and ledgers."""
  assert copied() == {
    *("pyproject.toml", "requirements.lock", "README.md", "LICENSE"),
    *("oneshot_dp", "configs", "extract", "linear_dp", "pipeline"),
  }
  ignored = (ROOT / ".dockerignore").read_text().splitlines()
  rules = [line for line in ignored if line and not line.startswith("#")]
  assert rules[0] == "*"
  allowed = {rule[1:] for rule in rules if rule.startswith("!")}
  assert allowed == copied()


@pytest.mark.slow
def test_what_the_image_takes_is_enough_to_build_the_package(tmp_path):
  source = tmp_path / "source"
  source.mkdir()
  for name in copied():
    path = ROOT / name
    if path.is_dir():
      shutil.copytree(path, source / name, symlinks=True)
    else:
      shutil.copy(path, source)
  words = "wheel --no-deps --no-build-isolation --quiet --wheel-dir"
  subprocess.run(
    [sys.executable, "-m", "pip", *words.split(), str(tmp_path), str(source)],
    check=True,
  )
  (wheel,) = tmp_path.glob("*.whl")
  names = zipfile.ZipFile(wheel).namelist()
  assert "oneshot_dp/extract/job/worker.py" in names
  assert "oneshot_dp/configs/digits.npz" in names


def test_manifest_starts_the_pool_that_is_tested_and_says_it_was_not_applied():
  manifest = (ROOT / "extract" / "flink.yaml").read_text()

  assert "NEVER APPLIED" in manifest
  _, module, flag = POOL
  assert f"command: [python, -m, {module}]" in manifest
  assert f"args: [{flag}]" in manifest
  assert manifest.count("livenessProbe:") == manifest.count("  image: ")


def test_packages_are_installed_as_the_makefile_does(tmp_path):
  make = (ROOT / "Makefile").read_text().replace("$(", "(")
  (run,) = (words for name, words in steps() if name == "RUN")
  for step in run.split(" && "):
    if step.startswith("sed"):
      expression = re.search("'.*'", step)
      assert expression is not None
      assert expression[0] in make
      (tmp_path / "requirements.lock").write_text(
        (ROOT / "requirements.lock").read_text()
      )
      subprocess.run(step, shell=True, cwd=tmp_path, check=True)
      made = (tmp_path / step.split()[-1]).read_text()
      assert made.startswith(("setuptools==", "#"))
      assert "libtpu==" not in made
    else:
      assert step.startswith("pip install --no-cache-dir")
      assert (
        "--require-hashes" in step
        or step.endswith("--no-deps .")
        or (step.endswith("--no-deps --no-build-isolation ."))
      )


def test_the_pool_is_the_one_that_the_cluster_test_runs(capsys):
  (label,) = (words for name, words in steps() if name == "LABEL")
  assert label == f'pool="python {" ".join(POOL)}"'
  _, module, flag = POOL
  with pytest.raises(SystemExit, match="0"):
    importlib.import_module(module).main(["--help"])
  assert flag.partition("=")[0] in capsys.readouterr().out
