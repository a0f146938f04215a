"""The exact sum on several processes of one machine, against one.

    python tests/benchmarks/hosts.py [--hosts 4] [--rows 200000] [--dir DIR]

Prints the time of a pass over the cache on one process and on so many, each
with a part of the shards, and how much of it the hosts spend on each other: a
sum of K × d int64 over all of them, waiting and wire together. They share the
machine's cores and disk, so that a pass is no faster here: what it costs more
is what other hosts cost. Starting and joining is not in it.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.one_step.clipping import ClippedGradientGrid
from oneshot_dp.linear_dp.one_step.exact_sum import (
  CLIPPED_SUM,
  exact_clipped_sum,
)
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts, JoinedHosts
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.hosts import joined
from tests.benchmarks.stage2 import synthetic_cache

_REPEATS = 5


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--hosts", type=int, default=4)
  parser.add_argument("--rows", type=int, default=200_000)
  parser.add_argument("--dim", type=int, default=1280)
  parser.add_argument("--classes", type=int, default=1000)
  parser.add_argument("--dir", type=Path, help="keep the cache here")
  parser.add_argument("--place", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.place:
    with joined(args.place) as hosts:
      _work(open_cache(args.dir), hosts)
    return
  with tempfile.TemporaryDirectory() as temporary:
    out = args.dir or Path(temporary) / "cache"
    cache = synthetic_cache(out, args.rows, args.dim, args.classes)
    alone, _ = _lead(cache, ALONE)
    together, sums = _launch(cache, args.hosts)
  print(
    f"a pass over {args.rows:,} x {args.dim}, K = {args.classes}: {alone:.2f} s"
    f" on one process, {together:.2f} s on {args.hosts}"
    f" ({together / alone:.2f}x); of it, a sum over them {sums:.2f} s"
    f" (medians of {_REPEATS}; {os.cpu_count()} cores)"
  )


def _launch(cache: FeatureCache, count: int) -> list[float]:
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  words = [sys.executable, __file__, "--dir", str(cache.path), "--place"]
  processes = [
    subprocess.Popen([*words, f"{i}/{count}@{address}"], stdout=subprocess.PIPE)
    for i in range(count)
  ]
  said = [process.communicate()[0] for process in processes]
  return json.loads(said[0].splitlines()[-1])


def _work(cache: FeatureCache, hosts: JoinedHosts) -> None:
  if hosts.index == 0:
    print(json.dumps(_lead(cache, hosts)), flush=True)
    return
  for what, _ in hosts.asked():
    if what == CLIPPED_SUM:
      _pass(cache, hosts)
    else:
      hosts.sum(_zeros(cache))


def _lead(cache: FeatureCache, hosts: Hosts) -> tuple[float, float]:
  def only_sum() -> None:
    hosts.ask("zeros")
    hosts.sum(_zeros(cache))

  return _median(lambda: _pass(cache, hosts)), _median(only_sum)


def _pass(cache: FeatureCache, hosts: Hosts) -> None:
  rows = cache_rows(cache, hosts=hosts)
  grid = ClippedGradientGrid(
    num_classes=rows.num_classes, feature_dim=rows.feature_dim
  )
  exact_clipped_sum(rows.blocks(), grid, num_examples=rows.counted, hosts=hosts)


def _zeros(cache: FeatureCache) -> np.ndarray:
  return np.zeros((cache.info.num_classes, cache.info.feature_dim), np.int64)


def _median(work: Callable[[], None]) -> float:
  work()  # compiles
  times = []
  for _ in range(_REPEATS):
    start = time.perf_counter()
    work()
    times.append(time.perf_counter() - start)
  return float(np.median(times))


if __name__ == "__main__":
  main()
