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
  "tests/extract/cache/readers_test.py",
  "tests/extract/job/job_test.py",
  "tests/extract/sources/tables_test.py",
  "tests/extract/sources/tfds_test.py",
  "tests/linear_dp/noise_test.py",
  "tests/linear_dp/private_sums_test.py",
  "tests/linear_dp/heads/one_step_test.py",
  "tests/pipeline/cli_test.py",
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
  parser.add_argument("--oldest", action="store_true")
  parser.add_argument("--newest", action="store_true")
  parser.add_argument("--python", default=sys.executable)
  parser.add_argument("--uv", default="uv")
  parser.add_argument("--workers", default="2")
  options = parser.parse_args()
  chosen = [age for age in RESOLUTIONS if getattr(options, age)]
  if not chosen:
    parser.error("which versions: --oldest, --newest or both")
  if shutil.which(options.uv) is None:
    parser.error(f"--uv {options.uv}: no such command; pip install uv")
  with tempfile.TemporaryDirectory() as folder:
    reports = [
      try_versions(age, options, pathlib.Path(folder) / age) for age in chosen
    ]
  print("\n".join(["", *reports]))
  return int(any("FAILED" in report for report in reports))


def try_versions(
  age: str, options: argparse.Namespace, folder: pathlib.Path
) -> str:
  """The line that says which versions ran SUITE, and how that ended."""
  python = folder / "venv" / "bin" / "python"
  install(age, options, python)
  versions = installed(options.uv, python)
  print(f"\n== {age}: {versions}", flush=True)
  alone = folder / "alone"
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


def install(
  age: str, options: argparse.Namespace, python: pathlib.Path
) -> None:
  """Makes the environment: the extra `test`, then the wheel."""
  venv = python.parents[1]
  uv(options.uv, "venv", "--python", options.python, venv)
  # No test of SUITE asks the TPU's compiler, and with it installed every
  # process would look for a TPU.
  overrides = venv / "overrides.txt"
  overrides.write_text("libtpu; sys_platform == 'no TPU'\n")
  pip_install = ("pip", "install", "--python", python)
  uv(
    options.uv,
    *pip_install,
    *("--resolution", RESOLUTIONS[age], "--overrides", overrides),
    *("--requirements", ROOT / "pyproject.toml", "--extra", "test"),
  )
  uv(options.uv, "build", "--wheel", "--out-dir", venv / "wheels", ROOT)
  uv(options.uv, *pip_install, "--no-deps", *(venv / "wheels").glob("*.whl"))
  uv(options.uv, "pip", "check", "--python", python)


def installed(command: str, python: pathlib.Path) -> str:
  """Python's version, and those of the dependencies of pyproject.toml."""
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  wanted = {need.split(">=")[0] for need in project["dependencies"]}
  frozen = uv(command, "pip", "freeze", "--python", python).splitlines()
  version = subprocess.run(
    [python, "--version"], check=True, capture_output=True, text=True
  ).stdout.strip()
  pins = [line.replace("==", " ") for line in frozen]
  ours = [pin for pin in pins if pin.split()[0] in wanted]
  return ", ".join([version, *ours])


def uv(command: str, *arguments: str | pathlib.Path) -> str:
  """What uv prints; where it fails, its complaint ends the script."""
  ended = subprocess.run(
    [command, "--quiet", *arguments], capture_output=True, text=True
  )
  if ended.returncode:
    sys.exit(f"uv {' '.join(map(str, arguments))}:\n{ended.stderr}")
  return ended.stdout


if __name__ == "__main__":
  sys.exit(main())
