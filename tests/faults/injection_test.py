"""A sample of what `make fuzz` tries: see injection.py."""

import os
import re
import subprocess
import sys

import pytest

from tests.faults import injection
from tests.pipeline.command_line import ROOT

POINTS = 3
"""Points of each command."""


@pytest.mark.slow
def test_faults_of_the_disk_break_no_promise(tmp_path):
  if not injection.compiler():
    pytest.skip("needs a C compiler, for a library that makes calls fail")
  words = ["-m", "tests.faults.injection", "--points", str(POINTS)]
  process = subprocess.run(
    [sys.executable, *words],
    env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    capture_output=True,
    text=True,
    check=False,
    timeout=200,
  )
  print(process.stdout)
  assert process.returncode == 0, process.stdout + process.stderr
  found = re.search(r"all: (\d+) points, 0 broken promises", process.stdout)
  assert found
  assert int(found[1]) == 10 * POINTS
