"""Images/s of our backbones and of PyTorch's, in turns in one process.

    pip install torch==2.13.0 timm    # not in the lock: for this comparison
    python tests/benchmarks/forward_pass.py vit_ti16 vit_b16
    python tests/benchmarks/forward_pass.py vit_b16 vit_l16 vit_h14   # on a GPU

Random weights, 224 px, images in memory. Ours is what the job runs: uint8 in,
normalisation included, 16 images on a CPU and 256 on a GPU. PyTorch is timm's
model, images normalised beforehand, in inference mode. On a CPU both are in
float32, PyTorch eager; on a GPU both are in bfloat16, PyTorch compiled.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import apply_function
from oneshot_dp.extract.backbones.family import FAMILIES
from oneshot_dp.extract.backbones.names import backbone_spec
from oneshot_dp.extract.images import Preprocessing
from oneshot_dp.extract.weights import Arrays, flax_params

SIDE = 224
Run = Callable[[], object]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("names", nargs="+")
  parser.add_argument("--repeats", type=int, default=9)
  parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
  args = parser.parse_args()
  # Here, since gpu.py imports this file where neither may be.
  import timm
  import torch

  device = jax.devices()[0]
  print(f"{device.device_kind}; JAX {jax.__version__}, {torch.__version__}")
  on_gpu = device.platform == "gpu"
  batch = 256 if on_gpu else 16
  for name in args.names:
    tag = backbone_spec(name).timm
    assert tag is not None, f"timm has no {name}"
    model = timm.create_model(tag.partition(".")[0], num_classes=0).eval()
    arrays = {k: v.numpy() for k, v in model.state_dict().items()}
    runs = {
      "ours": ours(name, arrays, batch, "bfloat16" if on_gpu else "float32"),
      "PyTorch": theirs(model, batch, on_gpu),
    }
    speeds = speeds_in_turns(runs, batch, args.repeats, args.seconds)
    for label, found in speeds.items():
      print(f"{name}: {label}: {statistics.median(found):.2f} images/s")
    print(f"{name}: {ratio_of_turns(speeds)}")


def network_of(name: str, arrays: Arrays, compute_dtype: ComputeDtype) -> Any:
  """The Flax module of a backbone, by the shapes of timm's weights."""
  row = backbone_spec(name)
  family = FAMILIES[row.family]
  return family.infer_network(arrays, row.embedding).clone(
    compute_dtype=compute_dtype, **row.model_kwargs
  )


def speeds_in_turns(
  runs: dict[str, Run], batch: int, repeats: int, seconds: float
) -> dict[str, list[float]]:
  """Images/s of each run in each turn: a noisy neighbor hits all alike."""
  speeds: dict[str, list[float]] = {label: [] for label in runs}
  for _ in range(repeats):
    for label, run in runs.items():
      speeds[label].append(batch * calls_per_second(run, seconds))
  return speeds


def ratio_of_turns(speeds: dict[str, list[float]]) -> str:
  """The median of ours / PyTorch, and how far its turns are apart."""
  pairs = zip(speeds["ours"], speeds["PyTorch"], strict=True)
  ratios = [our / their for our, their in pairs]
  return (
    f"ours / PyTorch: {statistics.median(ratios):.2f} (from"
    f" {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} turns)"
  )


def ours(
  name: str, arrays: Arrays, batch: int, compute_dtype: ComputeDtype
) -> Run:
  network = network_of(name, arrays, compute_dtype)
  family = FAMILIES[backbone_spec(name).family]
  arrays = family.adapt_weights(network, arrays, SIDE)
  params = jax.device_put(flax_params(network, arrays, SIDE))
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (batch, SIDE, SIDE, 3), np.uint8)
  images = jax.device_put(images)
  apply = jax.jit(apply_function(network, Preprocessing(image_size=SIDE)))
  return lambda: jax.block_until_ready(apply(params, images))


def theirs(model: Any, batch: int, on_gpu: bool) -> Run:
  import torch

  images = torch.randn(batch, 3, SIDE, SIDE)
  if on_gpu:
    where = ("cuda", torch.bfloat16)
    model = model.to(*where, memory_format=torch.channels_last)
    images = images.to(*where, memory_format=torch.channels_last)
    model = torch.compile(model)

  def run() -> None:
    with torch.inference_mode():
      model(images)
    if on_gpu:
      torch.cuda.synchronize()

  return run


def calls_per_second(run: Run, seconds: float) -> float:
  run()
  start = time.perf_counter()
  calls = 0
  while time.perf_counter() - start < seconds:
    run()
    calls += 1
  return calls / (time.perf_counter() - start)


if __name__ == "__main__":
  main()
