"""Pre-activation residual networks with GroupNorm: BiT and WRN.

Weight standardization depends on the weights alone: `adapt_weights` does it
once, in float64, and leaves plain kernels.

Source: Kolesnikov et al., "Big Transfer (BiT): General Visual Representation
Learning" (ECCV 2020), sections 3.1 and 3.2, with the stride in the 3x3
convolution. De et al., "Unlocking High-Accuracy Differentially Private Image
Classification through Scale" (2022), section 3, and its code in jax_privacy.
"""

import functools
import re
from collections.abc import Iterable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.weights import Arrays, Images

CLASSIFIER_WEIGHTS: tuple[str, ...] = ("head.",)


class BiT(nn.Module):
  """A BiT network, read at the mean over pixels of its last activations.

  Attributes:
    blocks: residual blocks in each stage.
    width: channels of the root; stage k has 4·2^k times as many.
    groups: groups of each GroupNorm.
    compute_dtype: dtype of convolutions, activations and the residual stream.
  """

  blocks: tuple[int, ...]
  width: int
  groups: int = 32
  compute_dtype: ComputeDtype = "float32"
  embedding = "pooled"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    conv = functools.partial(Convolution, compute_dtype=self.compute_dtype)
    norm = functools.partial(GroupNorm, self.groups)

    # The root.
    x = conv(self.width, 7, stride=2, padding=3, name="stem.conv")(images)
    # Zeros, not -inf, at the border, as when the weights were trained.
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = nn.max_pool(x, window_shape=(3, 3), strides=(2, 2))

    # The stages. All but the first halve height and width in their first block,
    # whose shortcut has a convolution.
    for stage, num_blocks in enumerate(self.blocks):
      inner = self.width * 2**stage
      outer = 4 * inner
      for index in range(num_blocks):
        block = f"stages.{stage}.blocks.{index}"
        stride = block_stride(stage, index)
        out = norm(name=f"{block}.norm1")(x)
        if index == 0:
          x = conv(outer, 1, stride, name=f"{block}.downsample.conv")(out)
        out = conv(inner, 1, name=f"{block}.conv1")(out)
        out = norm(name=f"{block}.norm2")(out)
        out = conv(inner, 3, stride, padding=1, name=f"{block}.conv2")(out)
        out = norm(name=f"{block}.norm3")(out)
        x = x + conv(outer, 1, name=f"{block}.conv3")(out)
    return norm(name="norm")(x).mean(axis=(1, 2), dtype=jnp.float32)


class WideResNet(nn.Module):
  """A Wide ResNet; unlike `BiT`, ReLU comes before GroupNorm.

  Attributes:
    blocks: residual blocks in each of the three stages.
    width: stage k has 16·width·2^k channels.
    groups: groups of each GroupNorm.
    compute_dtype: dtype of convolutions, activations and the residual stream.
  """

  blocks: tuple[int, ...]
  width: int
  groups: int = 16
  compute_dtype: ComputeDtype = "float32"
  embedding = "pooled"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    conv = functools.partial(
      Convolution, padding="SAME", bias=True, compute_dtype=self.compute_dtype
    )

    def norm(x: Array, name: str) -> Array:
      return GroupNorm(self.groups, relu=False, name=name)(nn.relu(x))

    x = conv(16, 3, name="stem.conv")(images)
    for stage, num_blocks in enumerate(self.blocks):
      channels = 16 * self.width * 2**stage
      for index in range(num_blocks):
        block = f"stages.{stage}.blocks.{index}"
        stride = block_stride(stage, index)
        out = norm(x, f"{block}.norm1")
        out = conv(channels, 3, stride, name=f"{block}.conv1")(out)
        out = norm(out, f"{block}.norm2")
        out = conv(channels, 3, name=f"{block}.conv2")(out)
        if index == 0:
          x = norm(x, f"{block}.downsample.norm")
          x = conv(channels, 1, stride, name=f"{block}.downsample.conv")(x)
        x = x + out
    return norm(x, "norm").mean(axis=(1, 2), dtype=jnp.float32)


def block_stride(stage: int, index: int) -> int:
  """2 in the first block of all stages but the first, which is not reduced.

  Args:
    stage: from 0.
    index: of the block in its stage, from 0.
  """
  if stage > 0 and index == 0:
    return 2
  return 1


