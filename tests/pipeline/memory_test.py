"""What training is said to need is what a process takes, from public facts."""

import os
import subprocess
import sys

import pytest

from oneshot_dp.pipeline.runs.resources import memory_needed

GIB = 2.0**30


@pytest.mark.parametrize(
  ("head", "n", "feature_dim", "num_classes", "privacy_unit", "least", "most"),
  [
    ("lamb", 10**6, 64, 10, "example", 0.5, 0.6),
    ("lamb", 10**9, 64, 10, "example", 15, 17),  # ids of all, keys of some
    ("auto", 10**3, 64, 10, "example", 0, 0.6),
    ("auto", 10**3, 16_384, 10, "example", 15, 30),
    ("lamb", 10**3, 16_384, 10, "example", 0, 0.5),
    ("lamb", 10**3, 2048, 21_843, "example", 2, 5),
    ("auto", 10**3, 2048, 21_843, "example", 4, 8),
    ("auto", 10**6, 768, 10, "example", 3, 5),
    ("auto", 10**9, 768, 10, "example", 31, 35),  # rows are not kept
    ("lamb", 10**6, 768, 10, "patient", 6, 15),
  ],
)
def test_memory_needed_grows_with_weights_moments_and_kept_rows(
  head, n, feature_dim, num_classes, privacy_unit, least, most
):
  needed = memory_needed(
    head,
    n=n,
    feature_dim=feature_dim,
    num_classes=num_classes,
    privacy_unit=privacy_unit,
  )
  assert least < needed / GIB < most


def test_memory_needed_with_shards_counts_those_that_are_read_ahead():
  needed = memory_needed(
    "lamb",
    n=1,
    feature_dim=16_384,
    num_classes=2,
    privacy_unit="example",
    shard_rows=2048,
  )
  assert 3 < needed / GIB < 6


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
  ("head", "n", "feature_dim", "num_classes", "epsilon"),
  [("auto", 1000, 1200, 2, 20.0), ("lamb", 1000, 400, 5000, 1.0)],
)
def test_memory_needed_is_what_a_process_takes(
  head, n, feature_dim, num_classes, epsilon
):
  code = f"""
import re
import numpy as np
import oneshot_dp
rng = np.random.default_rng(0)
head = oneshot_dp.train_head(
  rng.standard_normal(({n}, {feature_dim}), np.float32),
  rng.integers(0, 2, {n}),
  num_classes={num_classes}, head={head!r}, epsilon={epsilon}, delta=1e-6)
print(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""
  process = subprocess.run(
    [sys.executable, "-c", code],
    env={**os.environ, "XLA_FLAGS": ""},  # one device
    check=True,
    capture_output=True,
    text=True,
  )
  taken = 1024 * int(process.stdout)
  needed = memory_needed(
    head,
    n=n,
    feature_dim=feature_dim,
    num_classes=num_classes,
    privacy_unit="example",
  )
  assert 0.5 * needed < taken < 1.1 * needed
