"""Heads trained with seeded noise on made-up rows, for `seeded_heads.json`.

Run as a program, it prints them as JSON: that is how a test trains them on
another number of devices, or on devices of another kind.
"""

import hashlib
import itertools
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
from typing import Any

import jaxlib
import numpy as np
import scipy

import oneshot_dp

ROOT = pathlib.Path(__file__).parents[2]
NUM_CLASSES = 3
FEATURE_DIM = 6
EPSILONS = (0.5, 2.0, 8.0)
DELTA = 1e-5
SEED = 20
# `auto` whitens 600 rows at the two larger epsilons, and never whitens 60.
MANY_ROWS = 600
FEW_ROWS = 60

CASES: dict[str, dict[str, Any]] = {
  "auto": {"num_rows": MANY_ROWS},
  "auto_few_rows": {"num_rows": FEW_ROWS},
  "auto_balanced": {"num_rows": MANY_ROWS, "balanced": True},
  "auto_units": {"num_rows": MANY_ROWS, "rows_per_unit": 2},
  "auto_start": {"num_rows": MANY_ROWS, "start": True},
  "auto_balanced_units_start": {
    "num_rows": MANY_ROWS,
    "balanced": True,
    "rows_per_unit": 2,
    "start": True,
  },
  "lamb": {"num_rows": MANY_ROWS, "head": "lamb"},
  "lamb_units": {"num_rows": MANY_ROWS, "head": "lamb", "rows_per_unit": 2},
  "adam": {"num_rows": MANY_ROWS, "head": "adam"},
  "momentum": {"num_rows": MANY_ROWS, "head": "momentum"},
  "prototypes": {"num_rows": MANY_ROWS, "head": "prototypes"},
  "least_squares": {"num_rows": MANY_ROWS, "head": "least_squares"},
}


def made_up_rows(num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Embeddings [n, d], labels [n] and the center of each class [K, d]."""
  random = np.random.default_rng(7)
  centers = random.standard_normal((NUM_CLASSES, FEATURE_DIM))
  labels = random.integers(0, NUM_CLASSES, num_rows)
  scatter = random.standard_normal((num_rows, FEATURE_DIM))
  embeddings = (centers[labels] + 0.7 * scatter).astype(np.float32)
  return embeddings, labels, centers


def train_case(
  num_rows: int,
  head: str = "auto",
  balanced: bool = False,
  rows_per_unit: int = 0,
  start: bool = False,
) -> tuple[Any, ...]:
  """The heads of one case, one for each epsilon."""
  embeddings, labels, centers = made_up_rows(num_rows)
  unit_ids = None
  if rows_per_unit:
    unit_ids = np.arange(num_rows) // rows_per_unit
  return oneshot_dp.train_heads(
    embeddings,
    labels,
    num_classes=NUM_CLASSES,
    epsilons=EPSILONS,
    delta=DELTA,
    head=head,  # pyrefly: ignore
    unit_ids=unit_ids,
    balanced=balanced,
    start=centers if start else None,
    source=oneshot_dp.NoiseSource(SEED),
  )


def described(head: Any) -> dict[str, Any]:
  """The bytes of a head as digests and numbers, and its receipt."""
  kernel = np.asarray(head.head.kernel)
  bias = np.asarray(head.head.bias)
  receipt = head.receipt()
  # Nineteen steps are alike: equal neighbors become one release and a count.
  runs = itertools.groupby(receipt["stated"]["releases"])
  receipt["stated"]["releases"] = [
    [release, len(list(run))] for release, run in runs
  ]
  return {
    "dtypes": [str(kernel.dtype), str(bias.dtype)],
    "kernel_sha256": hashlib.sha256(kernel.tobytes()).hexdigest(),
    "bias_sha256": hashlib.sha256(bias.tobytes()).hexdigest(),
    "kernel": kernel.tolist(),
    "bias": bias.tolist(),
    "unit_norm": bool(head.head.unit_norm),
    "receipt": receipt,
  }


def train_all() -> dict[str, dict[str, Any]]:
  """Case → epsilon, as text → the head."""
  trained = {}
  for name, case in CASES.items():
    heads = [described(head) for head in train_case(**case)]
    by_epsilon = {str(e): h for e, h in zip(EPSILONS, heads, strict=True)}
    # As it is read back: tuples are lists.
    trained[name] = json.loads(json.dumps(by_epsilon))
  return trained


def start_training(jax_platform: str) -> subprocess.Popen[str]:
  """Starts a process that trains all heads on one device, and prints them.

  Args:
    jax_platform: "cpu" or "cuda". JAX has no other one in that process, which
      fails where there is no such device.
  """
  # A process of the tests has eight virtual devices, and tells it by this flag.
  flags = re.sub(
    r"--xla_force_host_platform_device_count=\d+",
    "",
    os.environ.get("XLA_FLAGS", ""),
  )
  environment = os.environ | {
    "JAX_PLATFORMS": jax_platform,
    "PYTHONPATH": str(ROOT),
    "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=1",
  }
  return subprocess.Popen(
    [sys.executable, "-m", "tests.golden.seeded_heads"],
    env=environment,
    cwd=ROOT,
    stdout=subprocess.PIPE,
    text=True,
  )


def fingerprint() -> dict[str, str]:
  """What the last bits of floating-point results may depend on."""
  flags = ""
  cpu_info = pathlib.Path("/proc/cpuinfo")
  if cpu_info.exists():
    for line in cpu_info.read_text().splitlines():
      if line.startswith(("flags", "Features")):
        flags = line
        break
  return {
    "machine": platform.machine(),
    "cpu_flags_sha256": hashlib.sha256(flags.encode()).hexdigest(),
    "numpy": np.__version__,
    "scipy": scipy.__version__,
    "jaxlib": jaxlib.__version__,
  }


if __name__ == "__main__":
  print(json.dumps(train_all()))
