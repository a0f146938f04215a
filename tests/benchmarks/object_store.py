"""The exact sum from an object store, against reading its bytes and no more.

    python tests/benchmarks/object_store.py [--rows 131072]

Starts versitygw on the loopback. Raw bandwidth is that of obstore alone: the
same ranges of the same objects over as many connections, thrown away. First
behind a proxy that sends as fast as a network of --megabytes-per-second, then
without one, where server, client and sum share the cores of this machine.
"""

import argparse
import concurrent.futures
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
import obstore
from obstore.store import S3Store

from oneshot_dp.extract.storage import fetch_ahead
from oneshot_dp.extract.storage.objects import object_store
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import exact_clipped_sum
from tests.benchmarks.stage2 import synthetic_cache
from tests.extract.storage.object_servers import (
  ACCESS,
  BUCKET,
  SECRET,
  Proxy,
  server,
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--rows", type=int, default=131_072)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument("--megabytes-per-second", type=float, default=100)
  args = parser.parse_args()
  os.environ |= {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
  }
  with (
    tempfile.TemporaryDirectory() as folder,
    server("s3", pathlib.Path(folder)) as port,
    Proxy("s3", port) as proxy,
  ):
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    each = 1e6 * args.megabytes_per_second / fetch_ahead._CONNECTIONS
    proxy.bytes_per_second = each
    for name, url in (
      (f"{args.megabytes_per_second:.0f} MB/s", proxy.url),
      ("loopback", f"http://127.0.0.1:{port}"),
    ):
      os.environ["AWS_ENDPOINT_URL_S3"] = url
      object_store.cache_clear()
      print(f"{name}, {os.cpu_count()} cores")
      measure(args.rows, args.dim, args.repeats)
    proxy.shutdown()


def measure(rows: int, dim: int, repeats: int) -> None:
  cache = synthetic_cache(f"s3://{BUCKET}/cache", rows, dim, 1000)
  grid = ClippedGradientGrid(num_classes=1000, feature_dim=dim)
  raw_store = S3Store(
    BUCKET, prefix="cache", client_options={"allow_http": True}
  )
  step = fetch_ahead._RANGE_BYTES
  ranges = [
    (shard.file, start, min(start + step, shard.bytes))
    for shard in cache.shards
    for start in range(0, shard.bytes, step)
  ]

  def get(of: tuple[str, int, int]) -> int:
    name, start, end = of
    return len(obstore.get_range(raw_store, name, start=start, end=end))

  def raw() -> None:
    with concurrent.futures.ThreadPoolExecutor(fetch_ahead._CONNECTIONS) as p:
      sum(p.map(get, ranges))

  def read() -> None:
    for block in cache.blocks():
      block.embedding.shape  # noqa: B018

  def exact() -> None:
    exact_clipped_sum(cache.blocks(), grid, num_examples=rows)

  exact()  # compiles
  size = sum(shard.bytes for shard in cache.shards) / 1e9
  times = np.array(
    [[_seconds(f) for f in (raw, read, exact)] for _ in range(repeats)]
  )
  for name, best in zip(
    ("raw ranged GETs", "blocks", "exact sum"), times.min(axis=0), strict=True
  ):
    print(f"{name:16} {best:6.2f} s  {size / best:5.2f} GB/s")
  best = times[:, 0].min() / times[:, 2].min()
  pairs = np.median(times[:, 0] / times[:, 2])
  print(f"exact sum / raw bandwidth: best {best:.2f}, median pair {pairs:.2f}")


def _seconds(work: Callable[[], None]) -> float:
  start = time.perf_counter()
  work()
  return time.perf_counter() - start


if __name__ == "__main__":
  main()
