"""Small networks with drawn weights, and what timm says of them.

golden/ was written at commit 4ab1d5e by its vit_golden.py and conv_golden.py,
with timm 1.0.31 and torch 2.13: embeddings of small networks in float64
(`*_outputs.npz`; of a WRN by WrnOracle of resnet_test.py at 0aacbfa), and names
and shapes of files as timm and Google save them (`*_layouts.json`), of every
published size too.
"""

import functools
import gzip
import json
import lzma
import math
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from oneshot_dp.extract.backbones.backbone import FAMILIES
from oneshot_dp.extract.backbones.google_names import in_timm_names
from oneshot_dp.extract.weights import flax_params

GOLDEN = pathlib.Path(__file__).parent / "golden"
OUTPUTS = {
  key: array
  for file in ("vit_outputs.npz", "conv_outputs.npz")
  for key, array in np.load(GOLDEN / file).items()
  if "last" not in key
}
# All of a file but the network's parts, of whose repeated ones the first stays.
BESIDES = (
  r"head|mask_token|blocks\.([1-9]|\d\d)\."
  r"|stages\.\d\.(blocks\.)?([1-9]|\d\d)\."
)
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


@functools.cache
def layouts() -> tuple[dict[str, Any], dict[str, Any]]:
  """Shapes by name, of the files of ViTs and of convolutional networks."""
  return (
    json.loads(lzma.decompress((GOLDEN / "vit_layouts.json.xz").read_bytes())),
    json.loads(gzip.decompress((GOLDEN / "conv_layouts.json.gz").read_bytes())),
  )


def published() -> Iterator[tuple[str, str, dict[str, list[int]]]]:
  """Name, "timm" or "npz", and shapes of every file."""
  of_vit, of_conv = layouts()
  for key, shapes in of_vit.items():
    if key.startswith("published"):
      yield key.split("/")[2], "timm", shapes
  for name, files in of_conv["published"].items():
    for kind, shapes in files.items():
      yield name, kind, shapes


def vit_weights(key: str) -> dict[str, np.ndarray]:
  return {name: draw(name, tuple(s)) for name, s in layouts()[0][key].items()}


def conv_weights(case: str, layout: str = "timm") -> dict[str, np.ndarray]:
  """Weights of a small network; kernels are far from standardised."""
  rng, weights = np.random.default_rng(0), {}
  tiny = layouts()[1]["tiny"][case]
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


def wrn_weights(depth: int, width: int) -> dict[str, np.ndarray]:
  """Haiku's names and shapes, in the order in which its code asks for them.

  Kernels far from standardised, one of them so small that the floor acts.
  """
  rng, arrays = np.random.default_rng(depth), {}

  def put(name: str, leaves: str, *shape: int) -> None:
    for leaf in leaves.split():
      scale, mean = 0.2, float(leaf in ("gain", "scale"))
      if leaf == "w":
        scale, mean = (1e-3, 0.0) if "Block_2_skip" in name else (0.3, 0.1)
      array = rng.normal(mean, scale, shape).astype(np.float32)
      arrays[f"wide_res_net/{name}/{leaf}"] = array

  def conv(name: str, *shape: int) -> None:
    put(name, "w", *shape)
    put(name, "gain bias", shape[-1])

  conv("First_conv", 3, 3, 3, 16)
  channels = 16
  for stage in (1, 2, 3):
    features = 16 * width * 2 ** (stage - 1)
    put(f"Block_{stage}_skip_norm", "scale offset", channels)
    conv(f"Block_{stage}_skip_conv", 1, 1, channels, features)
    for block in range((depth - 4) // 6):
      for place in (0, 1):
        put(f"Block_{stage}_norm_{block}_{place}", "scale offset", channels)
        conv(f"Block_{stage}Conv_{block}_{place}", 3, 3, channels, features)
        channels = features
  put("Final_norm", "scale offset", channels)
  put("Softmax", "w", channels, 1000)
  put("Softmax", "b", 1000)
  return arrays


def built(key: str, **changes: Any) -> tuple[Any, Any, np.ndarray]:
  """A small network by its key of `OUTPUTS`, its parameters, and two images."""
  family, embedding, rng = "resnet_v2", None, np.random.default_rng
  if key.startswith("timm"):
    _, case, text, embedding = key.split("/")
    side, family = int(text), "vit"
    arrays = vit_weights(f"small/timm/{case}")
    images = draw(f"images {side}", (2, side, side, 3))
    changes |= {"heads": 4}
    changes |= {"mlp": "gelu_tanh"} if case == "siglip" else {}
  elif key.startswith("wrn"):
    depth, width, side = map(int, key.split("_")[1:])
    arrays = in_timm_names(wrn_weights(depth, width))
    images = rng(1).normal(size=(2, side, side, 3))
  else:
    case, side = key.rpartition("_")[0], int(key.rpartition("_")[2])
    family = "resnet_v2" if case == "bit" else "norm_free"
    arrays = conv_weights(case)
    noise = rng(side).normal(size=(2, side, side, 3))
    images = noise + np.array([0.5, 0.0, -0.5])
    changes |= {"groups": 4} if case == "bit" else {}  # of a tiny one
  network = FAMILIES[family].network_of(arrays, embedding).clone(**changes)
  arrays = {k: v for k, v in arrays.items() if not k.startswith("head")}
  arrays = FAMILIES[family].fitted(network, arrays, side)
  params = flax_params(network, arrays, side)
  return network, params, images.astype(np.float32)


def embedded(key: str, **changes: Any) -> np.ndarray:
  """What the network makes of the images."""
  network, params, images = built(key, **changes)
  run = jax.jit(network.apply, compiler_options=SOON)
  output = run({"params": params}, images)
  assert output.dtype == np.float32
  return np.asarray(output)
