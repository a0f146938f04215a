"""The Vision Transformer, from patches to an embedding, in all public forms.

Parameters are named as in big_vision's files. Arranged for speed on every XLA
backend: the patch embedding is one matrix product instead of a strided
convolution (2x on a CPU); where only the class token is read the last block
computes only that token; attention runs as batched products over [batch, heads,
tokens, dim] (1.5x), and the softmax is divided by its sum after the values are
mixed, on `dim` numbers per token instead of `tokens` (1.1x). The stream of
tokens, the statistics of LayerNorm and the softmax are float32 whatever the
dtype of the products.
"""

import functools
import re
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import products

MlpKind = Literal["gelu", "gelu_tanh", "swiglu"]
_Part = Callable[[], nn.Module]


def last_blocks(embedding: str) -> int | None:
  """The k of "last<k>_cls"; None for any other name."""
  match = re.fullmatch(r"last([1-9][0-9]*)_cls", embedding)
  return int(match[1]) if match else None


class VisionTransformer(nn.Module):
  """Images to embeddings.

  Attributes:
    width: of the tokens.
    depth: number of blocks.
    mlp_dim: hidden units of a block's MLP.
    num_heads: attention heads.
    patch: side of a patch, pixels.
    tokens: name and number of the tokens in front of the patches'.
    mlp: GELU (exact, or its tanh form), or the gate silu(a)·b of SwiGLU.
    layer_scale: whether each branch is scaled before it is added.
    drops_border: whether pixels to the right and below that fill no patch are
      left out; otherwise such an image is refused.
    embedding: what is read after the last LayerNorm. "cls": the class token;
      "mean": the mean of the patch tokens; "cls_mean": both, concatenated;
      "last<k>_cls": the class tokens after each of the last k blocks,
      concatenated, the deepest last; "pre_logits": the class token through a
      dense layer and tanh; "map": attention pooling of all tokens.
    compute_dtype: dtype of the matrix products; "float32" asks the device for
      true float32 products.

  Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021),
  equations 1 to 4. LayerScale: Touvron et al., "Going deeper with Image
  Transformers" (ICCV 2021). Attention pooling: Zhai et al., "Scaling Vision
  Transformers" (CVPR 2022). Registers: Darcet et al., "Vision Transformers
  Need Registers" (ICLR 2024).
  """

  width: int
  depth: int
  mlp_dim: int
  num_heads: int
  patch: int
  tokens: tuple[tuple[str, int], ...] = (("cls", 1),)
  mlp: MlpKind = "gelu"
  layer_scale: bool = False
  drops_border: bool = False
  embedding: str = "cls"
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    """Embeddings of normalised images whose side the patches tile."""
    tokens = PatchEmbedding(
      self.width,
      self.patch,
      self.drops_border,
      self.compute_dtype,
      name="embedding",
    )(images)
    tokens = tokens + self.param(
      "pos_embedding", nn.initializers.normal(0.02), (1, *tokens.shape[1:])
    )
    in_front = [
      self.param(name, nn.initializers.zeros, (1, number, self.width))
      for name, number in self.tokens
    ]
    in_front = [jnp.repeat(token, len(images), axis=0) for token in in_front]
    tokens = jnp.concatenate([*in_front, tokens], axis=1)
    attention = functools.partial(
      Attention,
      self.num_heads,
      self.compute_dtype,
      name="MultiHeadDotProductAttention_0",
    )
    mlp = functools.partial(
      Mlp, self.mlp_dim, self.mlp, self.compute_dtype, name="MlpBlock_0"
    )
    last = last_blocks(self.embedding)
    only_cls = last or self.embedding in ("cls", "pre_logits")
    outputs = Encoder(
      functools.partial(Block, attention, mlp, self.layer_scale),
      self.depth,
      last or 1,
      1 if only_cls else None,
      name="Transformer",
    )(tokens)
    tokens = outputs[-1]
    if self.embedding == "map":
      read = AttentionPooling(attention, mlp, name="MAPHead_0")(tokens)
    elif only_cls:
      read = jnp.concatenate([output[:, 0] for output in outputs], axis=-1)
      if self.embedding == "pre_logits":
        how = products(self.compute_dtype)
        read = nn.tanh(nn.Dense(self.width, name="pre_logits", **how)(read))
    else:
      first_patch = sum(number for _, number in self.tokens)
      read = tokens[:, first_patch:].mean(axis=1)
      if self.embedding == "cls_mean":
        read = jnp.concatenate([tokens[:, 0], read], axis=-1)
    return read.astype(jnp.float32)


