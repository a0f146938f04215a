"""What a head of `auto` takes: passes, time over its products, memory.

    python tests/benchmarks/auto.py [--sizes 20000x768x1000 400000x768x1000]

Each size is a cache on disk and a process of its own. The floor is that of two
float64 products of n x d x K for every step, and one for the moment, at the
rate of such products in the same process, one chunk beside every step, with
both factors as they lie in memory; the noise, the softmax, the map of the rows
and reading them are on top. (A step takes the first of its two in float32, in
half the time.) Where others use the machine, look at the CPU time.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import functools
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.heads.own_noise import GRADIENT_SUM
from oneshot_dp.linear_dp.heads.whitened.training import WhitenedTrainer
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import TrainingRows
from tests.benchmarks.stage2 import synthetic_cache

SIZES = ("50000x192x10", "20000x768x1000", "65536x1280x1000")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--sizes", nargs="*", default=SIZES, metavar="NxDxK")
  for size in parser.parse_args().sizes:
    with (
      tempfile.TemporaryDirectory() as temporary,
      multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
      path = Path(temporary) / "cache"
      pool.apply(synthetic_cache, (path, *map(int, size.split("x"))))
      pool.close()
      with multiprocessing.get_context("spawn").Pool(1) as fresh:
        print(fresh.apply(measure, (path,)), flush=True)


def measure(path: Path) -> str:
  """Trains one head at epsilon 1."""
  cache = open_cache(path)
  n, d, num_classes = len(cache), cache.info.feature_dim, cache.info.num_classes
  passes = []

  def blocks():
    passes.append(1)
    return cache.blocks()

  trainer = WhitenedTrainer(
    TrainingRows(
      blocks=blocks, feature_dim=d, num_classes=num_classes, num_examples=n
    ),
    [HeadConfig(head="whitened")],
  )
  rows = trainer._rows.chunk_rows
  floor = [product(rows, d, num_classes)]
  start, used = time.perf_counter(), time.process_time()
  trainer.read()
  read = time.perf_counter() - start

  def on_release(released):
    if released.name == GRADIENT_SUM:
      floor.append(product(rows, d, num_classes))

  plan = ReleasePlan(epsilons=(1.0,), delta=1e-6, order="independent")
  list(trainer.release(plan, NoiseSource(), lambda *_: None, on_release))
  took, used = time.perf_counter() - start, time.process_time() - used
  chunk, chunk_used = np.sum(floor[1:], axis=0)
  took, used = took - chunk, used - chunk_used
  steps = len(floor) - 1
  products = 2 * steps + 1
  chunks = n / rows / 2
  one, one_used = chunks * chunk / steps, chunks * chunk_used / steps
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
  return (
    f"{n:,} x {d}, K = {num_classes}: {steps + 1} passes over the rows,"
    f" {len(passes)} of them over the cache; {took:.1f} s (moment {read:.1f}"
    f" s), {took / one / products:.2f} times its {products} products of"
    f" {one:.2f} s ({used / one_used / products:.2f} times by CPU time, of"
    f" {one_used:.2f} s); {peak:.2f} GB"
  )


@functools.cache
def factors(rows: int, d: int, num_classes: int) -> tuple[Any, ...]:
  with jax.enable_x64(True):
    z = jnp.ones((rows, d), jnp.float64)
    transposed = jnp.ones((d, rows), jnp.float64)
    w = jnp.ones((d, num_classes), jnp.float64)
    both = jax.jit(lambda z, transposed, w: transposed @ (z @ w))
    jax.block_until_ready(both(z, transposed, w))
  return both, z, transposed, w


def product(rows: int, d: int, num_classes: int) -> tuple[float, float]:
  """Seconds of a chunk's two products in a step, and of CPU time."""
  both, *given = factors(rows, d, num_classes)
  start, used = time.perf_counter(), time.process_time()
  with jax.enable_x64(True):
    jax.block_until_ready(both(*given))
  return time.perf_counter() - start, time.process_time() - used


if __name__ == "__main__":
  main()
