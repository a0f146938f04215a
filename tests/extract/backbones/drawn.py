"""Small networks with drawn weights, and what timm says of them.

golden/ was written at commit 4ab1d5e by its vit_golden.py and conv_golden.py,
with timm 1.0.31 and torch 2.13: embeddings of small networks in float64
(`*_outputs.npz`; of a WRN by WrnOracle of resnet_test.py at 0aacbfa), and names
and shapes of files as timm and Google save them (`*_layouts.json`), of every
published size too. `timm_outputs.npz` and `timm_layouts.json.xz`, of CLIP,
TIPSv2, DINOv3 and ConvNeXt, are written by write_golden.py.
"""

import functools
import gzip
import json
import lzma
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from oneshot_dp.extract.backbones.family import FAMILIES
from oneshot_dp.extract.backbones.google_names import to_timm_names
from oneshot_dp.extract.weights import flax_params
from tests.extract.backbones.draw import draw

GOLDEN = pathlib.Path(__file__).parent / "golden"
OUTPUTS = {
  key: array
  for file in ("vit_outputs.npz", "conv_outputs.npz", "timm_outputs.npz")
  for key, array in np.load(GOLDEN / file).items()
  if "last" not in key
}
# What a network with the first block of each stage alone does not have.
REPEATED_BLOCKS = (
  r"blocks\.([1-9]|\d\d)\.|stages\.\d\.(blocks\.)?([1-9]|\d\d)\."
)
# XLA's options for small networks: to compile takes longer than to run.
FAST_COMPILE: Any = {
  "xla_backend_optimization_level": 0,
  "xla_cpu_use_fusion_emitters": False,
}


@functools.cache
def layouts() -> tuple[dict[str, Any], dict[str, Any]]:
  """Shapes by name, of the files of ViTs and of convolutional networks."""
  timm_layouts = (GOLDEN / "timm_layouts.json.xz").read_bytes()
  vit_layouts = (GOLDEN / "vit_layouts.json.xz").read_bytes()
  return (
    json.loads(lzma.decompress(vit_layouts))
    | json.loads(lzma.decompress(timm_layouts)),
    json.loads(gzip.decompress((GOLDEN / "conv_layouts.json.gz").read_bytes())),
  )


def published() -> Iterator[tuple[str, str, dict[str, list[int]]]]:
  """Name, "timm" or "npz", and shapes of every file."""
  vit_layouts, conv_layouts = layouts()
  for key, shapes in vit_layouts.items():
    if key.startswith("published"):
      yield key.split("/")[2], "timm", shapes
  for name, files in conv_layouts["published"].items():
    for kind, shapes in files.items():
      yield name, kind, shapes


def vit_weights(key: str) -> dict[str, np.ndarray]:
  return {name: draw(name, tuple(s)) for name, s in layouts()[0][key].items()}


def conv_weights(case: str, layout: str = "timm") -> dict[str, np.ndarray]:
  """Weights of a small network; kernels are far from standardised."""
  rng = np.random.default_rng(0)
  weights = {}
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
  renamed = {}
  for other, name in tiny[layout].items():
    array = weights[name]
    if array.ndim == 4:
      array = array.transpose(2, 3, 1, 0)
    renamed[other] = array
  return renamed


def wrn_weights(depth: int, width: int) -> dict[str, np.ndarray]:
  """Haiku's names and shapes, in the order in which its code asks for them.

  Kernels far from standardised, one of them so small that the floor acts.
  """
  rng = np.random.default_rng(depth)
  arrays = {}

  def put(name: str, leaves: str, *shape: int) -> None:
    for leaf in leaves.split():
      scale = 0.2
      mean = 0.0
      if leaf in ("gain", "scale"):
        mean = 1.0
      elif leaf == "w" and "Block_2_skip" in name:
        scale = 1e-3
      elif leaf == "w":
        scale = 0.3
        mean = 0.1
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


class GoogleViTLayout(NamedTuple):
  """How one of Google's programs counts the layers of a block."""

  attention: int
  mlp: int
  second_norm: int
  positions: str


