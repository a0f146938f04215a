"""Stage 2 at ImageNet size: the exact sum against reading and doing nothing.

    python tests/benchmarks/stage2.py [--rows 1281167] [--dir DIR]

Prints ratios measured in one run: the exact sum from cache files over reading
the same records, the noise and step of one head in seconds, and the exact sum
over jax_privacy's clipped_grad on the same rows (a subset, in memory). The
floor of the sum is one pass of the cache's bytes through memory.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import clipping as jax_privacy_clipping

from oneshot_dp.extract.cache import shard_writer
from oneshot_dp.extract.cache import writer as cache_writer
from oneshot_dp.extract.cache.checked_rows import Rows
from oneshot_dp.extract.cache.identity import (
  BackboneIdentity,
  CacheIdentity,
  numbered_class_names,
)
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import SecretSum, exact_clipped_sum
from oneshot_dp.linear_dp.one_step.release import release
from oneshot_dp.linear_dp.one_step.step import OneStepOptimizer, one_step

_POOL_ROWS = 8192
_ORACLE_ROWS = 2048
_REPEATS = 5


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--rows", type=int, default=1_281_167)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--classes", type=int, default=1000)
  parser.add_argument("--dir", type=Path, help="keep the cache here")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    out = args.dir or Path(temporary) / "cache"
    cache = synthetic_cache(out, args.rows, args.dim, args.classes)
    measure(cache)


def synthetic_cache(
  out: Path | str, rows: int, dim: int, classes: int
) -> FeatureCache:
  """A float16 cache of `rows` random rows, made once."""
  identity = CacheIdentity(
    dataset="synthetic",
    split="train",
    source_num_examples=rows,
    feature_dim=dim,
    class_names=numbered_class_names(classes),
    num_classes_source="flag",
    backbone=BackboneIdentity(name="synthetic"),
    embedding_dtype="float16",
  )
  if cache_writer.begin(out, identity):
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((_POOL_ROWS, dim), np.float32).astype(np.float16)
    for shard in range(identity.num_shards):
      ids = np.array(identity.shard_range(shard), np.int64)
      batch = Rows(
        embedding=pool[(ids * 31 + shard) % _POOL_ROWS],
        label=rng.integers(classes, size=len(ids)),
        example_id=ids,
      )
      shard_writer.write_shard(out, identity, shard, [batch])
    cache_writer.finish(out, identity)
  return open_cache(out)


def measure(cache: FeatureCache) -> None:
  info = cache.info
  size = sum(shard.bytes for shard in cache.shards)
  print(
    f"n = {len(cache):,}, d = {info.feature_dim}, K = {info.num_classes},"
    f" {info.embedding_dtype}, {size / 1e9:.2f} GB, {os.cpu_count()} cores,"
    f" {len(jax.local_devices())} {jax.devices()[0].platform} device(s)"
  )
  grid = ClippedGradientGrid(
    num_classes=info.num_classes, feature_dim=info.feature_dim
  )

  def read() -> None:
    for block in cache.blocks():
      block.embedding.shape  # noqa: B018  (read and do nothing)

  def sum_cache() -> SecretSum:
    return exact_clipped_sum(cache.blocks(), grid, num_examples=len(cache))

  copy = np.ones(1 << 28, np.uint8)
  timed(sum_cache, repeats=1)  # compiles, and fills the page cache
  # Alternating, so that a noisy neighbour hits both alike.
  pairs = [(timed(read), timed(sum_cache)) for _ in range(_REPEATS)]
  reads, sums = zip(*pairs, strict=True)
  floor = size / (copy.nbytes / timed(copy.copy, repeats=3))
  print(
    f"read and do nothing {min(reads):.2f} s ({size / min(reads) / 1e9:.2f}"
    f" GB/s), exact sum {min(sums):.2f} s; ratio best"
    f" {min(sums) / min(reads):.2f}, median pair"
    f" {np.median([s / r for r, s in pairs]):.2f}; one copy of the bytes"
    f" {floor:.2f} s, so the sum is {min(sums) / floor:.1f}x the floor"
  )
  secret = sum_cache()
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
  print(f"peak resident memory {peak:.2f} GB")

  plan = ReleasePlan(epsilons=(1.0,), delta=1e-6)

  def head() -> None:
    (made,) = release(secret, plan, NoiseSource(), charge=lambda *_: None)
    one_step(made, OneStepOptimizer())

  timed(head, repeats=1)
  print(f"noise and one step of a head {timed(head, repeats=3):.2f} s")
  against_jax_privacy(cache, grid)


def against_jax_privacy(cache: FeatureCache, grid: ClippedGradientGrid) -> None:
  """The same rows through jax_privacy's per-example clipping."""
  blocks = list(_first_rows(cache, _ORACLE_ROWS))
  embedding = np.concatenate([b.embedding for b in blocks]).astype(np.float32)
  label = np.concatenate([b.label for b in blocks])

  def loss(params: dict, x: jax.Array, y: jax.Array) -> jax.Array:
    logits = x @ params["kernel"] + grid.initial_bias
    target = jax.nn.one_hot(y, grid.num_classes)
    return optax.sigmoid_binary_cross_entropy(logits, target).sum()

  clipped = jax.jit(
    jax_privacy_clipping.clipped_grad(
      loss,
      argnums=0,
      batch_argnums=(1, 2),
      l2_clip_norm=grid.l2_clip_norm,
      keep_batch_dim=False,
      microbatch_size=64,
    )
  )
  kernel = {"kernel": jnp.zeros((grid.feature_dim, grid.num_classes))}

  def oracle() -> None:
    jax.block_until_ready(clipped(kernel, embedding, label))

  def exact() -> None:
    exact_clipped_sum(blocks, grid, num_examples=len(label))

  timed(oracle, repeats=1)
  slow, fast = timed(oracle), timed(exact, repeats=_REPEATS)
  print(
    f"jax_privacy clipped_grad (microbatches of 64) on {len(label):,} of the"
    f" rows {slow:.2f} s, exact sum of them {fast:.4f} s: {slow / fast:.0f}x"
  )


def _first_rows(cache: FeatureCache, rows: int) -> Iterator:
  yield from cache.blocks(shard_order=range(-(-rows // 2048)))


def timed(function: Callable[[], object], repeats: int = 1) -> float:
  """Best time of a call, seconds."""
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    function()
    times.append(time.perf_counter() - start)
  return min(times)


if __name__ == "__main__":
  main()
