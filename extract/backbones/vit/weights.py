"""Weights of Vision Transformers in public files to our parameters.

Ours are big_vision's, but for one thing: the position embedding of a token
that stands before the patches is added to that token here, once and for all.
"""

import math
from collections.abc import Mapping

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.backbones.backbone import Arrays, Shape
from oneshot_dp.extract.backbones.vit.position_embedding import (
  Resize,
  is_square,
  resize_grid,
)
from oneshot_dp.extract.backbones.vit.weight_names import (
  BLOCK,
  MAP,
  POSITIONS,
  translated,
)

# What only some embeddings need, and what to set where a file lacks it.
_OPTIONAL = {
  "head": "",
  "pre_logits": "backbone.embedding=cls",
  MAP: "backbone.embedding=gap or mean",
}


def rename(
  arrays: Mapping[str, np.ndarray],
  expected: Mapping[str, Shape],
  path: str,
  *,
  name: str,
  resize: Resize,
) -> Arrays:
  """Our parameters from a file; see `Architecture.rename`.

  `name` is the backbone's, for messages; `resize` is how position embeddings
  are fitted to the image size.
  """
  ours = dict(translated(arrays))
  _add_positions_to_tokens(ours, path)
  for part, instead in _OPTIONAL.items():
    having = {key for key in ours if key.startswith(f"{part}/")}
    if not any(key.startswith(f"{part}/") for key in expected):
      ours = {key: v for key, v in ours.items() if key not in having}
    elif "embedding/kernel" in ours and not having:
      raise InputError(f"{path} has no {part} layer: set {instead}.")
  shapes = {key: value.shape for key, value in ours.items()}
  _check_network(shapes, expected, path, name)
  for key in ours.keys() & expected.keys():
    shape, value = expected[key], ours[key]
    if key == POSITIONS and value.ndim == 3 and len(value) == 1:
      ours[key] = resize_grid(value[0], shape[1], resize)[None]
    elif value.ndim < len(shape) and value.size == math.prod(shape):
      # PyTorch keeps the heads of attention side by side in one axis.
      ours[key] = value.reshape(shape)
  return ours


def _add_positions_to_tokens(ours: Arrays, path: str) -> None:
  """Splits position embeddings of tokens from those of patches, and adds."""
  positions = ours.get(POSITIONS)
  if positions is None or positions.ndim != 3 or len(positions) != 1:
    return
  tokens = [name for name in ("cls", "dist") if name in ours]
  number = positions.shape[1]
  if is_square(number - len(tokens)):
    for i, name in enumerate(tokens):
      its = positions[:, i : i + 1]
      if its.shape == ours[name].shape:
        ours[name] = ours[name] + its.astype(np.float32)
    ours[POSITIONS] = positions[:, len(tokens) :]
  elif not is_square(number):
    raise InputError(
      f"{path}: its position embeddings are for {number} tokens, which are not "
      f"a square grid of patches (after {len(tokens)} other tokens or none): "
      "fetch weights of a network of square images."
    )


def _check_network(
  found: Mapping[str, Shape],
  expected: Mapping[str, Shape],
  path: str,
  name: str,
) -> None:
  seen, wanted = _traits(found), _traits(expected)
  if seen and seen != wanted:
    differ = [key for key in wanted if key == "" or seen[key] != wanted[key]]
    choice = ", or a backbone.embedding" if "cls" in differ else ""
    raise InputError(
      f"{path}: the weights look like {', '.join(seen[k] for k in differ)}; "
      f"{name} expects {', '.join(wanted[k] for k in differ)}: give the "
      f"weights or the name of the other{choice}."
    )


def _traits(shapes: Mapping[str, Shape]) -> dict[str, str]:
  """What a set of shapes is, in words; empty where it is no ViT."""
  kernel = shapes.get("embedding/kernel", ())
  if len(kernel) != 4 or POSITIONS not in shapes:
    return {}
  blocks = {key.split("/")[1] for key in shapes if key.startswith(BLOCK)}
  mlp = shapes.get(f"{BLOCK}0/MlpBlock_0/Dense_0/kernel") or (0,)
  traits = {
    "": f"width {kernel[3]} depth {len(blocks)} patch {kernel[0]}",
    "mlp": f"MLP {mlp[-1]}",
  }
  for key, some, none in (
    ("cls", "a class token", "no class token"),
    ("dist", "a distillation token", "no distillation token"),
    ("registers", "{} register tokens", "no register tokens"),
    (f"{BLOCK}0/layer_scale_0", "LayerScale", "no LayerScale"),
  ):
    shape = shapes.get(key)
    traits[key] = some.format(math.prod(shape[:-1])) if shape else none
  return traits
