"""Whether the oldest and the newest dependencies of pyproject.toml work.

  python tests/packaging/versions.py --oldest --newest [--python PYTHON]

For each, a new environment gets the extra `test`, as old or as new as
pyproject.toml allows, and the wheel; SUITE then runs on a copy of the tests
that has nothing beside it, so that what they import is the wheel. It needs uv
and a package index; `make test-versions` brings uv.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).parents[2]

SUITE = (
  "tests/extract/backbones/backbone_test.py",
  "tests/extract/backbones/networks_test.py",
  "tests/extract/cache/readers_test.py",
  "tests/extract/job/job_test.py",
  "tests/extract/sources/tables_test.py",
  "tests/extract/sources/tfds/tfds_source_test.py",
  "tests/linear_dp/noise_test.py",
  "tests/linear_dp/private_sums_test.py",
  "tests/linear_dp/heads/one_step_test.py",
  "tests/pipeline/cli_test.py",
  "tests/pipeline/ledger_caps_test.py",
  "tests/pipeline/ledger_charges_test.py",
  "tests/pipeline/ledger_test.py",
  "tests/pipeline/run_test.py",
)
"""What meets the dependencies: models, files, Beam, noise, the command."""

RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}

# Old releases use what other old releases had deprecated already.
WARNINGS = {"oldest": ["-W", "ignore::DeprecationWarning"], "newest": []}


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  for age in RESOLUTIONS:
    parser.add_argument(
      f"--{age}", dest="ages", action="append_const", const=age
    )
  parser.add_argument("--python", default=sys.executable)
  parser.add_argument("--uv", default="uv")
  parser.add_argument("--workers", default="2")
  options = parser.parse_args()
  if not options.ages:
    parser.error("which versions: --oldest, --newest or both")
  if shutil.which(options.uv) is None:
    parser.error(f"--uv {options.uv}: no such command; pip install uv")
  with tempfile.TemporaryDirectory() as folder:
    reports = [
      try_versions(age, options, pathlib.Path(folder) / age)
      for age in options.ages
    ]
  print("\n".join(["", *reports]))
  return int(any("FAILED" in report for report in reports))


def try_versions(
  age: str, options: argparse.Namespace, folder: pathlib.Path
) -> str:
  """The line that says which versions ran SUITE, and how that ended."""

  def uv(*words: str | pathlib.Path) -> str:
    """What uv prints; where it fails, its complaint ends the script."""
    ended = subprocess.run(
      [options.uv, "--quiet", *words], capture_output=True, text=True
    )
    if ended.returncode:
      sys.exit(f"uv {' '.join(map(str, words))}:\n{ended.stderr}")
    return ended.stdout

  venv = folder / "venv"
  alone = folder / "alone"
  python = venv / "bin" / "python"
  uv("venv", "--python", options.python, venv)
  # No test of SUITE asks the TPU's compiler, and with it installed every
  # process would look for a TPU.
  overrides = venv / "overrides.txt"
  overrides.write_text("libtpu; sys_platform == 'no TPU'\n")
  uv(
    *("pip", "install", "--python", python, "--overrides", overrides),
    *("--resolution", RESOLUTIONS[age], "--extra", "test"),
    *("--requirements", ROOT / "pyproject.toml"),
  )
  uv("build", "--wheel", "--out-dir", venv / "wheels", ROOT)
  (wheel,) = (venv / "wheels").glob("*.whl")
  uv("pip", "install", "--python", python, "--no-deps", wheel)
  uv("pip", "check", "--python", python)
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  wanted = {need.split(">=")[0] for need in project["dependencies"]}
  pins = uv("pip", "freeze", "--python", python).splitlines()
  versions = ", ".join(pin for pin in pins if pin.split("==")[0] in wanted)
  print(f"\n== {age}: {versions}", flush=True)
  cached = shutil.ignore_patterns("__pycache__")
  shutil.copytree(ROOT / "tests", alone / "tests", ignore=cached)
  shutil.copy(ROOT / "pyproject.toml", alone)
  began = time.monotonic()
  ended = subprocess.run(
    [python, "-m", "pytest", "-q", "--tb=short", "-m", "not slow"]
    + ["-p", "no:cacheprovider", "-n", options.workers, "--dist", "worksteal"]
    + WARNINGS[age]
    + list(SUITE),
    cwd=alone,
  )
  verdict = "passed" if ended.returncode == 0 else "FAILED"
  seconds = time.monotonic() - began
  return f"{age} {verdict} in {seconds:.0f} s: {versions}"


if __name__ == "__main__":
  sys.exit(main())