def google_vit_arrays(
  arrays: dict[str, np.ndarray], layout: GoogleViTLayout, heads: int = 4
) -> dict[str, np.ndarray]:
  """timm's arrays of a ViT as Google's programs save them."""
  width = len(arrays["norm.weight"])
  dim = width // heads
  depth = sum(name.endswith(".norm1.weight") for name in arrays)
  google = {"cls": arrays["cls_token"], layout.positions: arrays["pos_embed"]}
  modules = {
    "patch_embed.proj": "embedding",
    "norm": "Transformer/encoder_norm",
    "head": "head",
  }
  for index in range(depth):
    timm = f"blocks.{index}"
    block = f"Transformer/encoderblock_{index}"
    attention = f"{block}/MultiHeadDotProductAttention_{layout.attention}"
    modules[f"{timm}.norm1"] = f"{block}/LayerNorm_0"
    modules[f"{timm}.norm2"] = f"{block}/LayerNorm_{layout.second_norm}"
    modules[f"{timm}.mlp.fc1"] = f"{block}/MlpBlock_{layout.mlp}/Dense_0"
    modules[f"{timm}.mlp.fc2"] = f"{block}/MlpBlock_{layout.mlp}/Dense_1"
    modules[f"{timm}.attn.proj"] = f"{attention}/out"
    weights = np.split(arrays[f"{timm}.attn.qkv.weight"], 3)
    biases = np.split(arrays[f"{timm}.attn.qkv.bias"], 3)
    for part, weight, bias in zip(
      ("query", "key", "value"), weights, biases, strict=True
    ):
      google[f"{attention}/{part}/kernel"] = weight.T.reshape(width, heads, dim)
      google[f"{attention}/{part}/bias"] = bias.reshape(heads, dim)
  for timm, module in modules.items():
    weight = arrays[f"{timm}.weight"]
    google[f"{module}/bias"] = arrays[f"{timm}.bias"]
    if weight.ndim == 1:
      google[f"{module}/scale"] = weight
    elif weight.ndim == 4:
      google[f"{module}/kernel"] = weight.transpose(2, 3, 1, 0)
    elif module.endswith("/out"):
      google[f"{module}/kernel"] = weight.T.reshape(heads, dim, width)
    else:
      google[f"{module}/kernel"] = weight.T
  return google


def build(key: str, **changes: Any) -> tuple[Any, Any, np.ndarray]:
  """Builds a small network with drawn weights.

  Args:
    key: of `OUTPUTS`: timm/CASE/SIDE/EMBEDDING, wrn_DEPTH_WIDTH_SIDE,
      or CASE_SIDE of the other convolutional networks.
    **changes: fields of the network.

  Returns:
    The Flax module, its parameters, and two normalized images.
  """
  if key.startswith("timm"):
    family_name, arrays, images, embedding = _timm_case(key)
    if family_name != "convnext":
      changes["heads"] = 4
    if "quickgelu" in key:
      changes["mlp"] = "quick_gelu"
    if "/siglip/" in key:
      changes["mlp"] = "gelu_tanh"
  elif key.startswith("wrn"):
    family_name, arrays, images = _wrn_case(key)
    embedding = None
  else:
    family_name, arrays, images = _conv_case(key)
    embedding = None
    if family_name == "resnet_v2":
      changes["groups"] = 4  # of a tiny one
  family = FAMILIES[family_name]
  network = family.infer_network(arrays, embedding).clone(**changes)
  kept = {}
  for name, array in arrays.items():
    if not name.startswith(family.CLASSIFIER_WEIGHTS):
      kept[name] = array
  side = images.shape[1]
  adapted = family.adapt_weights(network, kept, side)
  params = flax_params(network, adapted, side)
  return network, params, images.astype(np.float32)


# Of the other small networks, the family is "vit".
FAMILY_OF_CASE = {
  "clip": "clip",
  "clip_quickgelu": "clip",
  "dinov3": "rope_vit",
  "convnext": "convnext",
}


def _timm_case(
  key: str,
) -> tuple[str, dict[str, np.ndarray], np.ndarray, str | None]:
  _, case, side, embedding = key.split("/")
  family = FAMILY_OF_CASE.get(case, "vit")
  images = draw(f"images {side}", (2, int(side), int(side), 3))
  if embedding == "pooled":
    embedding = None
  return family, vit_weights(f"small/timm/{case}"), images, embedding


def _wrn_case(key: str) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
  depth, width, side = map(int, key.split("_")[1:])
  images = np.random.default_rng(1).normal(size=(2, side, side, 3))
  return "resnet_v2", to_timm_names(wrn_weights(depth, width)), images


def _conv_case(key: str) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
  case, _, side = key.rpartition("_")
  family = "resnet_v2" if case == "bit" else "norm_free"
  rng = np.random.default_rng(int(side))
  noise = rng.normal(size=(2, int(side), int(side), 3))
  return family, conv_weights(case), noise + np.array([0.5, 0.0, -0.5])


def embed(key: str, **changes: Any) -> np.ndarray:
  """The embeddings [2, d] of the two images; see `build`."""
  network, params, images = build(key, **changes)
  run = jax.jit(network.apply, compiler_options=FAST_COMPILE)
  output = run({"params": params}, images)
  assert output.dtype == np.float32
  return np.asarray(output)
