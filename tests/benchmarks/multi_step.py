"""Steps of a multi-step head on rows that do not fit in memory.

    python tests/benchmarks/multi_step.py [--rows 131072] [--steps 10]

The cache is read again for every step. Prints the time of a step over that of
the two float64 GEMMs within it, over that of reading, and what a quarter of the
rows takes of memory; absolute times are of this machine at this moment.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from dp_accounting import NeighboringRelation

from oneshot_dp.configs.head_config import StepsConfig
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.heads.multi_step import training as multi_step
from oneshot_dp.linear_dp.heads.multi_step.rule import make_rule
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.unit_norm_rows import ROWS_PER_DEVICE, SecretRows
from tests.benchmarks.stage2 import synthetic_cache, timed


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--rows", type=int, default=131_072)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--classes", type=int, default=1000)
  parser.add_argument("--steps", type=int, default=10)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    peaks = []
    for rows in (args.rows // 4, args.rows):
      out = Path(temporary) / str(rows)
      synthetic_cache(out, rows, args.dim, args.classes)
      # A process each: what one took is not given back.
      with multiprocessing.get_context("spawn").Pool(1) as pool:
        peaks.append(pool.apply(measure, (out, args.steps)))
    print(
      f"peak resident memory {peaks[1]:.2f} GB,"
      f" {peaks[1] / peaks[0]:.2f} times that of a quarter of the rows"
    )


def measure(path: Path, steps: int) -> float:
  """Trains a head; returns the most memory that it took, in GB."""
  cache = open_cache(path)
  n, info = len(cache), cache.info
  rows = SecretRows(
    cache.blocks,
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    num_examples=n,
    resident_bytes=0,
  )
  rule = make_rule(
    StepsConfig(epochs=steps),
    num_examples=n,
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    noise_multiplier=1.0,
  )
  print(
    f"n = {n:,}, d = {info.feature_dim}, K = {info.num_classes},"
    f" {info.embedding_dtype}, {os.cpu_count()} cores, {steps} steps"
  )
  ends = [time.perf_counter()]
  multi_step.train(
    rows,
    rule,
    NeighboringRelation.REPLACE_SPECIAL,
    NoiseSource(),
    lambda _: ends.append(time.perf_counter()),
  )
  took = np.diff(ends)[1:].mean()  # the first one compiles
  gemms, reading = (
    n / ROWS_PER_DEVICE * two_gemms(cache),
    timed(lambda: read(cache)),
  )
  print(
    f"  a step takes {took:.1f} s: {took / gemms:.2f} times its GEMMs"
    f" ({gemms:.1f} s), {took / reading:.1f} times the reading"
    f" ({reading:.1f} s)"
  )
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def two_gemms(cache: FeatureCache) -> float:
  """Seconds of the products of one chunk: logits, and gradient."""
  shape = (ROWS_PER_DEVICE, cache.info.feature_dim)
  with jax.enable_x64(True):
    z = jax.numpy.ones(shape, "float64")
    w = jax.numpy.ones((shape[1], cache.info.num_classes), "float64")
    both = jax.jit(lambda z, w: z.T @ (z @ w))
    jax.block_until_ready(both(z, w))
    return timed(lambda: jax.block_until_ready(both(z, w)), repeats=3)


def read(cache: FeatureCache) -> None:
  """Reads, and does nothing."""
  for block in cache.blocks():
    block.embedding.shape  # noqa: B018


if __name__ == "__main__":
  main()
