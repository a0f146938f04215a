import re
import subprocess
import sys

import pytest

from tests.pipeline.command_line import ROOT

SECONDS = 4


@pytest.mark.slow
def test_a_cap_holds_for_eight_processes():
  process = subprocess.run(
    [sys.executable, "-m", "tests.faults.ledger_race", str(SECONDS)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  assert (process.returncode, process.stderr) == (0, "")
  found = re.search(r"(\d+) charges, (\d+) refused", process.stdout)
  assert found
  assert int(found[1]) > 10
  assert int(found[2]) > 0
