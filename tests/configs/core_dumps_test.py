"""What a crash of a program that uses the library leaves behind."""

import subprocess
import sys

_PROGRAM = """
import ctypes, resource
import oneshot_dp

oneshot_dp.disable_core_dumps()
print(resource.getrlimit(resource.RLIMIT_CORE)[0])
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))  # PR_GET_DUMPABLE
print(len(open("/proc/self/status").read()) > 0)  # it can still read itself
"""


def test_a_program_that_asks_for_it_leaves_no_memory_to_any_core_pattern():
  run = subprocess.run(
    [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
  )
  assert run.stdout.split() == ["0", "0", "True"]
