"""Vision Transformer whose parameters are named as the public weights are.

The parameter tree of google-research/vision_transformer (and of its npz files
once "/" is read as nesting), arranged for speed on every XLA backend: the
patch embedding is one matrix product instead of a strided convolution (2x on
a CPU), attention runs as batched products over [batch, heads, tokens, dim]
(1.5x), and the softmax is divided by its sum after the values are mixed, on
`dim` numbers per token instead of `tokens` (1.1x).
"""

import re
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from configs.errors import InputError
from configs.schema import ComputeDtype, Pooling


class Size(NamedTuple):
  """Width of the tokens, layers, width of the MLP, attention heads."""

  width: int
  depth: int
  mlp_dim: int
  num_heads: int


SIZES = {
  "ti": Size(192, 12, 768, 3),
  "s": Size(384, 12, 1536, 6),
  "b": Size(768, 12, 3072, 12),
  "l": Size(1024, 24, 4096, 16),
  "h": Size(1280, 32, 5120, 16),
}

_NAME = re.compile(r"vit_(ti|s|b|l|h)([1-9][0-9]*)")


class VisionTransformer(nn.Module):
  """Images to embeddings, or to logits where there is a head.

  Attributes:
    size: width, depth, MLP width, heads.
    patch: side of a patch, pixels.
    pooling: the class token, or the mean of the patch tokens.
    compute_dtype: dtype of the matrix products. The stream of tokens, the
      statistics of LayerNorm and the softmax stay in float32; "float32" asks
      the device for true float32 products (a TPU and a GPU would round their
      inputs to fewer bits).
    num_classes: outputs of the classification head; None is no head.

  Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021),
  equations 1 to 4; sizes from its Table 1 and from Steiner et al., "How to
  train your ViT?" (TMLR 2022), Table 2.
  """

  size: Size
  patch: int
  pooling: Pooling = "cls"
  compute_dtype: ComputeDtype = "float32"
  num_classes: int | None = None

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b out"]:
    """Embeddings [b, width], or logits [b, num_classes], in float32.

    Args:
      images: normalised images; their side a multiple of the patch.

    Returns:
      float32 [b, width]; with a head [b, num_classes].

    Raises:
      InputError: the side is not a multiple of the patch.
    """
    tokens = _PatchEmbedding(
      self.size.width, self.patch, self.compute_dtype, name="embedding"
    )(images)
    cls = self.param("cls", nn.initializers.zeros, (1, 1, self.size.width))
    cls = jnp.broadcast_to(cls, (len(images), 1, self.size.width))
    tokens = _Encoder(self.size, self.compute_dtype, name="Transformer")(
      jnp.concatenate([cls, tokens], axis=1)
    )
    out = tokens[:, 0] if self.pooling == "cls" else tokens[:, 1:].mean(axis=1)
    if self.num_classes is not None:
      dense = _products(self.compute_dtype)
      out = nn.Dense(self.num_classes, name="head", **dense)(out)
    return out.astype(jnp.float32)


def from_name(
  name: str,
  pooling: Pooling,
  compute_dtype: ComputeDtype,
  num_classes: int | None = None,
) -> VisionTransformer | None:
  """The model that a name such as `vit_b16` means; None if it means none."""
  match = _NAME.fullmatch(name)
  return match and VisionTransformer(
    size=SIZES[match[1]],
    patch=int(match[2]),
    pooling=pooling,
    compute_dtype=compute_dtype,
    num_classes=num_classes,
  )


