"""Google's names of arrays, of its npz of ViT, BiT and WRN, in timm's."""

import re
from collections.abc import Mapping

import numpy as np

from oneshot_dp.extract.weights import Arrays

_HEADS = "MultiHeadDotProductAttention_[01]/"
_BLOCK = r"Transformer/encoderblock_(?P<b>\d+)/"
_UNIT = r"resnet/block(?P<s>[1-4])/unit(?P<u>\d+)/"
_WRN = r"wide_res_net/Block_(?P<s>[1-3])_?"
# Google's names but for their last part, and timm's: vision_transformer's and
# big_vision's of ViT (which count the layers of a block differently),
# big_transfer's of BiT, and jax_privacy's of WRN, which are named as BiT's.
_MODULES = {
  "embedding": "patch_embed.proj",
  f"{_BLOCK}LayerNorm_0": "blocks.{b}.norm1",
  f"{_BLOCK}LayerNorm_[12]": "blocks.{b}.norm2",
  f"{_BLOCK}{_HEADS}(query|key|value)": "blocks.{b}.attn.qkv",
  f"{_BLOCK}{_HEADS}out": "blocks.{b}.attn.proj",
  f"{_BLOCK}MlpBlock_[03]/Dense_0": "blocks.{b}.mlp.fc1",
  f"{_BLOCK}MlpBlock_[03]/Dense_1": "blocks.{b}.mlp.fc2",
  "Transformer/encoder_norm": "norm",
  "pre_logits": "pre_logits.fc",
  "head": "head",
  "resnet/root_block/standardized_conv2d": "stem.conv",
  f"{_UNIT}(?P<l>[abc])/standardized_conv2d": "stages.{s}.blocks.{u}.conv{l}",
  f"{_UNIT}(?P<l>[abc])/group_norm": "stages.{s}.blocks.{u}.norm{l}",
  f"{_UNIT}a/proj/standardized_conv2d": "stages.{s}.blocks.{u}.downsample.conv",
  "resnet/group_norm": "norm",
  "wide_res_net/First_conv": "stem.conv",
  rf"{_WRN}Conv_(?P<b>\d+)_(?P<p>[01])": "stages.{s}.blocks.{b}.conv{p}",
  rf"{_WRN}norm_(?P<b>\d+)_(?P<p>[01])": "stages.{s}.blocks.{b}.norm{p}",
  f"{_WRN}skip_conv": "stages.{s}.blocks.0.downsample.conv",
  f"{_WRN}skip_norm": "stages.{s}.blocks.0.downsample.norm",
  "wide_res_net/Final_norm": "norm",
  "resnet/head/conv2d|wide_res_net/Softmax": "head.fc",
}
_LEAVES = {
  **dict.fromkeys(("kernel", "w", "scale", "gamma"), "weight"),
  **dict.fromkeys(("b", "offset", "beta"), "bias"),
}
_WHOLE = {
  "cls": "cls_token",
  "pos_embedding": "pos_embed",
  "Transformer/posembed_input/pos_embedding": "pos_embed",
}
_ADDED = {"s": -1, "u": -1, "b": 0, "p": 1}
"""To the number in a name."""


def in_timm_names(arrays: Mapping[str, np.ndarray]) -> Arrays:
  """Arrays of a file of Google's, renamed and in PyTorch's layout.

  A name that is unknown stays, to be refused later. ValueError: the arrays have
  no such shapes as Google's.
  """
  parts: dict[str, list[np.ndarray]] = {}
  # Query before key before value.
  for name in sorted(arrays, key=lambda n: ("/value/" in n, "/key/" in n)):
    parts.setdefault(_renamed(name), []).append(_in_pytorch(name, arrays[name]))
  return {
    name: np.concatenate(found) if len(found) > 1 else found[0]
    for name, found in parts.items()
  }


def _renamed(name: str) -> str:
  module, _, leaf = name.rpartition("/")
  for pattern, timm in _MODULES.items():
    if match := re.fullmatch(pattern, module):
      numbers = {
        key: "_abc".index(text) if key == "l" else int(text) + _ADDED[key]
        for key, text in match.groupdict().items()
      }
      return f"{timm.format(**numbers)}.{_LEAVES.get(leaf, leaf)}"
  return _WHOLE.get(name, name)


def _in_pytorch(name: str, array: np.ndarray) -> np.ndarray:
  """Heads of attention side by side in one axis; a kernel's outputs first."""
  is_kernel = name.endswith(("/kernel", "/w"))
  if "DotProductAttention" in name:
    joined = (-1, array.shape[-1]) if "/out/" in name else (len(array), -1)
    array = array.reshape(joined if is_kernel else -1)
  if not is_kernel:
    return array
  return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