class PatchEmbedding(nn.Module):
  """Every patch as a token: one matrix product."""

  width: int
  patch: int
  drops_border: bool
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, images: Float[Array, "b s s 3"]
  ) -> Float32[Array, "b patches width"]:
    batch, side = images.shape[:2]
    patch, width = self.patch, self.width
    grid = side // patch
    if not grid or (side % patch and not self.drops_border):
      nearest = {max(1, grid) * patch, (grid + 1) * patch}
      raise InputError(
        f"image_size={side} is not a multiple of the patch size {patch}: use "
        f"{' or '.join(map(str, sorted(nearest)))}."
      )
    kernel = self.param(
      "kernel", nn.initializers.lecun_normal(), (patch, patch, 3, width)
    )
    bias = self.param("bias", nn.initializers.zeros, (width,))
    how = products(self.compute_dtype)
    x = images[:, : grid * patch, : grid * patch].astype(how["dtype"])
    x = x.reshape(batch, grid, patch, grid, patch, 3).swapaxes(2, 3)
    x = x.reshape(batch, grid * grid, patch * patch * 3)
    kernel = kernel.reshape(-1, width).astype(how["dtype"])
    x = jnp.matmul(x, kernel, precision=how["precision"])
    return x.astype(jnp.float32) + bias


class Encoder(nn.Module):
  """The blocks; what comes after each of the `last`, `leading` tokens of it."""

  block: Callable[..., nn.Module]
  depth: int
  last: int
  leading: int | None

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> list[Float32[Array, "b out width"]]:
    norm, outputs = layer_norm("encoder_norm"), []
    for i in range(self.depth):
      block = self.block(name=f"encoderblock_{i}")
      tokens = block(tokens, self.leading if i == self.depth - 1 else None)
      if i >= self.depth - self.last:
        outputs.append(norm(tokens[:, : self.leading]))
    return outputs


class Block(nn.Module):
  """Attention and MLP, each added to what goes in; LayerNorm before both.

  With `leading` only that many tokens from the front come out, and only for
  them is anything but keys and values computed.
  """

  attention: _Part
  mlp: _Part
  layer_scale: bool

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"], leading: int | None
  ) -> Float32[Array, "b out width"]:
    x = layer_norm("LayerNorm_0")(tokens)
    x = self.attention()(x[:, :leading], x)
    tokens = tokens[:, :leading] + self._scaled("layer_scale_0", x)
    x = self.mlp()(layer_norm("LayerNorm_1")(tokens))
    return tokens + self._scaled("layer_scale_1", x)

  def _scaled(
    self, name: str, x: Float[Array, "b t width"]
  ) -> Float[Array, "b t width"]:
    if not self.layer_scale:
      return x
    return x * self.param(name, nn.initializers.ones, x.shape[-1:])


class Attention(nn.Module):
  """softmax(q kᵀ/√dim) v for every head, the heads mixed by `out`."""

  num_heads: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, queries: Float32[Array, "b q width"], x: Float32[Array, "b t width"]
  ) -> Float[Array, "b q width"]:
    width, how = x.shape[-1], products(self.compute_dtype)
    dim, precision = width // self.num_heads, how["precision"]

    def heads(name: str, x: Float32[Array, "b _ width"]) -> Array:
      project = nn.DenseGeneral((self.num_heads, dim), name=name, **how)
      return project(x).swapaxes(1, 2)

    scores = jnp.matmul(
      heads("query", queries) * dim**-0.5,
      heads("key", x).swapaxes(2, 3),
      precision=precision,
      preferred_element_type=jnp.float32,
    )
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    mixed = jnp.matmul(
      weights.astype(how["dtype"]),
      heads("value", x),
      precision=precision,
      preferred_element_type=jnp.float32,
    )
    mixed = (mixed / total).swapaxes(1, 2)
    return nn.DenseGeneral(width, axis=(-2, -1), name="out", **how)(mixed)


class Mlp(nn.Module):
  """Two dense layers with GELU or a gate between them."""

  hidden: int
  kind: MlpKind
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, x: Float32[Array, "b t width"]
  ) -> Float[Array, "b t width"]:
    width, how = x.shape[-1], products(self.compute_dtype)
    if self.kind == "swiglu":
      x = nn.Dense(2 * self.hidden, name="Dense_0", **how)(x)
      gate, value = jnp.split(x, 2, axis=-1)
      x = nn.silu(gate) * value
    else:
      x = nn.Dense(self.hidden, name="Dense_0", **how)(x)
      x = nn.gelu(x, approximate=self.kind == "gelu_tanh")
    return nn.Dense(width, name="Dense_1", **how)(x)


class AttentionPooling(nn.Module):
  """A learned query attends to all tokens; then an MLP beside a residual."""

  attention: _Part
  mlp: _Part

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> Float32[Array, "b width"]:
    shape = (1, 1, tokens.shape[-1])
    probe = self.param("probe", nn.initializers.xavier_uniform(), shape)
    x = self.attention()(jnp.repeat(probe, len(tokens), axis=0), tokens)
    x = x.astype(jnp.float32)
    return (x + self.mlp()(layer_norm("LayerNorm_0")(x)))[:, 0]


def layer_norm(name: str) -> nn.LayerNorm:
  """LayerNorm in float32, by the two-pass formula."""
  # 1e-6 in every family's own code; transformers' ViT and DeiT say 1e-12,
  # which real activations do not tell apart in float32.
  return nn.LayerNorm(
    epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False, name=name
  )
