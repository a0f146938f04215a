"""Translates Google's names and layouts of arrays to timm's.

Google publishes ViT, BiT and WRN as npz files of Flax and Haiku parameters.
"""

import re
from collections.abc import Mapping

import numpy as np

from oneshot_dp.extract.weights import Arrays

_ATTENTION = "MultiHeadDotProductAttention_[01]/"
_BLOCK = r"Transformer/encoderblock_(?P<block>\d+)/"
_UNIT = r"resnet/block(?P<stage>[1-4])/unit(?P<unit>\d+)/"
_WRN = r"wide_res_net/Block_(?P<stage>[1-3])_?"

# Google's names of modules as regular expressions, and timm's as templates:
# vision_transformer's and big_vision's of ViT (which count the layers of a
# block differently), big_transfer's of BiT, and jax_privacy's of WRN, for which
# BiT's names are used.
_MODULES = {
  "embedding": "patch_embed.proj",
  f"{_BLOCK}LayerNorm_0": "blocks.{block}.norm1",
  f"{_BLOCK}LayerNorm_[12]": "blocks.{block}.norm2",
  f"{_BLOCK}{_ATTENTION}(query|key|value)": "blocks.{block}.attn.qkv",
  f"{_BLOCK}{_ATTENTION}out": "blocks.{block}.attn.proj",
  f"{_BLOCK}MlpBlock_[03]/Dense_0": "blocks.{block}.mlp.fc1",
  f"{_BLOCK}MlpBlock_[03]/Dense_1": "blocks.{block}.mlp.fc2",
  "Transformer/encoder_norm": "norm",
  "pre_logits": "pre_logits.fc",
  "head": "head",
  "resnet/root_block/standardized_conv2d": "stem.conv",
  f"{_UNIT}(?P<layer>[abc])/standardized_conv2d": (
    "stages.{stage}.blocks.{unit}.conv{layer}"
  ),
  f"{_UNIT}(?P<layer>[abc])/group_norm": (
    "stages.{stage}.blocks.{unit}.norm{layer}"
  ),
  f"{_UNIT}a/proj/standardized_conv2d": (
    "stages.{stage}.blocks.{unit}.downsample.conv"
  ),
  "resnet/group_norm": "norm",
  "wide_res_net/First_conv": "stem.conv",
  rf"{_WRN}Conv_(?P<block>\d+)_(?P<place>[01])": (
    "stages.{stage}.blocks.{block}.conv{place}"
  ),
  rf"{_WRN}norm_(?P<block>\d+)_(?P<place>[01])": (
    "stages.{stage}.blocks.{block}.norm{place}"
  ),
  f"{_WRN}skip_conv": "stages.{stage}.blocks.0.downsample.conv",
  f"{_WRN}skip_norm": "stages.{stage}.blocks.0.downsample.norm",
  "wide_res_net/Final_norm": "norm",
  "resnet/head/conv2d|wide_res_net/Softmax": "head.fc",
}
_LEAVES = {
  "kernel": "weight",
  "w": "weight",
  "scale": "weight",
  "gamma": "weight",
  "b": "bias",
  "offset": "bias",
  "beta": "bias",
}
_ARRAYS_OF_NO_MODULE = {
  "cls": "cls_token",
  "pos_embedding": "pos_embed",
  "Transformer/posembed_input/pos_embedding": "pos_embed",
}
# Google counts stages and units from 1, and the two convolutions of a WRN's
# block from 0; timm does the opposite.
_COUNT_OFFSET = {"stage": -1, "unit": -1, "block": 0, "place": 1}
_LAYER_NUMBER = {"a": "1", "b": "2", "c": "3"}


def to_timm_names(arrays: Mapping[str, np.ndarray]) -> Arrays:
  """Renames the arrays of one of Google's files, and transposes kernels.

  Args:
    arrays: by Google's names; kernels have their outputs last.

  Returns:
    The arrays by timm's names; kernels have their outputs first, and query, key
    and value are one array. Unknown names stay, to be refused later.

  Raises:
    ValueError: the shapes are not Google's.
  """
  # Google has query, key and value apart, timm has them in one array, in this
  # order.
  parts: dict[str, list[np.ndarray]] = {}
  for name in sorted(arrays, key=_query_key_value_order):
    part = _to_pytorch_layout(name, arrays[name])
    parts.setdefault(_timm_name(name), []).append(part)
  renamed = {}
  for name, pieces in parts.items():
    if len(pieces) == 1:
      renamed[name] = pieces[0]
    else:
      renamed[name] = np.concatenate(pieces)
  return renamed


def _query_key_value_order(name: str) -> int:
  """Sorts the parts of one of timm's `qkv` arrays into their order in it."""
  if "/value/" in name:
    return 2
  if "/key/" in name:
    return 1
  return 0


def _timm_name(name: str) -> str:
  module, _, leaf = name.rpartition("/")
  for pattern, template in _MODULES.items():
    match = re.fullmatch(pattern, module)
    if match:
      numbers = {}
      for field, text in match.groupdict().items():
        if field == "layer":
          numbers[field] = _LAYER_NUMBER[text]
        else:
          numbers[field] = str(int(text) + _COUNT_OFFSET[field])
      return f"{template.format(**numbers)}.{_LEAVES.get(leaf, leaf)}"
  return _ARRAYS_OF_NO_MODULE.get(name, name)


def _to_pytorch_layout(name: str, array: np.ndarray) -> np.ndarray:
  """Joins the axes of attention heads, and puts a kernel's outputs first."""
  is_kernel = name.endswith(("/kernel", "/w"))
  # Flax keeps attention heads as an axis of their own, PyTorch joins them with
  # the channels.
  if "DotProductAttention" in name:
    if not is_kernel:
      array = array.reshape(-1)
    elif "/out/" in name:  # [heads, dim, width]
      array = array.reshape(-1, array.shape[-1])
    else:  # [width, heads, dim]
      array = array.reshape(len(array), -1)
  if not is_kernel:
    return array
  if array.ndim == 4:
    return array.transpose(3, 2, 0, 1)
  return array.T