class Convolution(nn.Module):
  """Cross-correlation over height and width, the channels last.

  Attributes:
    features: output channels.
    size: side of the kernel.
    stride: step in pixels, down and to the right.
    padding: zeros on each side, or "SAME", as TensorFlow has it.
    groups: groups of channels that do not see each other.
    bias: whether a bias is added.
    compute_dtype: dtype of the products and of the output.
  """

  features: int
  size: int
  stride: int = 1
  padding: int | Literal["SAME"] = 0
  groups: int = 1
  bias: bool = False
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b y x o"]:
    dtype = jnp.dtype(self.compute_dtype)
    channels = x.shape[-1]
    shape = (self.size, self.size, channels // self.groups, self.features)
    kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
    x = x.astype(dtype)
    kernel = kernel.astype(dtype)

    # Three ways of one result. On a CPU a matrix product is 1.1 to 2.3 times as
    # fast as XLA's 1x1 convolution, and one convolution for each wide group 2.6
    # to 4.4 times as fast as XLA's grouped one. A depthwise convolution has as
    # many groups as channels, far too many to be taken one by one.
    if self.size == 1 and self.groups == 1:
      x = x[:, :: self.stride, :: self.stride]
      out = jnp.matmul(x, kernel[0, 0])
    elif self.groups == channels:
      out = self._convolve(x, kernel, groups=self.groups)
    else:
      parts = []
      inputs = jnp.split(x, self.groups, axis=-1)
      kernels = jnp.split(kernel, self.groups, axis=-1)
      for group_input, group_kernel in zip(inputs, kernels, strict=True):
        parts.append(self._convolve(group_input, group_kernel, groups=1))
      out = jnp.concatenate(parts, axis=-1)
    if self.bias:
      zeros = nn.initializers.zeros
      out = out + self.param("bias", zeros, (self.features,)).astype(dtype)
    return out

  def _convolve(
    self, x: Array, kernel: np.ndarray | Array, groups: int
  ) -> Array:
    padding = self.padding
    if not isinstance(padding, str):
      padding = [(padding, padding), (padding, padding)]
    return jax.lax.conv_general_dilated(
      x,
      jnp.asarray(kernel),
      window_strides=(self.stride, self.stride),
      padding=padding,
      dimension_numbers=("NHWC", "HWIO", "NHWC"),
      feature_group_count=groups,
    )


class GroupNorm(nn.Module):
  """relu(γ (x − mean)/√(var + 1e-5) + β), over pixels and channels of a group.

  Per channel first, then combined for the group, which reads memory in order
  (on a CPU 2 to 8 times as fast as linen's); statistics in float32, of centered
  values (linen's default loses digits where the mean is large).

  Source: Wu and He, "Group Normalization" (ECCV 2018), equations 1 to 3.
  """

  groups: int
  relu: bool = True

  @nn.compact
  def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
    batch, channels = x.shape[0], x.shape[-1]
    scale = self.param("scale", nn.initializers.ones, (channels,))
    bias = self.param("bias", nn.initializers.zeros, (channels,))
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=(1, 2))
    var = jnp.square(wide - mean[:, None, None]).mean(axis=(1, 2))
    # var of a group = mean of its channels' variances + variance of their means
    mean = mean.reshape(batch, self.groups, -1)
    center = mean.mean(axis=-1, keepdims=True)
    var = var.reshape(mean.shape) + jnp.square(mean - center)
    var = var.mean(axis=-1, keepdims=True)
    # Both steps, normalization and γ x + β, as one product and one sum.
    gain = jax.lax.rsqrt(var + 1e-5) * scale.reshape(self.groups, -1)
    shift = bias.reshape(self.groups, -1) - center * gain
    per_channel = (batch, 1, 1, channels)
    out = wide * gain.reshape(per_channel) + shift.reshape(per_channel)
    if self.relu:
      out = nn.relu(out)
    return out.astype(x.dtype)


