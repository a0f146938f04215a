"""Names of BiT's parameters in the three public layouts of its weights.

All of them hold the raw kernels; they are standardised here.
"""

import re
from collections.abc import Mapping

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.architecture import Arrays, Shape
from oneshot_dp.extract.backbones.file_family import family
from oneshot_dp.extract.backbones.resnet.convolution import (
  standardize,
)

LAYOUTS = (
  "npz of google-research/big_transfer (BiT-S, BiT-M)",
  "safetensors of timm (resnetv2_*_bit)",
  "safetensors of transformers (BitModel, BitForImageClassification)",
)
# Residual blocks of each stage, by the number of layers in all.
BLOCKS: dict[int, tuple[int, ...]] = {
  50: (3, 4, 6, 3),
  101: (3, 4, 23, 3),
  152: (3, 8, 36, 3),
}

# That of BiT's own code. timm and transformers add 1e-8, which is a hundred
# thousandth of the variance of kernels of an ordinary size.
_EPSILON = 1e-10
_NPZ_BLOCK = re.compile(r"resnet/block([1-4])/unit(\d+)/(.+)")
_TORCH_BLOCK = re.compile(
  r"(?:(?:bit\.)?encoder\.)?stages\.(\d+)\.(?:blocks|layers)\.(\d+)\.(.+)"
)
_NPZ_LEAF = {"kernel": "kernel", "gamma": "scale", "beta": "bias"}
_TORCH_LEAF = {"weight": "scale", "bias": "bias"}
_OUTSIDE = {
  "resnet/root_block/standardized_conv2d/kernel": "stem/kernel",
  "stem.conv.weight": "stem/kernel",
  "embedder.convolution.weight": "stem/kernel",
  "bit.embedder.convolution.weight": "stem/kernel",
  "resnet/group_norm/gamma": "norm/scale",
  "resnet/group_norm/beta": "norm/bias",
  **{
    f"{prefix}norm.{leaf}": f"norm/{ours}"
    for prefix in ("", "bit.")
    for leaf, ours in _TORCH_LEAF.items()
  },
}
# Fitted to the labels that the network was pretrained on.
_HEAD = ("resnet/head/", "head.fc.", "classifier.")


def rename(
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, Shape],
  path: str,
) -> Arrays:
  """Parameters of `BitResNet` from a file; see `Architecture.rename`.

  One array is converted at a time, so that beside the file's and the result's
  no second copy of the weights is in memory.

  Raises:
    InputError: the file is of another depth, width or family.
  """
  ours = {key: _ours(key) for key in arrays if not key.startswith(_HEAD)}
  found = _describe(
    {new: arrays[old].shape for old, new in ours.items() if new},
    output_axis=-1 if any("/" in key for key in arrays) else 0,
  )
  found = found or family(arrays)
  wanted = _describe(shapes, output_axis=-1)
  if found and found != wanted:
    raise InputError(
      f"{path}: the weights look like {found}, not {wanted}: give the weights"
      " or the backbone.name of the other."
    )
  return {
    new or old: _convert(arrays[old], old) if new else arrays[old]
    for old, new in ours.items()
  }


def _ours(key: str) -> str | None:
  if key in _OUTSIDE:
    return _OUTSIDE[key]
  if match := _NPZ_BLOCK.fullmatch(key):
    stage, block = int(match[1]), int(match[2])
    inside = _npz_inside(match[3])
  elif match := _TORCH_BLOCK.fullmatch(key):
    stage, block = int(match[1]) + 1, int(match[2]) + 1
    inside = _torch_inside(match[3])
  else:
    return None
  return inside and f"stage{stage}_block{block}/{inside}"


def _npz_inside(rest: str) -> str | None:
  if rest == "a/proj/standardized_conv2d/kernel":
    return "projection/kernel"
  match = re.fullmatch(
    r"([abc])/(standardized_conv2d|group_norm)/(kernel|gamma|beta)", rest
  )
  if match is None:
    return None
  kind = "norm" if match[2] == "group_norm" else "conv"
  return f"{kind}{'abc'.index(match[1]) + 1}/{_NPZ_LEAF[match[3]]}"


def _torch_inside(rest: str) -> str | None:
  if rest == "downsample.conv.weight":
    return "projection/kernel"
  if match := re.fullmatch(r"conv([123])\.weight", rest):
    return f"conv{match[1]}/kernel"
  if match := re.fullmatch(r"norm([123])\.(weight|bias)", rest):
    return f"norm{match[1]}/{_TORCH_LEAF[match[2]]}"
  return None


def _convert(array: np.ndarray, key: str) -> np.ndarray:
  # What is not floating point is handed on as it is, to be refused.
  if array.ndim != 4 or array.dtype.kind in "biu":
    return array
  if "/" not in key:
    array = array.transpose(2, 3, 1, 0)
  return standardize(array, _EPSILON)


def _describe(shapes: Mapping[str, Shape], output_axis: int) -> str | None:
  stages: dict[int, int] = {}
  for key in shapes:
    if match := re.match(r"stage(\d+)_block(\d+)/", key):
      stage, block = int(match[1]), int(match[2])
      stages[stage] = max(stages.get(stage, 0), block)
  root = shapes.get("stem/kernel")
  if not stages or not root:
    return None
  blocks = tuple(stages[stage] for stage in sorted(stages))
  factor, rest = divmod(root[output_axis], 64)
  depth = {b: layers for layers, b in BLOCKS.items()}.get(blocks)
  if depth and not rest:
    return f"bit_r{depth}x{factor}"
  return f"a BiT of {blocks} blocks and {root[output_axis]} root channels"
