"""Images/s of our backbones and of PyTorch's, in turns in one process.

    pip install torch==2.13.0 timm    # not in the lock: for this comparison
    python tests/benchmarks/forward_pass.py vit_ti16 vit_b16
    python tests/benchmarks/forward_pass.py vit_b16 vit_l16 vit_h14   # on a GPU

Random weights, 224 px, images in memory. Ours is what the job runs: uint8 in,
normalisation included, its default batch. PyTorch is timm's model of the same
name, images normalised beforehand, in inference mode, at the fastest of two
batches. On a CPU both are in float32, PyTorch eager (and compiled, with
--compile); on a GPU both are in bfloat16, PyTorch compiled, channels last,
parameters in bfloat16.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import jax
import numpy as np
import timm
import torch

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import apply_function
from oneshot_dp.extract.backbones.registry import (
  find_architecture,
  parameter_shapes,
  stored_params,
)
from oneshot_dp.extract.job.embedder import IMAGES_PER_DEVICE

TIMM = {
  "vit_ti16": "vit_tiny_patch16_224",
  "vit_b16": "vit_base_patch16_224",
  "vit_l16": "vit_large_patch16_224",
  "vit_h14": "vit_huge_patch14_224",
  "bit_r50x1": "resnetv2_50x1_bit",
  "nfnet_f0": "dm_nfnet_f0",
}
SIDE = 224
Run = Callable[[], object]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("names", nargs="+", choices=sorted(TIMM))
  parser.add_argument("--repeats", type=int, default=9)
  parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
  parser.add_argument("--compile", action="store_true")
  args = parser.parse_args()
  device = jax.devices()[0]
  print(
    f"{device.device_kind}, {os.cpu_count()} cores; JAX {jax.__version__},"
    f" PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
  )
  for name in args.names:
    on_gpu = device.platform == "gpu"
    compare(name, device.platform, args.compile or on_gpu, args)


def compare(
  name: str, platform: str, with_compiled: bool, args: argparse.Namespace
) -> None:
  on_gpu, repeats = platform == "gpu", args.repeats
  batch = IMAGES_PER_DEVICE[platform]
  runs = {f"ours, batch {batch}": (batch, ours(name, batch, on_gpu))}
  for size in (64, 256) if on_gpu else (8, 16):
    for compiled in {with_compiled, on_gpu}:
      label = f"PyTorch{', compiled' if compiled else ''}, batch {size}"
      runs[label] = (size, theirs(name, size, on_gpu, compiled))
  speeds = {label: [] for label in runs}
  for _ in range(repeats):
    for label, (size, run) in runs.items():
      speeds[label].append(size * calls_per_second(run, args.seconds))
  medians = {label: statistics.median(s) for label, s in speeds.items()}
  mine, *others = medians
  best = max(others, key=lambda label: medians[label])
  for label, speed in medians.items():
    print(f"{name}: {label}: {speed:.2f} images/s")
  ratios = [a / b for a, b in zip(speeds[mine], speeds[best], strict=True)]
  print(
    f"{name}: ours / {best}: {statistics.median(ratios):.2f} (from"
    f" {min(ratios):.2f} to {max(ratios):.2f} in {repeats} turns)"
  )


def ours(name: str, batch: int, on_gpu: bool) -> Run:
  architecture = find_architecture(name)
  dtype: ComputeDtype = "bfloat16" if on_gpu else "float32"
  module = architecture.build(architecture.embeddings[0], dtype)
  rng = np.random.default_rng(0)
  tree: dict = {}
  for key, shape in parameter_shapes(module, SIDE).items():
    *path, leaf = key.split("/")
    node = tree
    for part in path:
      node = node.setdefault(part, {})
    node[leaf] = 0.02 * rng.standard_normal(shape, np.float32)
  params = jax.device_put(stored_params(tree, dtype))
  images = jax.device_put(
    rng.integers(0, 256, (batch, SIDE, SIDE, 3), np.uint8)
  )
  apply = jax.jit(apply_function(module, architecture.reference))
  return lambda: jax.block_until_ready(apply(params, images))


def theirs(name: str, batch: int, on_gpu: bool, compiled: bool) -> Run:
  model = timm.create_model(TIMM[name], num_classes=0).eval()
  images = torch.randn(batch, 3, SIDE, SIDE)
  if on_gpu:
    model = model.to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    images = images.to(
      "cuda", torch.bfloat16, memory_format=torch.channels_last
    )
  network = torch.compile(model) if compiled else model

  def run() -> None:
    with torch.inference_mode():
      network(images)
    if on_gpu:
      torch.cuda.synchronize()

  return run


def calls_per_second(run: Run, seconds: float) -> float:
  run()
  calls, start = 0, time.perf_counter()
  while (spent := time.perf_counter() - start) < seconds:
    run()
    calls += 1
  return calls / spent


if __name__ == "__main__":
  main()
