"""The Vision Transformer, from pixels to embedding: ViT, DeiT, DINOv2, SigLIP.

Arranged for speed on every XLA backend: the patch embedding is a matrix product
instead of a strided convolution (2x on a CPU); where only the class token is
read the last block computes only that token; attention runs as batched products
over [batch, heads, tokens, dim] (1.5x), and the softmax is divided by its sum
after the values are mixed (1.1x). The stream of tokens, LayerNorm and softmax
are float32 whatever the dtype of the products.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021),
equations 1 to 4. Distillation token: Touvron et al., "Training data-efficient
image transformers" (ICML 2021). LayerScale: "Going deeper with Image
Transformers" (ICCV 2021). Attention pooling: Zhai et al., "Scaling Vision
Transformers" (CVPR 2022). Registers: Darcet et al., "Vision Transformers Need
Registers" (ICLR 2024).
"""

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32
from PIL import Image

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.weights import Arrays, Images

Tokens = Float32[Array, "b t width"]
_TOKENS = ("cls_token", "dist_token", "reg_token")
_HEADS = {1152: 16, 1280: 16}
"""By width, where it is not a head for every 64."""
_SIZES = {
  **{(192, 12): "ti", (384, 12): "s", (768, 12): "b", (1024, 24): "l"},
  **{(1280, 32): "h", (1152, 27): "so400m", (1536, 40): "g"},
}


class ViT(nn.Module):
  """Images to embeddings.

  Attributes:
    width, depth, hidden: of the tokens, blocks, units of a block's MLP.
    patch: side of a patch, pixels; what fills no patch, to the right and below,
      is left out.
    heads: of attention.
    tokens: name and number of the tokens in front of the patches'.
    token_positions: whether those have position embeddings too.
    mlp: "gelu" (exact), "gelu_tanh", or "swiglu", the gate silu(a)·b.
    layer_scale: whether each branch is scaled before it is added.
    embedding: what is read after the last LayerNorm. "cls": the class token;
      "mean": the mean of the patch tokens; "pre_logits": the class token
      through a dense layer and tanh; "map": attention pooling of all tokens.
    compute_dtype: of the matrix products.
  """

  width: int
  depth: int
  hidden: int
  patch: int
  heads: int
  tokens: tuple[tuple[str, int], ...] = (("cls_token", 1),)
  token_positions: bool = True
  mlp: str = "gelu"
  layer_scale: bool = False
  embedding: str = "cls"
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    dtype, zeros = jnp.dtype(self.compute_dtype), nn.initializers.zeros
    mlp = functools.partial(Mlp, self.hidden, self.mlp, dtype, name="mlp")
    batch, grid = len(images), images.shape[1] // self.patch
    x = images[:, : grid * self.patch, : grid * self.patch]
    x = x.reshape(batch, grid, self.patch, grid, self.patch, 3).swapaxes(2, 3)
    x = x.reshape(batch, grid**2, self.patch**2 * 3)
    x = nn.Dense(self.width, name="patch_embed.proj", dtype=dtype)(x)

    number = sum(number for _, number in self.tokens)
    rows = grid**2 + number * self.token_positions
    positions = self.param("pos_embed", zeros, (1, rows, self.width))
    if not self.token_positions:
      x = x + positions
    in_front = [
      jnp.repeat(self.param(name, zeros, (1, n, self.width)), batch, axis=0)
      for name, n in self.tokens
    ]
    x = jnp.concatenate([*in_front, x.astype(jnp.float32)], axis=1)
    if self.token_positions:
      x = x + positions

    leading = 1 if self.embedding in ("cls", "pre_logits") else None
    for i in range(self.depth):
      scaled, last = self.layer_scale, i == self.depth - 1
      block = Block(self.heads, mlp, scaled, dtype, name=f"blocks.{i}")
      x = block(x, leading if last else None)
    x = layer_norm("norm")(x)
    match self.embedding:
      case "map":
        return AttentionPooling(self.heads, mlp, dtype, name="attn_pool")(x)
      case "mean":
        return x[:, number:].mean(axis=1)
      case "pre_logits":
        dense = nn.Dense(self.width, dtype=dtype, name="pre_logits.fc")
        return nn.tanh(dense(x[:, 0])).astype(jnp.float32)
    return x[:, 0]


class Block(nn.Module):
  """Attention and MLP, each added to what goes in; LayerNorm before both.

  With `leading` only that many tokens from the front come out, and only for
  them is anything but queries, keys and values computed.
  """

  heads: int
  mlp: Any
  layer_scale: bool
  dtype: Any

  @nn.compact
  def __call__(
    self, x: Tokens, leading: int | None
  ) -> Float32[Array, "b out width"]:
    width = x.shape[-1]

    def scaled(name: str, branch: Array) -> Array:
      if not self.layer_scale:
        return branch
      return branch * self.param(name, nn.initializers.ones, (width,))

    qkv = nn.Dense(3 * width, name="attn.qkv", dtype=self.dtype)
    q, k, v = jnp.split(qkv(layer_norm("norm1")(x)), 3, axis=-1)
    mixed = attention(q[:, :leading], k, v, self.heads, self.dtype)
    mixed = nn.Dense(width, name="attn.proj", dtype=self.dtype)(mixed)
    x = x[:, :leading] + scaled("ls1.gamma", mixed)
    return x + scaled("ls2.gamma", self.mlp()(layer_norm("norm2")(x)))


