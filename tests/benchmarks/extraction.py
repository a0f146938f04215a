"""Extraction through Beam against the bare jitted forward pass.

    python tests/benchmarks/extraction.py --images IMAGES.npz --weights W.npz

Prints images/s of the whole job (decode, resize, embed, write; compilation and
loading excluded from both) and of the same compiled function on one batch that
is in memory already, measured in turns in one run, and their ratio. The forward
pass is the floor: nothing can be faster than it.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from oneshot_dp.configs.extract_config import (
  ArraysSource,
  BackboneConfig,
  ExtractConfig,
)
from oneshot_dp.extract.images import preprocess
from oneshot_dp.extract.job.embedder import Embedder
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.job.shard import shared_embedder
from oneshot_dp.extract.sources.open_source import open_source


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--images", required=True, help="npz with image, label")
  parser.add_argument("--weights", required=True)
  parser.add_argument("--backbone", default="vit_ti16")
  parser.add_argument("--split", default="test")
  parser.add_argument("--batch-size", type=int)
  parser.add_argument("--compute-dtype", default="float32")
  parser.add_argument("--repeats", type=int, default=3)
  args = parser.parse_args()
  measure(
    ExtractConfig(
      source=ArraysSource(path=args.images),
      split=args.split,
      backbone=BackboneConfig(
        name=args.backbone,
        weights=args.weights,
        compute_dtype=args.compute_dtype,
      ),
      batch_size=args.batch_size,
    ),
    args.repeats,
  )


def measure(config: ExtractConfig, repeats: int) -> None:
  source = open_source(config.source, config.split)
  embedder = shared_embedder(config)
  preprocessing = embedder.backbone.preprocessing
  batch = np.stack(
    [
      preprocess.prepare(source[i].image, preprocessing)
      for i in range(embedder.batch_size)
    ]
  )
  jax.block_until_ready(embedder(batch))  # compiles
  dtype = embedder.backbone.compute_dtype
  print(
    f"{config.backbone.name} at {preprocessing.image_size} px, {dtype},"
    f" n = {len(source):,}, batch {embedder.batch_size}, {os.cpu_count()}"
    f" cores, {len(jax.local_devices())} {jax.devices()[0].platform} device(s)"
  )
  walls, cpus = [], []
  for _ in range(repeats):
    before = _bare(embedder, batch, len(source))
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as out:
      seconds = run_extraction(config, Path(out) / "cache").seconds
    cpu = (time.process_time() - cpu) / len(source)
    after = _bare(embedder, batch, len(source))
    # Before and after, as the machine's speed drifts.
    bare, bare_cpu = np.mean([before, after], axis=0)
    job = len(source) / seconds
    walls.append(job / bare)
    cpus.append(bare_cpu / cpu)
    print(
      f"bare forward {bare:.1f} images/s ({1e3 * bare_cpu:.2f} ms of CPU each),"
      f" job {job:.1f} images/s ({1e3 * cpu:.2f} ms), ratio {walls[-1]:.3f}"
      f" (by CPU time {cpus[-1]:.3f})"
    )
  print(
    f"median ratio {statistics.median(walls):.3f}, by CPU time"
    f" {statistics.median(cpus):.3f}"
  )


def _bare(
  embedder: Embedder, batch: np.ndarray, images: int
) -> tuple[float, float]:
  """Images/s and CPU seconds per image of the compiled function alone."""
  calls = max(2, images // len(batch) // 2)
  start, cpu = time.perf_counter(), time.process_time()
  previous = embedder(batch)
  for _ in range(calls - 1):
    result = embedder(batch)
    jax.block_until_ready(previous)
    previous = result
  jax.block_until_ready(previous)
  done = calls * len(batch)
  return (
    done / (time.perf_counter() - start),
    (time.process_time() - cpu) / done,
  )


if __name__ == "__main__":
  main()
