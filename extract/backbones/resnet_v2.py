"""Pre-activation residual networks with GroupNorm: BiT and WRN.

The file of weights says what the network is. Weight standardisation depends on
the weights alone: done once, in float64, it leaves plain kernels (`fitted`).

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


class BiT(nn.Module):
  """Images to the mean over pixels of the last normalised activations.

  Attributes:
    blocks: residual blocks in each stage.
    width: channels of the root; stage k has 4·2^k times as many.
    compute_dtype: of convolutions, activations and the residual stream.
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
    x = conv(self.width, 7, stride=2, padding=3, name="stem.conv")(images)
    # Zeros, not -inf, at the border, as when the weights were trained.
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = nn.max_pool(x, window_shape=(3, 3), strides=(2, 2))
    for stage, depth in enumerate(self.blocks):
      inner = self.width * 2**stage
      for place in range(depth):
        at = f"stages.{stage}.blocks.{place}."
        stride = 1 + (stage > 0 and not place)
        out = norm(name=f"{at}norm1")(x)
        if not place:
          x = conv(4 * inner, 1, stride, name=f"{at}downsample.conv")(out)
        out = conv(inner, 1, name=f"{at}conv1")(out)
        out = norm(name=f"{at}norm2")(out)
        out = conv(inner, 3, stride, padding=1, name=f"{at}conv2")(out)
        out = norm(name=f"{at}norm3")(out)
        x = x + conv(4 * inner, 1, name=f"{at}conv3")(out)
    return norm(name="norm")(x).mean(axis=(1, 2), dtype=jnp.float32)


class WideResNet(nn.Module):
  """As `BiT`; convolutions have a bias, and come after relu, then GroupNorm.

  Three stages; stage k has 16·width·2^k channels.
  """

  blocks: tuple[int, ...]
  width: int
  groups: int = 16
  compute_dtype: ComputeDtype = "float32"
  embedding = "pooled"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    how = {"compute_dtype": self.compute_dtype}
    conv = functools.partial(Convolution, padding="SAME", bias=True, **how)

    def norm(x: Array, name: str) -> Array:
      return GroupNorm(self.groups, relu=False, name=name)(nn.relu(x))

    x = conv(16, 3, name="stem.conv")(images)
    for stage, depth in enumerate(self.blocks):
      wide = 16 * self.width * 2**stage
      for place in range(depth):
        at = f"stages.{stage}.blocks.{place}."
        stride = 1 + (stage > 0 and not place)
        out = norm(x, f"{at}norm1")
        out = conv(wide, 3, stride, name=f"{at}conv1")(out)
        out = norm(out, f"{at}norm2")
        out = conv(wide, 3, name=f"{at}conv2")(out)
        if not place:
          x = norm(x, f"{at}downsample.norm")
          x = conv(wide, 1, stride, name=f"{at}downsample.conv")(x)
        x = x + out
    return norm(x, "norm").mean(axis=(1, 2), dtype=jnp.float32)


class Convolution(nn.Module):
  """Cross-correlation over height and width, the channels last.

  A 1x1 convolution is a matrix product over the channels (on a CPU 1.1 to 2.3
  times as fast as XLA's), a grouped one is one for each group (2.6 to 4.4
  times). `padding` is zeros on each side, or as TensorFlow has it.
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
    dtype, pad = jnp.dtype(self.compute_dtype), self.padding
    shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
    kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    if self.size == 1 and self.groups == 1:
      x = x[:, :: self.stride, :: self.stride]
      out = jnp.matmul(x, kernel[0, 0])
    else:
      convolve = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(self.stride, self.stride),
        padding=pad if isinstance(pad, str) else [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
      )
      xs = jnp.split(x, self.groups, axis=-1)
      kernels = jnp.split(kernel, self.groups, axis=-1)
      out = jnp.concatenate(list(map(convolve, xs, kernels)), axis=-1)
    if self.bias:
      zeros = nn.initializers.zeros
      out = out + self.param("bias", zeros, (self.features,)).astype(dtype)
    return out


class GroupNorm(nn.Module):
  """relu(γ (x − mean)/√(var + 1e-5) + β), over pixels and channels of a group.

  Per channel first, then combined for the group, which reads memory in order
  (on a CPU 2 to 8 times as fast as linen's); statistics in float32, of centred
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
    centre = mean.mean(axis=-1, keepdims=True)
    var = var.reshape(mean.shape) + jnp.square(mean - centre)
    var = var.mean(axis=-1, keepdims=True)
    gain = jax.lax.rsqrt(var + 1e-5) * scale.reshape(self.groups, -1)
    shift = bias.reshape(self.groups, -1) - centre * gain
    per_channel = (batch, 1, 1, channels)
    out = wide * gain.reshape(per_channel) + shift.reshape(per_channel)
    return (nn.relu(out) if self.relu else out).astype(x.dtype)


def network_of(arrays: Arrays, embedding: str | None) -> BiT | WideResNet:
  """The network of a file in timm's names; see `vit.network_of`."""
  blocks = depths(arrays, r"stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight")
  root = len(arrays["stem.conv.weight"])
  width = len(arrays["stages.0.blocks.0.conv1.weight"])
  if "stages.0.blocks.0.conv3.weight" in arrays:
    return BiT(blocks, root)
  return WideResNet(blocks, width // 16)


def name_of(network: BiT | WideResNet) -> str:
  """The name of a network of this kind and size."""
  layers, width = sum(network.blocks), network.width
  if isinstance(network, WideResNet):
    return f"wrn_{2 * layers + 4}_{width}"
  return f"bit_r{3 * layers + 2}x{width / 64:g}"


def fitted(network: nn.Module, arrays: Arrays, image_size: int) -> Arrays:
  """The same with standardised kernels, a WRN's with its gains in them."""
  found = {}
  for name, array in arrays.items():
    gain = arrays.get(f"{name.removesuffix('.weight')}.gain")
    if array.ndim == 4 and isinstance(network, BiT):
      # As BiT's own code; timm adds 1e-8, a hundred thousandth of the variance.
      found[name] = standardize(array, 1e-10)
    elif array.ndim == 4 and gain is not None:
      fan_in = array[0].size
      gain = gain / fan_in**0.5
      found[name] = standardize(array, 0.0, gain, floor=1e-4 / fan_in)
    elif not name.endswith(".gain"):
      found[name] = array
  return found


def depths(names: Iterable[str], pattern: str) -> tuple[int, ...]:
  """Blocks of each stage, counted; a pattern's groups are stage and block."""
  found = {m.groups() for name in names if (m := re.fullmatch(pattern, name))}
  stages = [stage for stage, _ in found]
  return tuple(stages.count(stage) for stage in sorted(set(stages), key=int))


def standardize(
  weight: np.ndarray,
  epsilon: float,
  gain: np.ndarray | float = 1.0,
  *,
  floor: float = 0.0,
) -> np.ndarray:
  """gain · (w − mean)/√max(var + epsilon, floor), for each output channel.

  Over all axes but the first. A channel of equal values becomes 0.

  Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization
  and Weight Standardization" (2019), equation 8.
  """
  wide = weight.astype(np.float64, order="C").reshape(len(weight), -1)
  with np.errstate(invalid="ignore"):
    wide -= wide.mean(axis=1, keepdims=True)
    # einsum makes no array of squares
    variance = np.einsum("oi,oi->o", wide, wide) / max(1, wide.shape[1])
    divisor = np.sqrt(np.maximum(variance + epsilon, floor))
    wide *= (np.reshape(gain, -1) / divisor)[:, None]
  return wide.astype(np.float32).reshape(weight.shape)
