"""Stage 2 at ImageNet size, as ratios of one run.

    python tests/benchmarks/stage2.py [--rows 1281167]

The exact class sum from cache files over reading the same rows; the noise and
step of a head; a step of `auto` over its products in float64, and one of the
same images in units of 30 over one of images alone.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.extract.cache.write import write_cache
from oneshot_dp.linear_dp import statistics
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows, rows_of
from oneshot_dp.pipeline.runs.cache_roles import data_of

_POOL_ROWS = 8192
_REPEATS = 5
_ROWS_OF_A_UNIT = 30
Work = Callable[[], None]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--rows", type=int, default=1_281_167)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--classes", type=int, default=1000)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    out = Path(temporary) / "cache"
    class_sums(synthetic_cache(out, args.rows, args.dim, args.classes))
  for n, dim, classes in ((50_000, 192, 10), (20_000, 768, 100)):
    step_of_auto(n, dim, classes)
    step_with_units(n, dim, classes)


def synthetic_cache(
  out: Path, rows: int, dim: int, classes: int
) -> FeatureCache:
  """A float16 cache of random rows."""
  info = CacheInfo(
    dataset="synthetic",
    split="train",
    source_num_examples=rows,
    feature_dim=dim,
    class_names=tuple(f"class {i}" for i in range(classes)),
    backbone={"name": "synthetic"},
    embedding_dtype="float16",
  )
  return write_cache(out, info, synthetic_blocks(rows, dim, classes))


def synthetic_blocks(
  rows: int, dim: int, classes: int
) -> Iterator[dict[str, np.ndarray]]:
  """Random float16 rows and labels, some thousands at a time."""
  rng = np.random.default_rng(0)
  pool = rng.standard_normal((_POOL_ROWS, dim), np.float32).astype(np.float16)
  for start in range(0, rows, _POOL_ROWS):
    size = min(_POOL_ROWS, rows - start)
    # Rows of a cache differ.
    embedding = np.roll(pool, start // _POOL_ROWS, axis=1)[:size]
    label = rng.integers(classes, size=size, dtype=np.int32)
    yield {"embedding": embedding, "label": label}


def class_sums(cache: FeatureCache) -> None:
  info = cache.info
  data = data_of(cache)

  def read() -> None:
    for block in cache.blocks():
      block["embedding"].shape  # noqa: B018  (read and do nothing)

  def summed() -> None:
    release_class_sums(data)

  timed(summed)  # compiles, and fills the page cache
  # Alternating, so that a noisy neighbour hits both alike.
  pairs = [(timed(read), timed(summed)) for _ in range(_REPEATS)]
  reads, sums = map(min, zip(*pairs, strict=True))
  size = cache.n * info.feature_dim * 2
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
  print(
    f"class sums of {cache.n:,} x {info.feature_dim}, K = {info.num_classes}:"
    f" {sums:.2f} s; to read and do nothing {reads:.2f} s"
    f" ({size / reads / 1e9:.2f} GB/s); ratio best {sums / reads:.2f}, median"
    f" pair {np.median([s / r for r, s in pairs]):.2f}; {peak:.2f} GB at most"
  )
  rows = rows_of(data, max_inverse_norm=1.0, weight_norm_order=2)
  PrivateSums(None, 0.0).release(
    "s", rows, statistics.class_sums, mu_squared=1.0
  )

  def noise() -> None:  # rows remember their sum
    sums = PrivateSums(NoiseSource(), 1.0)
    sums.release("s", rows, statistics.class_sums, mu_squared=1.0)

  print(f"noise of a head {min(timed(noise) for _ in range(3)):.2f} s")


def release_class_sums(data: PrivateDataset) -> None:
  rows = rows_of(data, max_inverse_norm=1.0, weight_norm_order=2)
  PrivateSums(None, 0.0).release(
    "s", rows, statistics.class_sums, mu_squared=1.0
  )


def step_of_auto(n: int, dim: int, classes: int) -> None:
  rng = np.random.default_rng(0)
  x = rng.standard_normal((n, dim)).astype(np.float16)
  data = dataset_from_arrays(
    x, rng.integers(0, classes, n), num_classes=classes
  )
  gradient, bare = step_and_products(data)
  bare(), gradient()
  pairs = [(timed(bare), timed(gradient)) for _ in range(3 * _REPEATS)]
  products, steps = map(min, zip(*pairs, strict=True))
  print(
    f"a step of auto, {n:,} x {dim}, K = {classes}: {1e3 * steps:.0f} ms; its"
    f" two products in float64 {1e3 * products:.0f} ms; ratio best"
    f" {steps / products:.2f}"
  )


def step_and_products(data: PrivateDataset) -> tuple[Work, Work]:
  """A step of `auto` over rows in memory, and its two products alone."""
  dim = data.feature_dim
  classes = data.num_classes
  rng = np.random.default_rng(0)
  rows = rows_of(data, keep=True)
  kernel, step = statistics.integer_kernel(rng.standard_normal((dim, classes)))
  with jax.enable_x64(True):
    chunks = [
      (c.row.astype(jnp.float64), jnp.ones((len(c.label), classes)))
      for c in rows.chunks()
    ]
    # As XLA's CPU backend does them best.
    product = jax.jit(lambda z, r, k: (z @ k, r.T @ z))
    given = jnp.asarray(kernel)

  def bare() -> None:
    with jax.enable_x64(True):
      jax.block_until_ready([product(*chunk, given) for chunk in chunks])

  def gradient() -> None:
    release_gradient(rows, (kernel, step, 0.03))

  return gradient, bare


def step_with_units(n: int, dim: int, classes: int) -> None:
  """A step of the same images, each alone or in units of 30 mixed classes."""
  rng = np.random.default_rng(0)
  x = rng.standard_normal((n, dim)).astype(np.float16)
  label = rng.integers(0, classes, n)
  kernel, step = statistics.integer_kernel(rng.standard_normal((dim, classes)))
  public = (kernel, step, 0.03)
  rows_by_unit = []
  for unit_ids in (None, np.arange(n) // _ROWS_OF_A_UNIT):
    data = dataset_from_arrays(x, label, num_classes=classes, unit_ids=unit_ids)
    rows = rows_of(data, keep=True)
    release_gradient(rows, public)  # reads, compiles
    rows_by_unit.append(rows)
  alone, with_units = rows_by_unit
  # A unit's rows of one class are one row of the sum.
  summed = 0
  for chunk in with_units.chunks():
    summed += int(np.count_nonzero(chunk.weight))

  # Alternating, so that a noisy neighbor hits both alike.
  times_alone = []
  times_with_units = []
  for _ in range(3 * _REPEATS):
    times_alone.append(timed(lambda: release_gradient(alone, public)))
    times_with_units.append(timed(lambda: release_gradient(with_units, public)))
  ratio = min(times_with_units) / min(times_alone)
  print(
    f"a step of auto, {n:,} x {dim}, K = {classes}, in units of"
    f" {_ROWS_OF_A_UNIT}: {1e3 * min(times_with_units):.0f} ms; of images alone"
    f" {1e3 * min(times_alone):.0f} ms; ratio best {ratio:.2f}, per row of"
    f" the sum {ratio * n / summed:.2f}"
  )


def release_gradient(rows: Rows, public: tuple[Any, ...]) -> None:
  PrivateSums(None, 0.0).release(
    "g",
    rows,
    statistics.residual,
    mu_squared=1.0,
    public=public,
    cache=False,
  )


def timed(work: Work) -> float:
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


if __name__ == "__main__":
  main()
