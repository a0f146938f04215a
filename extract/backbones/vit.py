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
import re
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import Images, products

Tokens = Float32[Array, "b t width"]


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
      "mean": the mean of the patch tokens; "cls_mean": both, concatenated;
      "last<k>_cls": the class tokens after each of the last k blocks,
      concatenated, the deepest last; "pre_logits": the class token through a
      dense layer and tanh; "map": attention pooling of all tokens.
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
    how, zeros = products(self.compute_dtype), nn.initializers.zeros
    mlp = functools.partial(Mlp, self.hidden, self.mlp, how, name="mlp")
    batch, grid = len(images), images.shape[1] // self.patch
    x = images[:, : grid * self.patch, : grid * self.patch]
    x = x.reshape(batch, grid, self.patch, grid, self.patch, 3).swapaxes(2, 3)
    x = x.reshape(batch, grid**2, self.patch**2 * 3)
    x = nn.Dense(self.width, name="patch_embed.proj", **how)(x)

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

    last = last_blocks(self.embedding)
    only_cls = bool(last) or self.embedding in ("cls", "pre_logits")
    leading = 1 if only_cls else None
    norm, outputs = layer_norm("norm"), []
    for i in range(self.depth):
      block = Block(self.heads, mlp, self.layer_scale, how, name=f"blocks.{i}")
      x = block(x, leading if i == self.depth - 1 else None)
      if i >= self.depth - (last or 1):
        outputs.append(norm(x[:, :leading]))

    x = outputs[-1]
    if self.embedding == "map":
      return AttentionPooling(self.heads, mlp, how, name="attn_pool")(x)
    if only_cls:
      x = jnp.concatenate([output[:, 0] for output in outputs], axis=-1)
      if self.embedding == "pre_logits":
        x = nn.tanh(nn.Dense(self.width, name="pre_logits.fc", **how)(x))
      return x.astype(jnp.float32)
    mean = x[:, number:].mean(axis=1)
    if self.embedding == "cls_mean":
      return jnp.concatenate([x[:, 0], mean], axis=-1)
    return mean


class Block(nn.Module):
  """Attention and MLP, each added to what goes in; LayerNorm before both.

  With `leading` only that many tokens from the front come out, and only for
  them is anything but queries, keys and values computed.
  """

  heads: int
  mlp: Any
  layer_scale: bool
  how: Mapping[str, Any]

  @nn.compact
  def __call__(
    self, x: Tokens, leading: int | None
  ) -> Float32[Array, "b out width"]:
    width = x.shape[-1]

    def scaled(name: str, branch: Array) -> Array:
      if not self.layer_scale:
        return branch
      return branch * self.param(name, nn.initializers.ones, (width,))

    qkv = nn.Dense(3 * width, name="attn.qkv", **self.how)
    q, k, v = jnp.split(qkv(layer_norm("norm1")(x)), 3, axis=-1)
    mixed = attention(q[:, :leading], k, v, self.heads, self.how)
    mixed = nn.Dense(width, name="attn.proj", **self.how)(mixed)
    x = x[:, :leading] + scaled("ls1.gamma", mixed)
    return x + scaled("ls2.gamma", self.mlp()(layer_norm("norm2")(x)))


def attention(
  q: Float[Array, "b q width"],
  k: Float[Array, "b t width"],
  v: Float[Array, "b t width"],
  heads: int,
  how: Mapping[str, Any],
) -> Float32[Array, "b q width"]:
  """softmax(q kᵀ/√dim) v for every head."""
  dim = q.shape[-1] // heads
  matmul = functools.partial(
    jnp.matmul, precision=how["precision"], preferred_element_type=jnp.float32
  )

  def by_head(x: Array) -> Array:
    return x.reshape(*x.shape[:2], heads, dim).swapaxes(1, 2)

  scores = matmul(by_head(q) * dim**-0.5, by_head(k).swapaxes(2, 3))
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  mixed = matmul(weights.astype(how["dtype"]), by_head(v))
  mixed = (mixed / weights.sum(axis=-1, keepdims=True)).swapaxes(1, 2)
  return mixed.reshape(q.shape)


class Mlp(nn.Module):
  """Two dense layers with GELU or a gate between them."""

  hidden: int
  kind: str
  how: Mapping[str, Any]

  @nn.compact
  def __call__(self, x: Tokens) -> Float[Array, "b t width"]:
    width, gated = x.shape[-1], self.kind == "swiglu"
    x = nn.Dense(self.hidden * (1 + gated), name="fc1", **self.how)(x)
    if gated:
      gate, value = jnp.split(x, 2, axis=-1)
      x = nn.silu(gate) * value
    else:
      x = nn.gelu(x, approximate=self.kind == "gelu_tanh")
    return nn.Dense(width, name="fc2", **self.how)(x)


class AttentionPooling(nn.Module):
  """A learned query attends to all tokens; then an MLP beside a residual."""

  heads: int
  mlp: Any
  how: Mapping[str, Any]

  @nn.compact
  def __call__(self, x: Tokens) -> Float32[Array, "b width"]:
    width = x.shape[-1]
    latent = self.param("latent", nn.initializers.zeros, (1, 1, width))
    query = jnp.repeat(latent, len(x), axis=0)
    q = nn.Dense(width, name="q", **self.how)(query)
    kv = nn.Dense(2 * width, name="kv", **self.how)(x)
    k, v = jnp.split(kv, 2, axis=-1)
    x = attention(q, k, v, self.heads, self.how)
    x = nn.Dense(width, name="proj", **self.how)(x).astype(jnp.float32)
    return (x + self.mlp()(layer_norm("norm")(x)))[:, 0]


def layer_norm(name: str) -> nn.LayerNorm:
  """In float32, by the two-pass formula."""
  return nn.LayerNorm(
    epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False, name=name
  )


def last_blocks(embedding: str) -> int | None:
  """The k of "last<k>_cls"; None for any other name."""
  match = re.fullmatch(r"last([1-9][0-9]{0,3})_cls", embedding)
  return int(match[1]) if match else None