def infer_network(arrays: Arrays, embedding: str | None) -> BiT | WideResNet:
  """Returns the network that a weights file belongs to; see `Family`.

  Args:
    arrays: by timm's names. Blocks of three convolutions are a BiT's, blocks
      of two a WideResNet's.
    embedding: not used: all networks of this family have one, "pooled".

  Raises:
    KeyError: an array is missing that all networks of this family have.
  """
  blocks = count_blocks(arrays, r"stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight")
  root_channels = len(arrays["stem.conv.weight"])
  first_channels = len(arrays["stages.0.blocks.0.conv1.weight"])
  # A BiT's block has three convolutions, a WRN's two.
  if "stages.0.blocks.0.conv3.weight" in arrays:
    return BiT(blocks, root_channels)
  return WideResNet(blocks, first_channels // 16)


def inferred_name(network: BiT | WideResNet) -> str:
  """Returns the backbone name of a network of this kind and size."""
  num_blocks = sum(network.blocks)
  if isinstance(network, WideResNet):
    return f"wrn_{2 * num_blocks + 4}_{network.width}"
  return f"bit_r{3 * num_blocks + 2}x{network.width / 64:g}"


def adapt_weights(
  network: BiT | WideResNet, arrays: Arrays, image_size: int
) -> Arrays:
  """Returns the arrays with standardized kernels, gains multiplied into them.

  BiT's epsilon is that of its own code; timm adds 1e-8, a hundred thousandth of
  the variance. The floor of a WRN's is that of jax_privacy.

  Args:
    network: from `infer_network`.
    arrays: by timm's names; those of a WideResNet have gains, which the result
      has not.
    image_size: not used: convolutions take any.
  """
  adapted = {}
  for name, array in arrays.items():
    module = name.removesuffix(".weight")
    gain = arrays.get(f"{module}.gain")
    if array.ndim == 4 and isinstance(network, BiT):
      adapted[name] = standardize(array, 1e-10)
    elif array.ndim == 4 and gain is not None:
      # jax_privacy's kernels are gain·(w − mean)/√max(var·fan_in, 1e-4). With
      # √fan_in moved into the gain, the floor is divided by fan_in.
      fan_in = array[0].size
      gain = gain / fan_in**0.5
      adapted[name] = standardize(array, 0.0, gain, floor=1e-4 / fan_in)
    elif not name.endswith(".gain"):
      adapted[name] = array
  return adapted


def count_blocks(names: Iterable[str], pattern: str) -> tuple[int, ...]:
  """Counts the blocks of each stage in the names of arrays.

  Args:
    names: of the arrays.
    pattern: a regular expression of one array of every block; its groups are
      the stage and the block.

  Returns:
    The number of blocks of each stage that has some, the first stage first.
  """
  blocks_of_stage: dict[int, set[str]] = {}
  for name in names:
    match = re.fullmatch(pattern, name)
    if match:
      blocks_of_stage.setdefault(int(match[1]), set()).add(match[2])
  return tuple(len(blocks) for _, blocks in sorted(blocks_of_stage.items()))


def standardize(
  weight: np.ndarray,
  epsilon: float,
  gain: np.ndarray | float = 1.0,
  *,
  floor: float = 0.0,
) -> np.ndarray:
  """Weight standardization: gain · (w − mean)/√max(var + epsilon, floor).

  Args:
    weight: a kernel whose first axis are the output channels. Mean and variance
      are over all other axes; a channel of equal values becomes 0.
    epsilon: is added to the variance.
    gain: a factor, or one for each output channel.
    floor: the least that is divided by, squared.

  Returns:
    A kernel of the same shape, computed in float64, in float32.

  Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization
  and Weight Standardization" (2019), equation 8.
  """
  # In float64 and on the host: standardized kernels have the same bits whatever
  # device they are used on.
  wide = weight.astype(np.float64, order="C").reshape(len(weight), -1)
  # Infinities become NaN here, and are refused later, by name.
  with np.errstate(invalid="ignore"):
    wide -= wide.mean(axis=1, keepdims=True)
    # einsum makes no array of squares
    variance = np.einsum("oi,oi->o", wide, wide) / max(1, wide.shape[1])
    divisor = np.sqrt(np.maximum(variance + epsilon, floor))
    wide *= (np.reshape(gain, -1) / divisor)[:, None]
  return wide.astype(np.float32).reshape(weight.shape)
