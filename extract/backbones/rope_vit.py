"""Vision Transformers with rotary positions: DINOv3.

Positions are not added to the tokens. Instead queries and keys of the patches
are rotated, channel by channel pair, by angles that grow with the patch's row
and column, so that their product depends on how far apart two patches are. No
array has to be resized for another image size.

Source: Siméoni et al., "DINOv3" (2025), section 3.2; Su et al., "RoFormer:
Enhanced Transformer with Rotary Position Embedding" (2021), equation 34.
"""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.weights import Arrays, Images

CLASSIFIER_WEIGHTS: tuple[str, ...] = ("head.", "mask_token")
_TEMPERATURE = 100.0
_SIZE_NAMES = {(384, 12): "s", (768, 12): "b", (1024, 24): "l"}
_norm = functools.partial(vit.layer_norm, epsilon=1e-5)


class RopeViT(nn.Module):
  """A Vision Transformer with rotary positions.

  Attributes:
    width: channels of a token.
    depth: number of blocks.
    hidden: units of a block's MLP.
    patch: side of a patch in pixels; what fills no patch is ignored.
    heads: attention heads.
    registers: tokens that nothing reads, between the class token and the
      patches'.
    embedding: "cls", the class token after the last LayerNorm, or "mean", the
      mean of the patch tokens.
    compute_dtype: dtype of matrix products.
  """

  width: int
  depth: int
  hidden: int
  patch: int
  heads: int
  registers: int
  embedding: str = "cls"
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    dtype = jnp.dtype(self.compute_dtype)
    batch = len(images)
    grid = images.shape[1] // self.patch

    # Patches.
    x = vit.patches_of(images, self.patch)
    project = nn.DenseGeneral(
      self.width, axis=(3, 4, 5), name="patch_embed.proj", dtype=dtype
    )
    x = project(x).reshape(batch, grid**2, self.width).astype(jnp.float32)

    # The tokens in front of them.
    zeros = nn.initializers.zeros
    class_token = self.param("cls_token", zeros, (1, 1, self.width))
    registers = self.param("reg_token", zeros, (1, self.registers, self.width))
    in_front = jnp.concatenate([class_token, registers], axis=1)
    in_front = jnp.repeat(in_front, batch, axis=0)
    x = jnp.concatenate([in_front, x], axis=1)

    # The last block computes the class token alone if nothing else is read.
    rotation = rotation_of_grid(
      grid, self.width // self.heads, unrotated=1 + self.registers
    )
    for index in range(self.depth):
      num_outputs = None
      if index == self.depth - 1 and self.embedding == "cls":
        num_outputs = 1
      block = Block(self.heads, self.hidden, dtype, name=f"blocks.{index}")
      x = block(x, rotation, num_outputs)
    x = _norm(name="norm")(x)
    if self.embedding == "mean":
      return x[:, 1 + self.registers :].mean(axis=1)
    return x[:, 0]


class Block(nn.Module):
  """Attention and MLP, each after a LayerNorm, scaled, beside a residual.

  With `num_outputs` only that many tokens from the front are returned.
  """

  heads: int
  hidden: int
  dtype: Any

  @nn.compact
  def __call__(
    self, x: vit.Tokens, rotation: "Rotation", num_outputs: int | None
  ) -> Float32[Array, "b out width"]:
    width = x.shape[-1]
    ones = nn.initializers.ones
    dense = functools.partial(nn.Dense, dtype=self.dtype)
    qkv = dense(3 * width, use_bias=False, name="attn.qkv")
    q, k, v = jnp.split(qkv(_norm(name="norm1")(x)), 3, axis=-1)
    # Queries and keys are turned, values are not: their product depends on the
    # distance of two patches, and what is mixed does not.
    q = rotated(q, rotation, self.heads)
    k = rotated(k, rotation, self.heads)
    mixed = vit.attention(q[:, :num_outputs], k, v, self.heads, self.dtype)
    mixed = dense(width, name="attn.proj")(mixed)
    x = x[:, :num_outputs] + mixed * self.param("gamma_1", ones, (width,))
    mlp = vit.Mlp(self.hidden, "gelu", self.dtype, name="mlp")
    hidden = mlp(_norm(name="norm2")(x))
    return x + hidden * self.param("gamma_2", ones, (width,))


