"""Our parameters by the names that transformers' files have: the way back."""

import re
from collections.abc import Mapping

import numpy as np

from oneshot_dp.extract.backbones.backbone import Arrays
from oneshot_dp.extract.backbones.vit.weight_names import (
  BLOCK,
  IN_BLOCK,
  OUTSIDE,
  POSITIONS,
)

# Which of the names of a row are whose.
_NAMES = {
  "vit": r"layernorm_\w+|attention\..*|intermediate\..*|output\..*",
  "dinov2": r"norm\d|attention\..*|mlp\.fc.*|layer_scale.*",
  "dinov2_swiglu": r"norm\d|attention\..*|mlp\.weights.*|layer_scale.*",
  "siglip": r"layer_norm\d|self_attn\..*|mlp\.fc.*",
}
_OUTSIDE = {
  "vit": r"embeddings\.(.*projection|\w+_embeddings|\w+_tokens?)|layernorm",
  "siglip": r"embeddings\.\w+_embedding|post_layernorm",
}


def to_transformers(
  params: Mapping[str, np.ndarray], style: str, num_tokens: int
) -> Arrays:
  """The parameters of a `VisionTransformer` as transformers saves them.

  `style` is "vit" (DeiT too), "dinov2", "dinov2_swiglu" or "siglip";
  `num_tokens` have a position, which ours have added to them already.
  """
  inside = _theirs(IN_BLOCK, _NAMES[style])
  family = style if style in _OUTSIDE else "vit"
  outside = _theirs(OUTSIDE, _OUTSIDE[family])
  scope = "encoder.layers" if style == "siglip" else "encoder.layer"
  found = {}
  for key, value in params.items():
    if key == POSITIONS:
      none = np.zeros((1, num_tokens, value.shape[-1]), np.float32)
      value = np.concatenate([none, value], axis=1)
      is_table = style == "siglip"
      name = outside[key] + (".weight" if is_table else "")
      found[name] = value[0] if is_table else value
      continue
    stem, leaf = (
      (key, "")
      if key in outside or "layer_scale" in key
      else tuple(key.rsplit("/", 1))
    )
    block = re.fullmatch(rf"{BLOCK}(\d+)/(.+)", stem)
    name = f"{scope}.{block[1]}.{inside[block[2]]}" if block else outside[stem]
    found[name + _LEAVES[leaf]] = _theirs_of(value, leaf, stem)
  return found


_LEAVES = {"kernel": ".weight", "scale": ".weight", "bias": ".bias", "": ""}


def _theirs(table: Mapping[str, list[str]], pattern: str) -> dict[str, str]:
  """Ours to theirs; the first name of a row that the pattern knows."""
  found: dict[str, str] = {}
  for name, ours in table.items():
    if len(ours) == 1 and re.fullmatch(pattern, name):
      found.setdefault(ours[0], name)
  return found


def _theirs_of(value: np.ndarray, leaf: str, stem: str) -> np.ndarray:
  if leaf == "bias":
    return value.reshape(-1)
  if leaf != "kernel":
    return value
  if value.ndim == 4:
    return value.transpose(3, 2, 0, 1)
  # Heads lie side by side in PyTorch's: before the outputs, or behind.
  joined = (-1, value.shape[-1]) if stem.endswith("/out") else (len(value), -1)
  return value.reshape(joined).T