def attention(
  q: Float[Array, "b q width"],
  k: Float[Array, "b t width"],
  v: Float[Array, "b t width"],
  heads: int,
  dtype: Any,
) -> Float32[Array, "b q width"]:
  """softmax(q kᵀ/√dim) v for every head."""
  dim = q.shape[-1] // heads
  matmul = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)

  def by_head(x: Array) -> Array:
    return x.reshape(*x.shape[:2], heads, dim).swapaxes(1, 2)

  scores = matmul(by_head(q) * dim**-0.5, by_head(k).swapaxes(2, 3))
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  mixed = matmul(weights.astype(dtype), by_head(v))
  mixed = (mixed / weights.sum(axis=-1, keepdims=True)).swapaxes(1, 2)
  return mixed.reshape(q.shape)


class Mlp(nn.Module):
  """Two dense layers with GELU or a gate between them."""

  hidden: int
  kind: str
  dtype: Any

  @nn.compact
  def __call__(self, x: Tokens) -> Float[Array, "b t width"]:
    width, gated = x.shape[-1], self.kind == "swiglu"
    x = nn.Dense(self.hidden * (1 + gated), name="fc1", dtype=self.dtype)(x)
    if gated:
      gate, value = jnp.split(x, 2, axis=-1)
      x = nn.silu(gate) * value
    else:
      x = nn.gelu(x, approximate=self.kind == "gelu_tanh")
    return nn.Dense(width, name="fc2", dtype=self.dtype)(x)


class AttentionPooling(nn.Module):
  """A learned query attends to all tokens; then an MLP beside a residual."""

  heads: int
  mlp: Any
  dtype: Any

  @nn.compact
  def __call__(self, x: Tokens) -> Float32[Array, "b width"]:
    width = x.shape[-1]
    latent = self.param("latent", nn.initializers.zeros, (1, 1, width))
    query = jnp.repeat(latent, len(x), axis=0)
    q = nn.Dense(width, name="q", dtype=self.dtype)(query)
    kv = nn.Dense(2 * width, name="kv", dtype=self.dtype)(x)
    k, v = jnp.split(kv, 2, axis=-1)
    x = attention(q, k, v, self.heads, self.dtype)
    x = nn.Dense(width, name="proj", dtype=self.dtype)(x).astype(jnp.float32)
    return (x + self.mlp()(layer_norm("norm")(x)))[:, 0]


def layer_norm(name: str) -> nn.LayerNorm:
  """In float32, by the two-pass formula."""
  return nn.LayerNorm(
    epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False, name=name
  )


def network_of(arrays: Arrays, embedding: str | None) -> ViT:
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
  is_square = [
    n > 0 and math.isqrt(n) ** 2 == n for n in (rows, rows - in_front)
  ]
  if not any(is_square):
    raise ValueError(f"positions of {rows} tokens are no square of patches")
  depth = len({n.split(".")[1] for n in arrays if n.startswith("blocks.")})
  choices = ["map"] * ("attn_pool.latent" in arrays)
  choices += ["cls"] * ("cls_token" in arrays) + ["mean"]
  choices += ["pre_logits"] * ("pre_logits.fc.weight" in arrays)
  embedding = embedding or choices[0]
  if embedding not in choices:
    raise ValueError(f"embedding {embedding!a} is none of {', '.join(choices)}")
  return ViT(
    width=width,
    depth=depth,
    hidden=hidden,
    patch=patch,
    heads=_HEADS.get(width, max(1, width // 64)),
    tokens=tokens,
    token_positions=in_front > 0 and not is_square[0],
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


def fitted(network: ViT, arrays: Arrays, image_size: int) -> Arrays:
  """The arrays that the embedding needs, with positions for the image size."""
  if not (side := image_size // network.patch):
    raise ValueError(f"image size {image_size} is below a patch's")
  unread = {"attn_pool": "map", "pre_logits": "pre_logits"}
  kept = {
    name: array
    for name, array in arrays.items()
    if network.embedding == unread.get(name.split(".")[0], network.embedding)
  }
  number = sum(n for _, n in network.tokens) * network.token_positions
  in_front, grid = np.split(kept["pos_embed"], [number], axis=1)
  if grid.shape[1] != side**2:
    resized = _resize_grid(grid[0], side)
    kept["pos_embed"] = np.concatenate([in_front, resized[None]], axis=1)
  return kept


def folded(network: ViT, arrays: Arrays, image_size: int) -> Arrays:
  """The same for `flax_params`: patches are embedded by a matrix product."""
  arrays = fitted(network, arrays, image_size)
  kernel = arrays["patch_embed.proj.weight"].transpose(0, 2, 3, 1)
  return arrays | {"patch_embed.proj.weight": kernel.reshape(len(kernel), -1)}


def _resize_grid(
  positions: Float[np.ndarray, "m2 width"], side: int
) -> Float[np.ndarray, "g2 width"]:
  """Position embeddings of m × m patches, row after row, for side × side.

  By Pillow's bicubic filter, which is that of timm: the bits do not depend on
  the device.
  """
  old = math.isqrt(len(positions))
  grid = positions.reshape(old, old, -1).astype(np.float32)
  planes = map(Image.fromarray, np.moveaxis(grid, -1, 0).copy())
  bicubic, size = Image.Resampling.BICUBIC, (side, side)
  out = [np.asarray(plane.resize(size, bicubic)) for plane in planes]
  return np.stack(out, axis=-1).reshape(side * side, -1)
