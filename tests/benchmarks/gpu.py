"""What a GPU does, as ratios of one run of at most five minutes.

    python -m tests.benchmarks.gpu            # on a machine with a GPU
    python -m tests.benchmarks.gpu --small    # where there are CPUs alone

Random weights, images and rows. In order: whether seeded heads have the bits
that they have on this machine's CPU; forward passes in bfloat16, images and
weights on the device, beside torch.compile where torch and timm are installed,
and in share of the card's peak; the exact class sum of rows in host memory over
copying them to the device; a step of `auto` over its products in float64.

The products' factors are kept in float64, [n, d] and [n, K]: 18 GB at the
default size. Give a card of 24 GB fewer --step-rows.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import time
from typing import Any

import jax
import numpy as np

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.backbones.names import backbone_spec
from oneshot_dp.extract.weights import Arrays
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.dataset_from_arrays import dataset_from_arrays
from tests.benchmarks import forward_pass, stage2
from tests.extract.backbones import drawn
from tests.golden import seeded_heads

# FLOP/s of dense bfloat16 products, by JAX's name of the device, as NVIDIA's
# data sheets have them.
PEAK_FLOPS = {
  "NVIDIA A100-PCIE-40GB": 312e12,
  "NVIDIA A100-SXM4-40GB": 312e12,
  "NVIDIA A100 80GB PCIe": 312e12,
  "NVIDIA A100-SXM4-80GB": 312e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100 80GB HBM3": 989e12,
  "NVIDIA H200": 989e12,
  "NVIDIA L4": 121e12,
}
COMPUTE_DTYPE: ComputeDtype = "bfloat16"
COPIED_ROWS = 8192  # at a time, by what is compared with the exact sum


def main() -> None:
  args = parse_args()
  device = jax.devices()[0]
  print(f"{device.device_kind}; JAX {jax.__version__}", flush=True)
  start = time.perf_counter()
  is_same = compare_bits(device)
  for name in args.backbones:
    forward_passes(name, args.batch, args.repeats, args.seconds, device)
  class_sum(args.sum_rows, args.sum_dim, args.classes, args.repeats, device)
  step(args.step_rows, args.step_dim, args.classes, args.repeats, device)
  print(f"all of it: {time.perf_counter() - start:.0f} s")
  if not is_same:
    sys.exit("Seeded heads differ from those of the CPU.")


def parse_args() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--small", action="store_true", help="sizes for a CPU")
  parser.add_argument("--backbones", nargs="+", default=["vit_b16", "vit_l16"])
  parser.add_argument("--batch", type=int, default=256)
  parser.add_argument("--sum-rows", type=int, default=1_281_167)
  parser.add_argument("--sum-dim", type=int, default=1280)
  parser.add_argument("--step-rows", type=int, default=1_281_167)
  parser.add_argument("--step-dim", type=int, default=768)
  parser.add_argument("--classes", type=int, default=1000)
  parser.add_argument("--repeats", type=int, default=5, help="turns of each")
  parser.add_argument(
    "--seconds", type=float, default=2.0, help="of a turn of forward passes"
  )
  if parser.parse_args().small:
    # A flag that is given goes before these.
    parser.set_defaults(
      backbones=["vit_ti16"],
      batch=8,
      sum_rows=50_000,
      sum_dim=192,
      step_rows=5_000,
      step_dim=192,
      classes=100,
      repeats=3,
      seconds=1.0,
    )
  return parser.parse_args()


def compare_bits(device: jax.Device) -> bool:
  """Trains seeded heads here, and in a process that has a CPU alone."""
  with seeded_heads.start_training("cpu") as process:
    heads_here = seeded_heads.train_all()
    printed, _ = process.communicate()
  if process.returncode != 0:
    sys.exit("The process that trains heads on the CPU failed.")
  heads_of_cpu = json.loads(printed)

  compared = 0
  different = []
  for case, by_epsilon in heads_of_cpu.items():
    for epsilon, head in by_epsilon.items():
      compared += 1
      if heads_here[case][epsilon] != head:
        different.append(f"{case} at epsilon {epsilon}")
  print(
    f"seeded heads, {seeded_heads.MANY_ROWS} x {seeded_heads.FEATURE_DIM}, K ="
    f" {seeded_heads.NUM_CLASSES}, float32, {device.device_kind}:"
    f" {compared - len(different)} of {compared} have the bits of the CPU's",
    flush=True,
  )
  for name in different:
    print(f"  other bits: {name}", flush=True)
  return not different


def forward_passes(
  name: str, batch: int, repeats: int, seconds: float, device: jax.Device
) -> None:
  """Prints images/s, beside PyTorch's and the card's peak where known."""
  arrays = drawn_weights(name)
  runs = {"ours": forward_pass.ours(name, arrays, batch, COMPUTE_DTYPE)}
  has_torch = importlib.util.find_spec("torch") is not None
  if has_torch and importlib.util.find_spec("timm") is not None:
    runs["PyTorch"] = forward_pass.theirs(
      timm_model(name), batch, device.platform == "gpu"
    )
  speeds = forward_pass.speeds_in_turns(runs, batch, repeats, seconds)

  what = f"{name}, batch {batch}, {COMPUTE_DTYPE}, {device.device_kind}"
  speed = statistics.median(speeds["ours"])
  line = f"{what}: {speed:.1f} images/s"
  peak = PEAK_FLOPS.get(device.device_kind)
  if peak is not None:
    network = forward_pass.network_of(name, arrays, COMPUTE_DTYPE)
    flops = 2 * multiply_adds(network, forward_pass.SIDE)
    line += f", {speed * flops / peak:.1%} of {peak / 1e12:.0f} TFLOP/s"
  print(line, flush=True)
  if "PyTorch" in speeds:
    speed = statistics.median(speeds["PyTorch"])
    print(
      f"{what}: PyTorch {speed:.1f} images/s;"
      f" {forward_pass.ratio_of_turns(speeds)}",
      flush=True,
    )


def drawn_weights(name: str) -> Arrays:
  """Random weights of a ViT, in the shapes of timm's file."""
  shapes_by_name = {}
  for published_name, layout, shapes in drawn.published():
    if layout == "timm":
      shapes_by_name[published_name] = shapes
  if name not in shapes_by_name:
    sys.exit(f"{name} is no ViT whose shapes are in tests/.")
  arrays = {}
  for key, shape in shapes_by_name[name].items():
    if not key.startswith(vit.CLASSIFIER_WEIGHTS):
      arrays[key] = drawn.draw(key, tuple(shape))
  return arrays