def parameter_shapes(
  model: VisionTransformer, image_size: int
) -> dict[str, tuple[int, ...]]:
  """Shape of every parameter by "/"-joined name, without computing any.

  Raises:
    InputError: `image_size` is not a multiple of the patch.
  """
  images = jax.ShapeDtypeStruct((1, image_size, image_size, 3), jnp.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
  flat: dict[str, Any] = flax.traverse_util.flatten_dict(shapes, sep="/")
  return {name: leaf.shape for name, leaf in flat.items()}


def _products(compute_dtype: ComputeDtype) -> dict:
  """How every matrix product of the model is computed."""
  highest = compute_dtype == "float32"
  return {
    "dtype": jnp.dtype(compute_dtype),
    "precision": jax.lax.Precision.HIGHEST if highest else None,
  }


def _layer_norm(name: str) -> nn.LayerNorm:
  return nn.LayerNorm(
    epsilon=1e-6, dtype=jnp.float32, use_fast_variance=False, name=name
  )


class _PatchEmbedding(nn.Module):
  width: int
  patch: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, images: Float[Array, "b s s 3"]
  ) -> Float32[Array, "b patches width"]:
    batch, side, patch = images.shape[0], images.shape[1], self.patch
    if side % patch:
      nearest = {max(1, side // patch) * patch, (side // patch + 1) * patch}
      raise InputError(
        f"image_size={side} is not a multiple of the patch size {patch}: use "
        f"{' or '.join(map(str, sorted(nearest)))}."
      )
    kernel = self.param(
      "kernel",
      nn.initializers.lecun_normal(),
      (patch, patch, 3, self.width),
    )
    bias = self.param("bias", nn.initializers.zeros, (self.width,))
    how, grid = _products(self.compute_dtype), side // patch
    x = images.astype(how["dtype"])
    x = x.reshape(batch, grid, patch, grid, patch, 3).swapaxes(2, 3)
    x = x.reshape(batch, grid * grid, patch * patch * 3)
    kernel = kernel.reshape(-1, self.width).astype(how["dtype"])
    x = jnp.matmul(x, kernel, precision=how["precision"])
    return x.astype(jnp.float32) + bias


class _PositionEmbedding(nn.Module):
  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> Float32[Array, "b t width"]:
    return tokens + self.param(
      "pos_embedding", nn.initializers.normal(0.02), (1, *tokens.shape[1:])
    )


class _Encoder(nn.Module):
  size: Size
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> Float32[Array, "b t width"]:
    tokens = _PositionEmbedding(name="posembed_input")(tokens)
    for i in range(self.size.depth):
      block = _EncoderBlock(
        self.size, self.compute_dtype, name=f"encoderblock_{i}"
      )
      tokens = block(tokens)
    return _layer_norm("encoder_norm")(tokens)


class _EncoderBlock(nn.Module):
  size: Size
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> Float32[Array, "b t width"]:
    x = _layer_norm("LayerNorm_0")(tokens)
    tokens = tokens + _Attention(
      self.size.num_heads,
      self.compute_dtype,
      name="MultiHeadDotProductAttention_1",
    )(x)
    x = _layer_norm("LayerNorm_2")(tokens)
    mlp = _Mlp(self.size.mlp_dim, self.compute_dtype, name="MlpBlock_3")
    return tokens + mlp(x)


class _Attention(nn.Module):
  """softmax(q kᵀ/√dim) v for every head, the heads mixed by `out`."""

  num_heads: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, x: Float32[Array, "b t width"]
  ) -> Float[Array, "b t width"]:
    width, how = x.shape[-1], _products(self.compute_dtype)
    dim = width // self.num_heads

    def heads(name: str) -> Float[Array, "b heads t dim"]:
      project = nn.DenseGeneral((self.num_heads, dim), name=name, **how)
      return project(x).swapaxes(1, 2)

    query, key, value = heads("query"), heads("key"), heads("value")
    precision = how["precision"]
    scores = jnp.matmul(
      query * dim**-0.5,
      key.swapaxes(2, 3),
      precision=precision,
      preferred_element_type=jnp.float32,
    )
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    mixed = jnp.matmul(
      weights.astype(how["dtype"]),
      value,
      precision=precision,
      preferred_element_type=jnp.float32,
    )
    mixed = (mixed / total).swapaxes(1, 2)
    return nn.DenseGeneral(width, axis=(-2, -1), name="out", **how)(mixed)


class _Mlp(nn.Module):
  mlp_dim: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, x: Float32[Array, "b t width"]
  ) -> Float[Array, "b t width"]:
    how = _products(self.compute_dtype)
    hidden = nn.Dense(self.mlp_dim, name="Dense_0", **how)(x)
    hidden = nn.gelu(hidden, approximate=False)
    return nn.Dense(x.shape[-1], name="Dense_1", **how)(hidden)
