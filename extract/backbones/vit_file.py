"""What a file of weights says of a Vision Transformer, and its arrays."""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float
from PIL import Image

from oneshot_dp.extract.backbones.backbone import Arrays
from oneshot_dp.extract.backbones.vit import ViT, last_blocks

_TOKENS = ("cls_token", "dist_token", "reg_token")
_HEADS = {1152: 16, 1280: 16}
"""By width, where it is not a head for every 64."""
_SIZES = {
  **{(192, 12): "ti", (384, 12): "s", (768, 12): "b", (1024, 24): "l"},
  **{(1280, 32): "h", (1152, 27): "so400m", (1536, 40): "g"},
}


def network_of(arrays: Mapping[str, np.ndarray], embedding: str | None) -> ViT:
  """The network of a file in timm's names, in float32.

  No name or shape says the number of heads (the published one is taken) nor
  which GELU (the exact one). The usual embedding is attention pooling where
  there is any, else the class token, else the mean. KeyError, ValueError,
  IndexError: it is no Vision Transformer, or has no such embedding.
  """
  width, _, patch, _ = arrays["patch_embed.proj.weight"].shape
  hidden = arrays["blocks.0.mlp.fc2.weight"].shape[1]
  gated = len(arrays["blocks.0.mlp.fc1.bias"]) == 2 * hidden
  rows = arrays["pos_embed"].shape[1]
  tokens = tuple((n, arrays[n].shape[1]) for n in _TOKENS if n in arrays)
  in_front = sum(number for _, number in tokens)
  if not (_is_square(rows) or _is_square(rows - in_front)):
    raise ValueError(f"positions of {rows} tokens are no square of patches")
  depth = len({n.split(".")[1] for n in arrays if n.startswith("blocks.")})
  choices = ["map"] * ("attn_pool.latent" in arrays)
  if "cls_token" in arrays:
    choices += ["cls", "cls_mean", f"last1_cls … last{depth}_cls"]
  choices += ["mean"] + ["pre_logits"] * ("pre_logits.fc.weight" in arrays)
  embedding = embedding or choices[0]
  last = ("cls" in choices and last_blocks(embedding)) or depth + 1
  if embedding not in choices and last > depth:
    raise ValueError(f"embedding {embedding!a} is none of {', '.join(choices)}")
  return ViT(
    width=width,
    depth=depth,
    hidden=hidden,
    patch=patch,
    heads=_HEADS.get(width, max(1, width // 64)),
    tokens=tokens,
    token_positions=in_front > 0 and not _is_square(rows),
    mlp="swiglu" if gated else "gelu",
    layer_scale="blocks.0.ls1.gamma" in arrays,
    embedding=embedding,
  )


def name_of(network: ViT) -> str:
  """The name of a network of this kind and size."""
  names, size = dict(network.tokens), (network.width, network.depth)
  kind = "dinov2" if network.layer_scale else "vit" if names else "siglip"
  kind += "_reg" * ("reg_token" in names)
  kind = "deit_distilled" if "dist_token" in names else kind
  return f"{kind}_{_SIZES.get(size, size)}{network.patch}"


def fitted(
  network: ViT, arrays: Mapping[str, np.ndarray], image_size: int
) -> Arrays:
  """The arrays that the embedding needs, with positions for the image size."""
  if image_size < network.patch:
    raise ValueError(f"image size {image_size} is below a patch's")
  unread = {"attn_pool": "map", "pre_logits": "pre_logits"}
  kept = {
    name: array
    for name, array in arrays.items()
    if network.embedding == unread.get(name.split(".")[0], network.embedding)
  }
  number = sum(n for _, n in network.tokens) * network.token_positions
  in_front, grid = np.split(kept["pos_embed"], [number], axis=1)
  resized = _resize_grid(grid[0], image_size // network.patch)
  kept["pos_embed"] = np.concatenate([in_front, resized[None]], axis=1)
  return kept


def folded(
  network: ViT, arrays: Mapping[str, np.ndarray], image_size: int
) -> Arrays:
  """The same for `flax_params`: patches are embedded by a matrix product."""
  arrays = fitted(network, arrays, image_size)
  kernel = arrays["patch_embed.proj.weight"].transpose(0, 2, 3, 1)
  matrix = kernel.reshape(network.width, -1)
  return {**arrays, "patch_embed.proj.weight": matrix}


def _resize_grid(
  positions: Float[np.ndarray, "m2 width"], side: int
) -> Float[np.ndarray, "g2 width"]:
  """Position embeddings of m × m patches, row after row, for side × side.

  By Pillow's bicubic filter, which is that of timm: the bits do not depend on
  the device.
  """
  old = math.isqrt(len(positions))
  if old == side:
    return positions
  grid = positions.reshape(old, old, -1).astype(np.float32)
  planes = map(Image.fromarray, np.moveaxis(grid, -1, 0).copy())
  bicubic, size = Image.Resampling.BICUBIC, (side, side)
  out = [np.asarray(plane.resize(size, bicubic)) for plane in planes]
  return np.stack(out, axis=-1).reshape(side * side, -1)


def _is_square(number: int) -> bool:
  return number > 0 and math.isqrt(number) ** 2 == number
