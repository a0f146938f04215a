import re
import subprocess
import sys

import pytest

from tests.pipeline.command_line import ROOT

SECONDS = 3


@pytest.mark.slow
def test_a_cap_and_every_charge_hold_for_processes_that_are_killed():
  process = subprocess.run(
    [sys.executable, "-m", "tests.faults.releases", str(SECONDS)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=120,
  )
  # Nobody complained of a ledger on the way.
  assert (process.returncode, process.stderr) == (0, "")
  numbers = re.findall(r"(\d+) (?:kills|charges|heads|refused)", process.stdout)
  kills, charges, heads, refused = map(int, numbers)
  assert kills >= 10
  assert heads >= charges > 10
  assert refused > 0
