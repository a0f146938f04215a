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
from jaxtyping import Array, Float32
from PIL import Image

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.weights import Arrays, Images

Tokens = Float32[Array, "b t width"]
_TOKENS = ("cls_token", "dist_token", "reg_token")
_READ = {
  **{"map": "attn_pool", "cls": "cls_token", "mean": "norm"},
  "pre_logits": "pre_logits",
}
"""By embedding, the usual one first, the module or token that it needs."""
_HEADS = {1152: 16, 1280: 16}
"""By width, where it is not a head for every 64."""
_SIZES = {
  **{(192, 12): "ti", (384, 12): "s", (768, 12): "b", (1024, 24): "l"},
  **{(1280, 32): "h", (1152, 27): "so400m", (1536, 40): "g"},
}
# By the two-pass formula.
layer_norm = functools.partial(
  nn.LayerNorm, epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False
)


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
    mlp = functools.partial(two_layers, self.hidden, self.mlp, dtype)
    batch, grid = len(images), images.shape[1] // self.patch
    x = images[:, : grid * self.patch, : grid * self.patch]
    x = x.reshape(batch, grid, self.patch, grid, self.patch, 3).swapaxes(2, 3)
    x = nn.DenseGeneral(
      self.width, axis=(3, 4, 5), name="patch_embed.proj", dtype=dtype
    )(x).reshape(batch, grid**2, self.width)

    in_front = [
      jnp.repeat(self.param(name, zeros, (1, n, self.width)), batch, axis=0)
      for name, n in self.tokens
    ]
    x = jnp.concatenate([*in_front, x.astype(jnp.float32)], axis=1)
    number = x.shape[1] - grid**2
    bare = 0 if self.token_positions else number
    shape = 1, x.shape[1] - bare, self.width
    positions = self.param("pos_embed", zeros, shape)
    x = x + jnp.pad(positions, ((0, 0), (bare, 0), (0, 0)))

    leading = 1 if self.embedding in ("cls", "pre_logits") else None
    for i in range(self.depth):
      scaled, last = self.layer_scale, i == self.depth - 1
      block = Block(self.heads, mlp, scaled, dtype, name=f"blocks.{i}")
      x = block(x, leading if last else None)
    x = layer_norm(name="norm")(x)
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
      if self.layer_scale:
        branch *= self.param(name, nn.initializers.ones, (width,))
      return branch

    qkv = nn.Dense(3 * width, name="attn.qkv", dtype=self.dtype)
    q, k, v = jnp.split(qkv(layer_norm(name="norm1")(x)), 3, axis=-1)
    mixed = attention(q[:, :leading], k, v, self.heads, self.dtype)
    mixed = nn.Dense(width, name="attn.proj", dtype=self.dtype)(mixed)
    x = x[:, :leading] + scaled("ls1.gamma", mixed)
    return x + scaled("ls2.gamma", self.mlp(layer_norm(name="norm2")(x)))


def attention(q: Array, k: Array, v: Array, heads: int, dtype: Any) -> Array:
  """softmax(q kᵀ/√dim) v by heads, in float32: q [b, q, w]; k, v [b, t, w]."""
  dim = q.shape[-1] // heads
  matmul = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)

  def by_head(x: Array) -> Array:
    return x.reshape(*x.shape[:2], heads, dim).swapaxes(1, 2)

  scores = matmul(by_head(q) * dim**-0.5, by_head(k).swapaxes(2, 3))
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  mixed = matmul(weights.astype(dtype), by_head(v))
  mixed = (mixed / weights.sum(axis=-1, keepdims=True)).swapaxes(1, 2)
  return mixed.reshape(q.shape)


def two_layers(hidden: int, kind: str, dtype: Any, x: Array) -> Array:
  """The MLP of a block, with GELU or a gate in between: [b, t, width]."""
  width, gated = x.shape[-1], kind == "swiglu"
  x = nn.Dense(hidden * (1 + gated), name="mlp.fc1", dtype=dtype)(x)
  if gated:
    gate, value = jnp.split(x, 2, axis=-1)
    x = nn.silu(gate) * value
  else:
    x = nn.gelu(x, approximate=kind == "gelu_tanh")
  return nn.Dense(width, name="mlp.fc2", dtype=dtype)(x)


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
    return (x + self.mlp(layer_norm(name="norm")(x)))[:, 0]


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
  square = [n > 0 and math.isqrt(n) ** 2 == n for n in (rows, rows - in_front)]
  if not any(square):
    raise ValueError(f"positions of {rows} tokens are no square of patches")
  depth = len({n.split(".")[1] for n in arrays if n.startswith("blocks.")})
  there = {name.partition(".")[0] for name in arrays}
  choices = [e for e, needed in _READ.items() if needed in there]
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
    token_positions=not square[0],
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
  """The arrays that the embedding needs, with positions for the image size.

  By Pillow's bicubic filter, which is that of timm: the bits do not depend on
  the device.
  """
  if not (side := image_size // network.patch):
    raise ValueError(f"image size {image_size} is below a patch's")
  unread = {_READ[e] for e in ("map", "pre_logits") if e != network.embedding}
  kept = {k: v for k, v in arrays.items() if k.split(".")[0] not in unread}
  number = sum(n for _, n in network.tokens) * network.token_positions
  in_front, grid = np.split(kept["pos_embed"], [number], axis=1)
  old, bicubic = math.isqrt(grid.shape[1]), Image.Resampling.BICUBIC
  planes = grid[0].T.astype(np.float32, order="C").reshape(-1, old, old)
  resized = [Image.fromarray(p).resize((side, side), bicubic) for p in planes]
  grid = np.stack([np.asarray(plane).ravel() for plane in resized], axis=-1)
  return kept | {"pos_embed": np.concatenate([in_front, grid[None]], axis=1)}
