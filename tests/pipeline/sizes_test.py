"""The largest sizes that are promised, within the memory that is announced."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.runs.resources import memory_needed
from tests.pipeline.command_line import fails, start, succeeds
from tests.sample_caches import write_rows

ROWS = int(os.environ.get("ONESHOT_DP_ROWS", "300000"))
_PEAK = """
import atexit, pathlib, re
said = pathlib.Path("/proc/self/status").read_text
atexit.register(lambda: print(re.search("VmHWM:(.*) kB", said())[1]))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
  ("n", "d", "num_classes", "head"),
  [
    (ROWS, 8, 2, "lamb"),
    (2500, 16_384, 2, "lamb"),
    (300, 16_384, 2, "auto"),
    (300, 8, 21_843, "auto"),
  ],
)
def test_large_sizes_train(capsys, place, n, d, num_classes, head):
  rng = np.random.default_rng(0)
  rows = rng.standard_normal((n, d), np.float32), rng.integers(0, 2, n)
  write_rows(Path("c"), *rows, num_classes=num_classes, shard_rows=2048)
  words = place("train --cache c --epsilon 1 --delta 1e-8 --out head --head")
  process = start([*words, head], first=_PEAK, XLA_FLAGS="")  # one device
  out, err = process.communicate(timeout=300)
  assert process.returncode == 0, err
  needed = memory_needed(
    head,
    n=n,
    feature_dim=d,
    num_classes=num_classes,
    privacy_unit="example",
    shard_rows=min(n, 2048),
  )
  assert 1024 * int(out.split()[-1]) < needed
  assert "match a charge" in succeeds(capsys, "verify", "head")[0]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["lamb", "auto"])
@pytest.mark.parametrize(("n", "d", "value"), [(1, 1, 1.0), (3, 9, 1.0)])
def test_the_least_and_nearly_the_same_train(capsys, place, n, d, value, head):
  rows = np.full((n, d), value, np.float32)
  rows[0, 0] = np.nextafter(rows[0, 0], np.float32(2))
  write_rows(Path("c"), rows, np.arange(n) % 2, num_classes=2)
  words = f"train --cache c --epsilon 1 --delta 1e-2 --out h --head {head}"
  succeeds(capsys, *place(words))
  assert np.isfinite(read_head(Path("h")).head.kernel).all()
  assert "match a charge" in succeeds(capsys, "verify", "h")[0]


@pytest.mark.parametrize("value", [0.0, 1e-42])  # which devices take for zero
def test_train_on_rows_of_zeros_alone_is_refused_before_the_charge(
  capsys, place, value
):
  rows = np.full((3, 9), value, np.float32)
  write_rows(Path("c"), rows, np.arange(3) % 2, num_classes=2)
  words = "train --cache c --epsilon 1 --delta 1e-2 --out h --head lamb"

  message = fails(capsys, *place(words))

  assert "all embeddings are zeros" in message
  assert not Path("h").exists()


def test_train_on_equal_rows_alone_is_refused_before_the_charge(capsys, place):
  rows = np.ones((3, 9), np.float32)
  write_rows(Path("c"), rows, np.arange(3) % 2, num_classes=2)
  words = "train --cache c --epsilon 1 --delta 1e-2 --out h --head lamb"

  message = fails(capsys, *place(words))

  assert "all embeddings are the same" in message
  assert not Path("h").exists()


def test_what_is_no_row_is_refused(capsys, place):
  words = "import x.npz --out c --dataset-name x --split train --num-classes 1"
  for value, n, said in (
    (np.inf, 3, "an embedding that is not finite"),
    (np.nan, 3, "an embedding that is not finite"),
    (3e38, 3, "an embedding that overflows float32"),
    (1.0, 0, "has 0 of 'embedding'"),
  ):
    rows = {"embedding": np.full((n, 9), value, np.float32)}
    np.savez("x.npz", label=np.zeros(n, int), **rows)
    assert said in fails(capsys, *place(words))
  assert not Path("c").exists()