Rotation = tuple[Float32[np.ndarray, "t dim"], Float32[np.ndarray, "t dim"]]
"""Sine and cosine of the angle of every token and channel of a head."""


def rotation_of_grid(grid: int, dim: int, unrotated: int) -> Rotation:
  """The angles of the tokens of a square of patches.

  A patch's row and column are in [-1, 1], its center counts. Half of the
  channel pairs are rotated by the row and half by the column, at periods from
  1 to nearly the temperature.

  Args:
    grid: patches on a side.
    dim: channels of a head; the pairs are (i, i + dim/2).
    unrotated: tokens in front of the patches', whose angle is 0.
  """
  # Constants of the compiled program, in float64 on the host: sines of large
  # angles would lose digits in float32.
  centers = 2 * (np.arange(grid) + 0.5) / grid - 1
  rows, columns = np.meshgrid(centers, centers, indexing="ij")
  places = np.stack([rows.ravel(), columns.ravel()], axis=1)
  periods = _TEMPERATURE ** (2 * np.arange(dim // 4) / (dim // 2))
  angles = 2 * np.pi * places[:, :, None] / periods
  angles = angles.reshape(grid**2, dim // 2)
  angles = np.concatenate([angles, angles], axis=1)
  angles = np.pad(angles, ((unrotated, 0), (0, 0)))
  return np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)


def rotated(x: Array, rotation: Rotation, heads: int) -> Array:
  """Rotates queries or keys [b, t, width], each head alike, in float32.

  Args:
    x: of all heads side by side, [b, t, heads · dim].
    rotation: sines and cosines of the angles of the t tokens, each [t, dim].
    heads: how many there are.

  Returns:
    [b, t, width] in the dtype of x.
  """
  sine, cosine = rotation
  by_head = x.astype(jnp.float32).reshape(*x.shape[:2], heads, -1)
  first, second = jnp.split(by_head, 2, axis=-1)
  turned = jnp.concatenate([-second, first], axis=-1)
  # Each pair of channels is a point in the plane, turned by its angle.
  out = by_head * cosine[:, None] + turned * sine[:, None]
  return out.reshape(x.shape).astype(x.dtype)


def infer_network(arrays: Arrays, embedding: str | None) -> RopeViT:
  """Returns the network that a weights file belongs to; see `Family`.

  Args:
    arrays: by timm's names.
    embedding: "cls", the class token, or "mean", of the patches; None is the
      class token.

  Raises:
    KeyError: an array is missing that all networks of this family have.
    ValueError: there are position embeddings, as in other ViTs; or it has no
      such embedding.
  """
  width, _, patch, _ = arrays["patch_embed.proj.weight"].shape
  # Everything else of a DINOv3 is in other ViTs, too.
  if "pos_embed" in arrays:
    raise ValueError(
      "there are position embeddings, which DINOv3 does not have"
    )
  if embedding not in (None, "cls", "mean"):
    raise ValueError(f"embedding {embedding!a} is none of cls, mean")
  # Blocks are counted by their names, and heads follow from the width: 64
  # channels each, in all sizes that were published.
  block_indices = set()
  for name in arrays:
    if name.startswith("blocks."):
      block_indices.add(name.split(".")[1])
  return RopeViT(
    width=width,
    depth=len(block_indices),
    hidden=arrays["blocks.0.mlp.fc2.weight"].shape[1],
    patch=patch,
    heads=max(1, width // 64),
    registers=arrays["reg_token"].shape[1],
    embedding=embedding or "cls",
  )


def inferred_name(network: RopeViT) -> str:
  """Returns the backbone name of a network of this kind and size."""
  size = _SIZE_NAMES.get((network.width, network.depth))
  if size is None:
    return vit.describe_size(
      "dinov3", network.width, network.depth, network.patch
    )
  return f"dinov3_{size}{network.patch}"


def adapt_weights(network: RopeViT, arrays: Arrays, image_size: int) -> Arrays:
  """Returns the arrays as they are: none depends on the image size.

  Args:
    network: from `infer_network`.
    arrays: by timm's names.
    image_size: in pixels.

  Raises:
    ValueError: the image size is smaller than a patch.
  """
  if image_size < network.patch:
    raise ValueError(f"image size {image_size} is below a patch's")
  return dict(arrays)
