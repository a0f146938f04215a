"""The largest sizes that are promised, within the memory that is announced."""

import os
import sys

import numpy as np
import pytest

from oneshot_dp.linear_dp.train import memory_needed
from tests.pipeline.command_line import start, succeeds
from tests.sample_caches import write_rows

ROWS = int(os.environ.get("ONESHOT_DP_ROWS", "300000"))
_PEAK = """
import atexit, pathlib, re
said = pathlib.Path("/proc/self/status").read_text
atexit.register(lambda: print(re.search("VmHWM:(.*) kB", said())[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
  ("n", "d", "num_classes", "head"),
  [
    (ROWS, 8, 2, "lamb"),
    (2500, 16_384, 2, "lamb"),
    (300, 16_384, 2, "auto"),
    (300, 8, 21_843, "lamb"),
    (300, 8, 21_843, "auto"),
  ],
)
def test_large_sizes_train(capsys, place, tmp_path, n, d, num_classes, head):
  rng = np.random.default_rng(0)
  rows = rng.standard_normal((n, d), np.float32), rng.integers(0, 2, n)
  of = {"num_classes": num_classes, "shard_rows": 2048}
  write_rows(tmp_path / "c", *rows, **of)
  words = place("train --cache c --epsilon 1 --delta 1e-8 --out head --head")
  # One device, whatever the suite has.
  process = start([*words, head], first=_PEAK, XLA_FLAGS="")
  out, err = process.communicate(timeout=300)
  assert process.returncode == 0, err
  needed = memory_needed(head, n, d, num_classes, "example", 2048)
  assert 1024 * int(out.split()[-1]) < needed
  assert "vouch" in succeeds(capsys, "verify", "head")[0]
