"""ConvNeXt: 7x7 depthwise convolutions and MLPs over the channels.

Source: Liu et al., "A ConvNet for the 2020s" (CVPR 2022), section 2 and figure
4. Weights of ImageNet-1k, ImageNet-22k and DINOv3 are of this one network.
"""

import functools
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones import vit
from oneshot_dp.extract.backbones.resnet_v2 import Convolution, count_blocks
from oneshot_dp.extract.weights import Arrays, Images

# `head.norm` is the last LayerNorm, and is kept.
CLASSIFIER_WEIGHTS: tuple[str, ...] = ("head.fc.",)
_SIZE_NAMES: dict[tuple[tuple[int, ...], int], str] = {
  ((3, 3, 9, 3), 96): "tiny",
  ((3, 3, 27, 3), 96): "small",
  ((3, 3, 27, 3), 128): "base",
  ((3, 3, 27, 3), 192): "large",
  ((3, 3, 27, 3), 256): "xlarge",
}
_MLP_RATIO = 4


class ConvNeXt(nn.Module):
  """A ConvNeXt, read after the last LayerNorm of the mean over pixels.

  Attributes:
    blocks: blocks in each stage.
    widths: channels of each stage.
    compute_dtype: dtype of convolutions and matrix products; the residual
      stream and LayerNorm are float32.
  """

  blocks: tuple[int, ...]
  widths: tuple[int, ...]
  compute_dtype: ComputeDtype = "float32"
  embedding = "pooled"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    conv = functools.partial(
      Convolution, bias=True, compute_dtype=self.compute_dtype
    )
    # Patches of 4 x 4 pixels.
    x = conv(self.widths[0], 4, stride=4, name="stem.0")(images)
    x = vit.layer_norm(name="stem.1")(x)
    for stage, num_blocks in enumerate(self.blocks):
      channels = self.widths[stage]
      if stage > 0:  # half as high and wide
        downsample = f"stages.{stage}.downsample"
        x = vit.layer_norm(name=f"{downsample}.0")(x)
        x = conv(channels, 2, stride=2, name=f"{downsample}.1")(x)
        x = x.astype(jnp.float32)
      for index in range(num_blocks):
        block = Block(self.compute_dtype, name=f"stages.{stage}.blocks.{index}")
        x = block(x)
    return vit.layer_norm(name="head.norm")(x.mean(axis=(1, 2)))


class Block(nn.Module):
  """A depthwise convolution and an MLP over channels, beside a residual."""

  compute_dtype: Any

  @nn.compact
  def __call__(self, x: Float32[Array, "b h w c"]) -> Float32[Array, "b h w c"]:
    channels = x.shape[-1]
    dtype = jnp.dtype(self.compute_dtype)
    convolve = Convolution(
      channels,
      7,
      padding=3,
      groups=channels,
      bias=True,
      compute_dtype=self.compute_dtype,
      name="conv_dw",
    )
    # Channels are last, so an MLP over them is a product of matrices, and
    # LayerNorm needs no transpose.
    out = vit.layer_norm(name="norm")(convolve(x))
    out = vit.Mlp(_MLP_RATIO * channels, "gelu", dtype, name="mlp")(out)
    return x + out * self.param("gamma", nn.initializers.ones, (channels,))


def infer_network(arrays: Arrays, embedding: str | None) -> ConvNeXt:
  """Returns the network that a weights file belongs to; see `Family`.

  Args:
    arrays: by timm's names. Only the widths of the stages and the numbers of
      their blocks are read.
    embedding: not used: all networks of this family have one, "pooled".

  Raises:
    KeyError: a stage has no first block.
    ValueError: there is no depthwise convolution.
  """
  # Sizes differ in the depths and widths of their stages; all else is the same.
  blocks = count_blocks(
    arrays, r"stages\.(\d+)\.blocks\.(\d+)\.conv_dw\.weight"
  )
  widths = []
  for stage in range(len(blocks)):
    widths.append(len(arrays[f"stages.{stage}.blocks.0.conv_dw.weight"]))
  if not widths:
    raise ValueError("there are no depthwise convolutions, as ConvNeXt has")
  return ConvNeXt(blocks, tuple(widths))


def inferred_name(network: ConvNeXt) -> str:
  """Returns the backbone name of a network of this kind and size."""
  size = _SIZE_NAMES.get((network.blocks, network.widths[0]))
  if size is None:
    blocks = ", ".join(map(str, network.blocks))
    return f"convnext of {blocks} blocks and width {network.widths[0]}"
  return f"convnext_{size}"


def adapt_weights(network: ConvNeXt, arrays: Arrays, image_size: int) -> Arrays:
  """Returns the arrays as they are: none depends on the image size.

  Args:
    network: from `infer_network`.
    arrays: by timm's names.
    image_size: in pixels.

  Raises:
    ValueError: nothing would be left of an image after the last stage.
  """
  # The stem makes sides four times shorter, each further stage two times.
  stride = 4 * 2 ** (len(network.blocks) - 1)
  if image_size < stride:
    raise ValueError(f"image size {image_size} is below {stride}")
  return dict(arrays)