def timm_model(name: str) -> Any:
  import timm

  tag = backbone_spec(name).timm
  assert tag is not None, f"timm has no {name}"
  return timm.create_model(tag.partition(".")[0], num_classes=0).eval()


def multiply_adds(network: vit.ViT, side: int) -> int:
  """The multiply-adds of an image's products, as the network needs them.

  Where the class token alone is read, the last block is of that token alone:
  what PyTorch computes besides is not counted.
  """
  patches = (side // network.patch) ** 2
  tokens = patches + network.num_prefix_tokens
  width = network.width
  total = patches * width * 3 * network.patch**2
  for index in range(network.depth):
    outputs = tokens
    if index == network.depth - 1 and network.embedding == "cls":
      outputs = 1
    keys_and_values = 2 * tokens * width**2
    queries_and_projection = 2 * outputs * width**2
    attention = 2 * outputs * tokens * width
    mlp = 2 * outputs * width * network.hidden
    total += keys_and_values + queries_and_projection + attention + mlp
  return total


def class_sum(
  n: int, dim: int, classes: int, repeats: int, device: jax.Device
) -> None:
  """Prints the time of the exact class sum over that of a copy of the rows."""
  data, embedding = rows_in_memory(n, dim, classes)

  def copy() -> None:
    for start in range(0, n, COPIED_ROWS):
      part = embedding[start : start + COPIED_ROWS]
      # A CPU would take the rows as they lie.
      jax.block_until_ready(jax.device_put(part, may_alias=False))

  def summed() -> None:
    stage2.release_class_sums(data)

  copies, sums = times_in_turns(copy, summed, repeats)
  print(
    f"exact class sum, {n:,} x {dim}, K = {classes}, {embedding.dtype},"
    f" {device.device_kind}: {min(sums):.3f} s; copy from host memory"
    f" {min(copies):.3f} s ({embedding.nbytes / min(copies) / 1e9:.1f} GB/s);"
    f" ratio best {min(sums) / min(copies):.2f}",
    flush=True,
  )


def step(
  n: int, dim: int, classes: int, repeats: int, device: jax.Device
) -> None:
  """Prints the time of a step of `auto` over that of its products."""
  data, embedding = rows_in_memory(n, dim, classes)
  gradient, bare = stage2.step_and_products(data)
  products, steps = times_in_turns(bare, gradient, repeats)
  print(
    f"step of auto, {n:,} x {dim}, K = {classes}, {embedding.dtype},"
    f" {device.device_kind}: {min(steps):.3f} s; its two products in float64"
    f" {min(products):.3f} s; ratio best {min(steps) / min(products):.2f}",
    flush=True,
  )


def rows_in_memory(
  n: int, dim: int, classes: int
) -> tuple[PrivateDataset, np.ndarray]:
  """Random rows as a data set, and the float16 array that they are."""
  embedding = np.empty((n, dim), np.float16)
  label = np.empty(n, np.int32)
  start = 0
  for block in stage2.synthetic_blocks(n, dim, classes):
    stop = start + len(block["label"])
    embedding[start:stop] = block["embedding"]
    label[start:stop] = block["label"]
    start = stop
  data = dataset_from_arrays(embedding, label, num_classes=classes)
  return data, embedding


def times_in_turns(
  floor: stage2.Work, work: stage2.Work, repeats: int
) -> tuple[list[float], list[float]]:
  """Seconds of both in each turn: a noisy neighbor hits both alike."""
  # The first time compiles, and puts rows where they stay.
  floor()
  work()
  times_of_floor = []
  times_of_work = []
  for _ in range(repeats):
    times_of_floor.append(stage2.timed(floor))
    times_of_work.append(stage2.timed(work))
  return times_of_floor, times_of_work


if __name__ == "__main__":
  main()
