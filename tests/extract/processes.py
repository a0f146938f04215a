"""Code in a process of its own."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def python(code: str, *args: object, **environment: str) -> str:
  """What the code prints, from the repository's root."""
  done = subprocess.run(
    [sys.executable, "-c", code, *map(str, args)],
    env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout
