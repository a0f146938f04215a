"""Parts of a Vision Transformer: attention, MLP, block, attention pooling.

Arranged for speed on every XLA backend: attention runs as batched products
over [batch, heads, tokens, dim] (1.5x on a CPU), and the softmax is divided by
its sum after the values are mixed, on `dim` numbers per token instead of
`tokens` (1.1x). The stream of tokens, the statistics of LayerNorm and the
softmax are float32 whatever the dtype of the products.
"""

import dataclasses
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.architecture import products


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
  """What sets one Vision Transformer apart from another.

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
  """

  width: int
  depth: int
  mlp_dim: int
  num_heads: int
  patch: int
  tokens: tuple[tuple[str, int], ...] = (("cls", 1),)
  mlp: Literal["gelu", "gelu_tanh", "swiglu"] = "gelu"
  layer_scale: bool = False
  drops_border: bool = False


class Block(nn.Module):
  """Attention and MLP, each added to what goes in; LayerNorm before both.

  With `leading` only that many tokens from the front come out, and only for
  them is anything but keys and values computed.
  """

  variant: Variant
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"], leading: int | None
  ) -> Float32[Array, "b out width"]:
    attention = Attention(
      self.variant.num_heads,
      self.compute_dtype,
      name="MultiHeadDotProductAttention_0",
    )
    x = layer_norm("LayerNorm_0")(tokens)
    x = attention(x[:, :leading], x)
    tokens = tokens[:, :leading] + self._scaled("layer_scale_0", x)
    x = layer_norm("LayerNorm_1")(tokens)
    x = Mlp(self.variant, self.compute_dtype, name="MlpBlock_0")(x)
    return tokens + self._scaled("layer_scale_1", x)

  def _scaled(
    self, name: str, x: Float[Array, "b t width"]
  ) -> Float[Array, "b t width"]:
    if not self.variant.layer_scale:
      return x
    return x * self.param(name, nn.initializers.ones, (self.variant.width,))


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

  variant: Variant
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, x: Float32[Array, "b t width"]
  ) -> Float[Array, "b t width"]:
    kind, hidden = self.variant.mlp, self.variant.mlp_dim
    how = products(self.compute_dtype)
    if kind == "swiglu":
      gate_and_value = nn.Dense(2 * hidden, name="Dense_0", **how)(x)
      gate, value = jnp.split(gate_and_value, 2, axis=-1)
      x = nn.silu(gate) * value
    else:
      x = nn.Dense(hidden, name="Dense_0", **how)(x)
      x = nn.gelu(x, approximate=kind == "gelu_tanh")
    return nn.Dense(self.variant.width, name="Dense_1", **how)(x)


class AttentionPooling(nn.Module):
  """A learned query attends to all tokens; then an MLP beside a residual."""

  variant: Variant
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> Float32[Array, "b width"]:
    probe = self.param(
      "probe", nn.initializers.xavier_uniform(), (1, 1, self.variant.width)
    )
    attention = Attention(
      self.variant.num_heads,
      self.compute_dtype,
      name="MultiHeadDotProductAttention_0",
    )
    x = attention(jnp.repeat(probe, len(tokens), axis=0), tokens)
    x = x.astype(jnp.float32)
    y = layer_norm("LayerNorm_0")(x)
    y = Mlp(self.variant, self.compute_dtype, name="MlpBlock_0")(y)
    return (x + y)[:, 0]


def layer_norm(name: str) -> nn.LayerNorm:
  """LayerNorm in float32, by the two-pass formula."""
  # 1e-6 in every family's own code; transformers' ViT and DeiT say 1e-12,
  # which real activations do not tell apart in float32.
  return nn.LayerNorm(
    epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False, name=name
  )
