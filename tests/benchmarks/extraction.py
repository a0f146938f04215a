"""Extraction against the bare jitted forward pass.

    python -m tests.benchmarks.extraction IMAGES.npz --weights W.npz

Prints images/s of the whole job (decode, resize, embed, write; compilation is
excluded from both, and loading, which is timed apart) and of the same compiled
function on one batch that is in memory already, in turns of one run, and their
ratio. The forward pass is the floor: nothing can be faster than it.
"""

import argparse
import os
import statistics
import tempfile
import time

import jax
import numpy as np

from oneshot_dp.configs.extract_config import ExtractConfig, SourceConfig
from oneshot_dp.extract.images import decode_image, resize_and_crop
from oneshot_dp.extract.job.job import run_extraction
from oneshot_dp.extract.job.shard import Embedder, load_embedder
from oneshot_dp.extract.sources.open_source import open_source


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("images", help="a source, as of `oneshot-dp extract`")
  parser.add_argument("--split", default="test")
  parser.add_argument("--backbone", default="vit_ti16")
  parser.add_argument("--weights")
  parser.add_argument("--batch-size", type=int)
  parser.add_argument("--repeats", type=int, default=3)
  asked = parser.parse_args()
  settings = SourceConfig(location=(asked.images,), split=asked.split)
  config = ExtractConfig(
    source=settings,
    backbone=asked.backbone,
    weights=asked.weights,
    batch_size=asked.batch_size,
  )
  source = open_source(settings)
  embedder = load_embedder(config)
  shown_as = embedder.backbone.preprocessing
  size = embedder.batch_size
  batch = np.stack(
    [
      resize_and_crop(decode_image(source[i].image), shown_as)
      for i in range(size)
    ]
  )
  jax.block_until_ready(embedder(batch))  # compiles
  print(
    f"{asked.backbone} at {shown_as.image_size} px, n = {len(source):,}, batch"
    f" {size}, {os.cpu_count()} cores, {jax.devices()}"
  )
  ratios = []
  for _ in range(asked.repeats):
    before = bare(embedder, batch, len(source))
    start = time.perf_counter()
    load_embedder(config)
    loading = time.perf_counter() - start
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
      run_extraction(config, f"{out}/cache")
    job = len(source) / (time.perf_counter() - start - loading)
    # Before and after, as the machine's speed drifts.
    forward = (before + bare(embedder, batch, len(source))) / 2
    ratios.append(job / forward)
    print(
      f"bare forward {forward:.1f} images/s, job {job:.1f} images/s, ratio"
      f" {ratios[-1]:.3f}"
    )
  print(f"median ratio {statistics.median(ratios):.3f}")


def bare(embedder: Embedder, batch: np.ndarray, images: int) -> float:
  """Images/s of the compiled function alone."""
  calls = max(2, images // len(batch) // 2)
  start = time.perf_counter()
  previous = embedder(batch)
  for _ in range(calls - 1):
    result = embedder(batch)
    jax.block_until_ready(previous)
    previous = result
  jax.block_until_ready(previous)
  return calls * len(batch) / (time.perf_counter() - start)


if __name__ == "__main__":
  main()
