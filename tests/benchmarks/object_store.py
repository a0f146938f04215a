"""The exact sum from an object store, against reading its bytes and no more.

    python tests/benchmarks/object_store.py [--rows 524288]

Starts versitygw on the loopback. Raw bandwidth is that of obstore alone: the
same ranges of the same objects over as many connections, thrown away. First
behind a proxy that sends as fast as networks of --megabytes-per-second, then
without one, where server, client and sum share the cores of this machine. The
sum of the same cache on the local disk is taken beside: no store can serve it
faster than the lesser of the two. Nor is there a sum without the SHA-256 of
what is read: where cores are what limits the bandwidth, the time of GETs and of
hashing on all cores, one after the other, is the least that anything can take.
CPU seconds are of this process, without the server.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np
import obstore
from obstore.store import S3Store

from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
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
  parser.add_argument("--rows", type=int, default=524_288)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--repeats", type=int, default=3)
  parser.add_argument(
    "--megabytes-per-second",
    type=float,
    nargs="*",
    default=[125, 312.5],  # 1 and 2.5 Gb/s
  )
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
    for speed in (*args.megabytes_per_second, None):
      proxy.bytes_per_second = (speed or 0) * 1e6 / fetch_ahead._CONNECTIONS
      url = proxy.url if speed else f"http://127.0.0.1:{port}"
      os.environ["AWS_ENDPOINT_URL_S3"] = url
      object_store.cache_clear()
      name = f"{speed:g} MB/s" if speed else "loopback"
      print(f"{name}, {os.cpu_count()} cores")
      measure(pathlib.Path(folder), args.rows, args.dim, args.repeats)
    proxy.shutdown()


def measure(folder: pathlib.Path, rows: int, dim: int, repeats: int) -> None:
  disk = synthetic_cache(folder / "disk", rows, dim, 1000)
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

  def exact(of: FeatureCache) -> None:
    # What was hashed once need not be again: opened anew, it is.
    blocks = open_cache(of.path).blocks()
    exact_clipped_sum(blocks, grid, num_examples=rows)

  def hashed() -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
      list(pool.map(lambda chunk: hashlib.sha256(chunk).digest(), in_memory))

  in_memory = [disk.store.read(shard.file) for shard in disk.shards]
  work = {
    "raw ranged GETs": raw,
    "blocks": read,
    "exact sum": functools.partial(exact, cache),
    "the same from disk": functools.partial(exact, disk),
    "SHA-256 alone": hashed,
  }
  exact(disk)  # compiles
  size = sum(shard.bytes for shard in cache.shards) / 1e9
  times = np.array(
    [[_seconds(f) for f in work.values()] for _ in range(repeats)]
  )
  wall, cpu = np.moveaxis(times, 2, 0)
  for name, best, used in zip(
    work, wall.min(axis=0), cpu.min(axis=0), strict=True
  ):
    print(
      f"{name:18} {best:6.2f} s  {size / best:5.2f} GB/s"
      f"  {used / size:5.2f} CPU s per GB"
    )
  for name, least in (
    ("raw bandwidth", wall[:, 0]),
    ("the lesser of raw and disk", np.maximum(wall[:, 0], wall[:, 3])),
    ("raw, then SHA-256", wall[:, 0] + wall[:, 4]),
  ):
    best = least.min() / wall[:, 2].min()
    pairs = np.median(least / wall[:, 2])
    print(f"exact sum / {name}: best {best:.2f}, median pair {pairs:.2f}")
  limit = wall[:, 0].min() / (wall[:, 0] + wall[:, 4]).min()
  print(f"raw, then SHA-256 / raw bandwidth: {limit:.2f}")


def _seconds(work: Callable[[], None]) -> tuple[float, float]:
  start, cpu = time.perf_counter(), time.process_time()
  work()
  return time.perf_counter() - start, time.process_time() - cpu


if __name__ == "__main__":
  main()
