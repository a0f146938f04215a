"""Small networks with drawn weights, and what timm says of them.

golden/ was written at commit 4ab1d5e by its vit_golden.py and conv_golden.py,
with timm 1.0.31 and torch 2.13: embeddings of small networks in float64
(`*_outputs.npz`), and names and shapes of files as timm and Google save them
(`*_layouts.json`), of every published size too.
"""

import functools
import gzip
import json
import lzma
import math
import pathlib
import zlib
from typing import Any

import jax
import numpy as np

from oneshot_dp.extract.weights import flax_params

GOLDEN = pathlib.Path(__file__).parent / "golden"
# XLA's options for small networks: to compile takes longer than to run.
SOON: Any = {
  "xla_backend_optimization_level": 0,
  "xla_cpu_use_fusion_emitters": False,
}


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Float32 weights that depend on name and shape only, on any platform."""
  bits = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(
    math.prod(shape)
  )
  unit = ((bits >> np.uint64(40)).astype(np.float64) / 2**23 - 1).reshape(shape)
  if name.endswith("weight") and len(shape) == 1:
    unit = 1 + unit / 4
  elif len(shape) in (2, 4) and "pos" not in name:
    unit = unit * math.sqrt(6 / math.prod(shape[1:]))
  return unit.astype(np.float32)


def vit_images(side: int) -> np.ndarray:
  return draw(f"images {side}", (2, side, side, 3))


@functools.cache
def vit_layouts() -> dict[str, dict[str, tuple[int, ...]]]:
  with lzma.open(GOLDEN / "vit_layouts.json.xz", "rt") as file:
    return {
      key: {name: tuple(shape) for name, shape in layout.items()}
      for key, layout in json.load(file).items()
    }


def vit_weights(key: str) -> dict[str, np.ndarray]:
  return {name: draw(name, s) for name, s in vit_layouts()[key].items()}


@functools.cache
def conv_layouts() -> dict[str, Any]:
  packed = (GOLDEN / "conv_layouts.json.gz").read_bytes()
  return json.loads(gzip.decompress(packed))


def conv_weights(case: str, layout: str = "timm") -> dict[str, np.ndarray]:
  """Weights of a small network; kernels are far from standardised."""
  rng, weights = np.random.default_rng(0), {}
  tiny = conv_layouts()["tiny"][case]
  for name in sorted(tiny["timm"]):
    shape = tuple(tiny["timm"][name])
    if name.endswith("bias"):
      array = rng.normal(scale=0.2, size=shape)
    elif len(shape) == 4 and "gain" not in name and "attn" not in name:
      scale = rng.uniform(0.02, 0.3, size=(shape[0], 1, 1, 1))
      array = scale * (0.5 + rng.normal(size=shape))
    elif len(shape) == 4 and "attn" in name:
      array = rng.normal(size=shape) * shape[1] ** -0.5
    else:
      array = rng.uniform(0.5, 1.5, size=shape)
    weights[name] = np.asarray(array, np.float32)
  if layout == "timm":
    return weights
  return {
    other: weights[name].transpose(2, 3, 1, 0)
    if weights[name].ndim == 4
    else weights[name]
    for other, name in tiny[layout].items()
  }


def conv_images(side: int) -> np.ndarray:
  """Two images of coloured noise."""
  noise = np.random.default_rng(side).normal(size=(2, side, side, 3))
  return (noise + np.array([0.5, 0.0, -0.5])).astype(np.float32)


def embed(
  family: Any,
  arrays: dict[str, np.ndarray],
  images: np.ndarray,
  embedding: str | None = None,
  **changes: Any,
) -> np.ndarray:
  """What the network of a file's arrays, in timm's names, makes of images."""
  side = images.shape[1]
  network = family.network_of(arrays, embedding).clone(**changes)
  arrays = {k: v for k, v in arrays.items() if not k.startswith("head")}
  fitted = family.folded(network, arrays, side)
  params = flax_params(network, fitted, side)
  output = compiled(network)({"params": params}, images)
  assert output.dtype == np.float32
  return np.asarray(output)


@functools.lru_cache(4)
def compiled(network: Any) -> Any:
  return jax.jit(network.apply, compiler_options=SOON)
