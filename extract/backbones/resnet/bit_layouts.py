"""Names of BiT's parameters in the three public layouts of its weights.

All of them hold the raw kernels; they are standardised here.
"""

import re
from collections.abc import Mapping

import numpy as np

from oneshot_dp.extract.backbones.backbone import Arrays, Shape
from oneshot_dp.extract.backbones.resnet.convolution import standardize
from oneshot_dp.extract.backbones.resnet.layouts import (
  depths,
  family,
  refuse_another,
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
_OUTSIDE = {
  "resnet/root_block/standardized_conv2d/kernel": "stem/kernel",
  "stem.conv.weight": "stem/kernel",
  "embedder.convolution.weight": "stem/kernel",
  "bit.embedder.convolution.weight": "stem/kernel",
  "resnet/group_norm/gamma": "norm/scale",
  "resnet/group_norm/beta": "norm/bias",
  "norm.weight": "norm/scale",
  "norm.bias": "norm/bias",
  "bit.norm.weight": "norm/scale",
  "bit.norm.bias": "norm/bias",
}
_INSIDE = {
  "a/proj/standardized_conv2d/kernel": "projection/kernel",
  "downsample.conv.weight": "projection/kernel",
}
for _number, _letter in enumerate("abc", start=1):
  _INSIDE |= {
    f"{_letter}/standardized_conv2d/kernel": f"conv{_number}/kernel",
    f"{_letter}/group_norm/gamma": f"norm{_number}/scale",
    f"{_letter}/group_norm/beta": f"norm{_number}/bias",
    f"conv{_number}.weight": f"conv{_number}/kernel",
    f"norm{_number}.weight": f"norm{_number}/scale",
    f"norm{_number}.bias": f"norm{_number}/bias",
  }
# Fitted to the labels that the network was pretrained on.
_HEAD = ("resnet/head/", "head.fc.", "classifier.")


def rename(
  arrays: Mapping[str, np.ndarray], shapes: Mapping[str, Shape], path: str
) -> Arrays:
  """Parameters of `BitResNet` from a file, one at a time, to spare memory."""
  ours = {key: _ours(key) for key in arrays if not key.startswith(_HEAD)}
  found = _describe(
    {new: arrays[old].shape for old, new in ours.items() if new},
    output_axis=-1 if any("/" in key for key in arrays) else 0,
  )
  wanted = _describe(shapes, output_axis=-1)
  refuse_another(found or family(arrays), str(wanted), path)
  return {
    new or old: _convert(arrays[old], old) if new else arrays[old]
    for old, new in ours.items()
  }


def _ours(key: str) -> str | None:
  if key in _OUTSIDE:
    return _OUTSIDE[key]
  from_one = _NPZ_BLOCK.fullmatch(key)
  match = from_one or _TORCH_BLOCK.fullmatch(key)
  if match is None or match[3] not in _INSIDE:
    return None
  stage, block = (int(n) + (not from_one) for n in match.groups()[:2])
  return f"stage{stage}_block{block}/{_INSIDE[match[3]]}"


def _convert(array: np.ndarray, key: str) -> np.ndarray:
  # What is not floating point is handed on as it is, to be refused.
  if array.ndim != 4 or array.dtype.kind in "biu":
    return array
  if "/" not in key:
    array = array.transpose(2, 3, 1, 0)
  return standardize(array, _EPSILON)


def _describe(shapes: Mapping[str, Shape], output_axis: int) -> str | None:
  blocks, root = depths(shapes), shapes.get("stem/kernel")
  if not blocks or not root:
    return None
  factor, rest = divmod(root[output_axis], 64)
  depth = {b: layers for layers, b in BLOCKS.items()}.get(blocks)
  if depth and not rest:
    return f"bit_r{depth}x{factor}"
  return f"a BiT of {blocks} blocks and {root[output_axis]} root channels"


def to_transformers(params: Mapping[str, np.ndarray]) -> Arrays:
  """Our parameters by transformers' names; standardised anew, they stay."""
  outside = {ours: name for name, ours in _OUTSIDE.items() if "bit." in name}
  inside = {ours: name for name, ours in _INSIDE.items() if "/" not in name}
  found = {}
  for key, value in params.items():
    block = re.fullmatch(r"stage(\d+)_block(\d+)/(.+)", key)
    if block:
      stage, layer = int(block[1]) - 1, int(block[2]) - 1
      name = f"bit.encoder.stages.{stage}.layers.{layer}.{inside[block[3]]}"
    else:
      name = outside[key]
    found[name] = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
  return found
