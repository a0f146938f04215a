"""Moments and gradient steps of heads, against plain GEMMs.

    python tests/benchmarks/whitened.py [--rows 65536] [--dim 1280]

Prints ratios measured in one run, turn by turn; absolute times are of this
machine at this moment.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np

from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.class_moments import class_moments
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.gradient_sum import clipped_gradient
from oneshot_dp.linear_dp.statistics.joint_release import Releases

_BLOCK_ROWS = 256


@dataclasses.dataclass(frozen=True)
class Block:
  """A RowBlock."""

  embedding: np.ndarray
  embedding_norm: np.ndarray
  label: np.ndarray
  example_id: np.ndarray
  unit_id: None = None


def blocks(
  embedding: np.ndarray, norm: np.ndarray, label: np.ndarray
) -> Iterator[Block]:
  """As a cache reader would hand them out."""
  for start in range(0, len(label), _BLOCK_ROWS):
    part = slice(start, start + _BLOCK_ROWS)
    ids = np.arange(len(label))[part]
    yield Block(embedding[part], norm[part], label[part], ids)


def seconds(work: Callable[[], object]) -> float:
  """The time of one call."""
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


def main() -> None:
  """Times passes for the moments and one step, and the GEMMs within them."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--rows", type=int, default=65536)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--classes", type=int, default=1000)
  parser.add_argument("--turns", type=int, default=3)
  given = parser.parse_args()
  n, d, num_classes = given.rows, given.dim, given.classes
  rng = np.random.default_rng(0)
  embedding = rng.standard_normal((n, d), np.float32).astype(np.float16)
  norm = np.linalg.norm(embedding.astype(np.float32), axis=1)
  label = rng.integers(num_classes, size=n).astype(np.int32)
  rows = SecretRows(
    lambda: blocks(embedding, norm, label),
    feature_dim=d,
    num_classes=num_classes,
    num_examples=n,
  )
  wide = embedding.astype(np.float64)
  other = wide.copy()  # numpy computes half of x.T @ x
  kernel = rng.standard_normal((d, num_classes)) / d
  matrix = rng.standard_normal((d, d))
  released_map = ReleasedMap.of(matrix)
  print(
    f"n {n:,}, d {d:,}, K {num_classes:,}, float16 rows, float64 products,"
    f" {os.cpu_count()} cores, {jax.device_count()} {jax.devices()[0].platform}"
  )

  def step() -> None:
    clipped_gradient(rows, released_map, kernel, 0.15)

  def products() -> None:
    residual = (wide @ matrix) @ kernel
    _ = wide.T @ residual

  for name, ours, plain in (
    (
      "moment and class sums / GEMM",
      lambda: class_moments(rows),
      lambda: wide.T @ other,
    ),
    ("gradient step / its three GEMMs", step, products),
  ):
    ours()  # compiles, and reads the rows
    ratios = [seconds(ours) / seconds(plain) for _ in range(given.turns)]
    turns = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{name}: median {statistics.median(ratios):.2f} of {turns}")
  releases = Releases(class_moments(rows), NoiseSource())
  noise = seconds(lambda: releases.extend(1e7))
  print(f"noise on moment and class sums, once: {noise:.2f} s")


if __name__ == "__main__":
  main()
