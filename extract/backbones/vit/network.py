"""The Vision Transformer's network, in all the forms of its public families.

Parameters are named as in big_vision's files. Arranged for speed on every XLA
backend: the patch embedding is one matrix product instead of a strided
convolution (2x on a CPU), and where only the class token is read the last
block computes only that token.
"""

import re

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.architecture import products
from oneshot_dp.extract.backbones.vit.blocks import (
  AttentionPooling,
  Block,
  Variant,
  layer_norm,
)


def last_blocks(embedding: str) -> int | None:
  """The k of "last<k>_cls"; None for any other name."""
  match = re.fullmatch(r"last([1-9][0-9]*)_cls", embedding)
  return int(match[1]) if match else None


class VisionTransformer(nn.Module):
  """Images to embeddings.

  Attributes:
    variant: sizes and parts.
    embedding: what is read after the last LayerNorm. "cls": the class token;
      "mean": the mean of the patch tokens; "cls_mean": both, concatenated;
      "last<k>_cls": the class tokens after each of the last k blocks,
      concatenated, the deepest last; "pre_logits": the class token through a
      dense layer and tanh; "map": attention pooling of all tokens.
    compute_dtype: dtype of the matrix products. The stream of tokens, the
      statistics of LayerNorm and the softmax stay in float32; "float32" asks
      the device for true float32 products.

  Source: Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021),
  equations 1 to 4. LayerScale: Touvron et al., "Going deeper with Image
  Transformers" (ICCV 2021). Attention pooling: Zhai et al., "Scaling Vision
  Transformers" (CVPR 2022). Registers: Darcet et al., "Vision Transformers
  Need Registers" (ICLR 2024).
  """

  variant: Variant
  embedding: str = "cls"
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    """Embeddings [b, d] in float32.

    Args:
      images: normalised images; their side a multiple of the patch, unless
        the variant drops the border.

    Returns:
      float32 [b, d]; d is the width, or a multiple where tokens are
      concatenated.

    Raises:
      InputError: the side is not a multiple of the patch.
    """
    variant = self.variant
    patches = _PatchEmbedding(variant, self.compute_dtype, name="embedding")
    tokens = patches(images)
    tokens = tokens + self.param(
      "pos_embedding", nn.initializers.normal(0.02), (1, *tokens.shape[1:])
    )
    in_front = [
      self.param(name, nn.initializers.zeros, (1, number, variant.width))
      for name, number in variant.tokens
    ]
    in_front = [jnp.repeat(token, len(images), axis=0) for token in in_front]
    tokens = jnp.concatenate([*in_front, tokens], axis=1)
    last = last_blocks(self.embedding)
    only_cls = last or self.embedding in ("cls", "pre_logits")
    encoder = _Encoder(
      variant,
      last or 1,
      1 if only_cls else None,
      self.compute_dtype,
      name="Transformer",
    )
    outputs = encoder(tokens)
    return self._read(outputs).astype(jnp.float32)

  def _read(
    self, outputs: list[Float32[Array, "b _ width"]]
  ) -> Float[Array, "b d"]:
    tokens, how = outputs[-1], products(self.compute_dtype)
    if self.embedding == "map":
      pooling = AttentionPooling(
        self.variant, self.compute_dtype, name="MAPHead_0"
      )
      return pooling(tokens)
    first_patch = sum(number for _, number in self.variant.tokens)
    if self.embedding == "mean":
      return tokens[:, first_patch:].mean(axis=1)
    if self.embedding == "cls_mean":
      mean = tokens[:, first_patch:].mean(axis=1)
      return jnp.concatenate([tokens[:, 0], mean], axis=-1)
    cls = jnp.concatenate([output[:, 0] for output in outputs], axis=-1)
    if self.embedding == "pre_logits":
      cls = nn.tanh(nn.Dense(self.variant.width, name="pre_logits", **how)(cls))
    return cls


class _PatchEmbedding(nn.Module):
  variant: Variant
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, images: Float[Array, "b s s 3"]
  ) -> Float32[Array, "b patches width"]:
    batch, side = images.shape[:2]
    patch, width = self.variant.patch, self.variant.width
    grid = side // patch
    if not grid or (side % patch and not self.variant.drops_border):
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


class _Encoder(nn.Module):
  """The blocks; what comes after each of the `last`, normalised.

  With `leading` the outputs are cut to that many tokens from the front.
  """

  variant: Variant
  last: int
  leading: int | None
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(
    self, tokens: Float32[Array, "b t width"]
  ) -> list[Float32[Array, "b out width"]]:
    norm, depth = layer_norm("encoder_norm"), self.variant.depth
    outputs = []
    for i in range(depth):
      block = Block(self.variant, self.compute_dtype, name=f"encoderblock_{i}")
      tokens = block(tokens, self.leading if i == depth - 1 else None)
      if i >= depth - self.last:
        outputs.append(norm(tokens[:, : self.leading]))
    return outputs
