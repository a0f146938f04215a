"""Job servers that a runner starts end with the command that started them."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def is_running(pid: int) -> bool:
  with contextlib.suppress(OSError):
    state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    return not state.startswith("Z")
  return False


@pytest.mark.slow
@pytest.mark.parametrize(
  "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
)
def test_a_command_stopped_while_its_server_starts_leaves_none(number):
  with subprocess.Popen(
    [sys.executable, "-m", "tests.extract.job.slow_server"],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  ) as command:
    assert command.stdout is not None
    server = int(command.stdout.readline())
    assert is_running(server)
    time.sleep(0.3)  # It is looked for at short intervals.
    command.send_signal(number)
    command.wait(60)
  try:
    deadline = time.monotonic() + 10
    while is_running(server) and time.monotonic() < deadline:
      time.sleep(0.05)
    assert not is_running(server)
  finally:
    if is_running(server):
      os.kill(server, signal.SIGKILL)
