"""Pre-activation residual networks with GroupNorm: BiT and WRN.

The file of weights says what the network is: `network_of` reads blocks and
width off the names and shapes of its arrays. Weight standardisation depends on
the weights alone: done once, in float64, it leaves plain kernels (`folded`).

Source: Kolesnikov et al., "Big Transfer (BiT): General Visual Representation
Learning" (ECCV 2020), sections 3.1 and 3.2; He et al., "Identity Mappings in
Deep Residual Networks" (ECCV 2016), with the stride in the 3x3 convolution. De
et al., "Unlocking High-Accuracy Differentially Private Image Classification
through Scale" (2022), section 3, and its code in jax_privacy; Zagoruyko and
Komodakis, "Wide Residual Networks" (BMVC 2016).
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import Arrays, products

POOLED = "pooled"
"""The only embedding of these: the mean over pixels of what comes last."""
_BIT_LAYERS = {(3, 4, 6, 3): 50, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}
# BiT's own code's. timm adds 1e-8, which is a hundred thousandth of the variance
# of kernels of an ordinary size.
_BIT_EPSILON = 1e-10
# Of the smallest var·fan_in that is divided by in a WRN.
_WRN_FLOOR = 1e-4


class BiT(nn.Module):
  """Images to the mean over pixels of the last normalised activations.

  Attributes:
    blocks: residual blocks in each stage.
    width: channels of the root; stage k has 4·2^k times as many.
    groups: groups of every group normalisation.
    compute_dtype: of convolutions, activations and the residual stream; the
      statistics and the mean are computed in float32 in either case.
  """

  blocks: tuple[int, ...]
  width: int = 64
  groups: int = 32
  embedding: str = POOLED
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    """Embeddings of normalised images."""
    conv = functools.partial(Convolution, compute_dtype=self.compute_dtype)
    x = conv(self.width, 7, stride=2, padding=3, name="stem.conv")(images)
    # Zeros, not -inf, at the border, as when the weights were trained.
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = nn.max_pool(x, window_shape=(3, 3), strides=(2, 2))
    for stage, depth in enumerate(self.blocks):
      for place in range(depth):
        x = BiTBlock(
          4 * self.width * 2**stage,
          stride=2 if stage and not place else 1,
          project=not place,
          groups=self.groups,
          compute_dtype=self.compute_dtype,
          name=f"stages.{stage}.blocks.{place}",
        )(x)
    x = GroupNorm(self.groups, name="norm")(x)
    return x.mean(axis=(1, 2), dtype=jnp.float32)


class BiTBlock(nn.Module):
  """Three convolutions, each after GroupNorm and relu, beside a shortcut."""

  features: int
  stride: int
  project: bool
  groups: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b y x o"]:
    conv = functools.partial(Convolution, compute_dtype=self.compute_dtype)
    inner, stride = self.features // 4, self.stride
    out = GroupNorm(self.groups, name="norm1")(x)
    if self.project:
      x = conv(self.features, 1, stride=stride, name="downsample.conv")(out)
    out = conv(inner, 1, name="conv1")(out)
    out = GroupNorm(self.groups, name="norm2")(out)
    out = conv(inner, 3, stride=stride, padding=1, name="conv2")(out)
    out = GroupNorm(self.groups, name="norm3")(out)
    return x + conv(self.features, 1, name="conv3")(out)


class WideResNet(nn.Module):
  """Images to the mean over pixels of the last normalised activations.

  Every convolution has a bias, and comes after relu and then GroupNorm, in that
  order.

  Attributes:
    blocks: residual blocks in each of the three stages.
    width: stage k has 16·width·2^k channels.
    groups: groups of every group normalisation.
    compute_dtype: see `BiT`.
  """

  blocks: tuple[int, ...]
  width: int
  groups: int = 16
  embedding: str = POOLED
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    """Embeddings of normalised images."""
    conv = functools.partial(
      Convolution, bias=True, compute_dtype=self.compute_dtype
    )

    def normed(x: Array, name: str) -> Array:
      return GroupNorm(self.groups, relu=False, name=name)(nn.relu(x))

    x = conv(16, 3, padding=1, name="stem.conv")(images)
    for stage, depth in enumerate(self.blocks):
      for place in range(depth):
        scope, same = f"stages.{stage}.blocks.{place}", {"padding": "SAME"}
        features = 16 * self.width * 2**stage
        stride = 2 if stage and not place else 1
        out = normed(x, f"{scope}.norm1")
        out = conv(features, 3, stride, name=f"{scope}.conv1", **same)(out)
        out = normed(out, f"{scope}.norm2")
        out = conv(features, 3, name=f"{scope}.conv2", **same)(out)
        if not place:
          x = normed(x, f"{scope}.downsample.norm")
          name = f"{scope}.downsample.conv"
          x = conv(features, 1, stride, name=name, **same)(x)
        x = x + out
    return normed(x, "norm").mean(axis=(1, 2), dtype=jnp.float32)


class Convolution(nn.Module):
  """Cross-correlation over height and width, the channels last.

  A 1x1 convolution is a matrix product over the channels (on a CPU 1.1 to 2.3
  times as fast as XLA's convolution), and a grouped one is a convolution for
  each group (2.6 to 4.4 times; on a TPU 128 channels are one pass of the matrix
  unit either way).

  Attributes:
    features: channels of the output.
    size, stride: of the kernel, in both directions.
    padding: zeros on each side; "SAME" is TensorFlow's, which depends on the
      size of the input.
    groups: groups of channels that do not see each other.
    bias: whether there is one.
    compute_dtype: of the products and the result; parameters are cast to it.
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
    how, pad = products(self.compute_dtype), self.padding
    dtype, precision = how["dtype"], how["precision"]
    shape = (self.size, self.size, x.shape[-1] // self.groups, self.features)
    kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    if self.size == 1 and self.groups == 1:
      x = x[:, :: self.stride, :: self.stride]
      out = jnp.matmul(x, kernel[0, 0], precision=precision)
    else:
      convolve = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(self.stride, self.stride),
        padding=pad if isinstance(pad, str) else [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision,
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

  Mean and variance are first taken per channel, over the pixels, and combined
  for the group afterwards, which reads memory in order: on a CPU 2 to 8 times
  as fast as linen's GroupNorm where most of the time goes. The variance is
  that of centred values; the mean of squares less the square of the mean,
  linen's default, loses digits where the mean is large.

  Source: Wu and He, "Group Normalization" (ECCV 2018), equations 1 to 3.
  """

  groups: int
  relu: bool = True

  @nn.compact
  def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
    """Normalised activations in the dtype of `x`; statistics in float32."""
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


def network_of(
  arrays: Mapping[str, np.ndarray], embedding: str | None
) -> BiT | WideResNet:
  """The network of a file in timm's names; see `vit_file.network_of`."""
  check_pooled(embedding)
  blocks = depths(arrays, r"stages\.(\d+)\.blocks\.(\d+)\.conv1\.weight")
  root = len(arrays["stem.conv.weight"])
  width = len(arrays["stages.0.blocks.0.conv1.weight"])
  if "stages.0.blocks.0.conv3.weight" in arrays:
    return BiT(blocks, root)
  return WideResNet(blocks, width // 16)


def name_of(network: BiT | WideResNet) -> str:
  """The name of a network of this kind and size."""
  blocks, width = network.blocks, network.width
  if isinstance(network, WideResNet):
    return f"wrn_{2 * sum(blocks) + 4}_{width}"
  return f"bit_r{_BIT_LAYERS.get(blocks, blocks)}x{width / 64:g}"


def fitted(
  network: nn.Module, arrays: Mapping[str, np.ndarray], image_size: int
) -> Arrays:
  """The arrays that the embedding needs: all."""
  del network, image_size
  return dict(arrays)


def folded(
  network: BiT | WideResNet, arrays: Mapping[str, np.ndarray]
) -> Arrays:
  """The same with standardised kernels, a WRN's with its gains in them."""
  found = {}
  for name, array in arrays.items():
    gain = arrays.get(f"{name.removesuffix('.weight')}.gain")
    if array.ndim == 4 and isinstance(network, BiT):
      found[name] = standardize(array, _BIT_EPSILON)
    elif array.ndim == 4 and gain is not None:
      fan_in = array[0].size
      floor = _WRN_FLOOR / fan_in
      found[name] = standardize(array, 0.0, gain / fan_in**0.5, floor=floor)
    elif not name.endswith(".gain"):
      found[name] = array
  return found


def check_pooled(embedding: str | None) -> None:
  """ValueError: an embedding is asked for that is not the only one."""
  if embedding not in (None, POOLED):
    raise ValueError(f"embedding {embedding!a} is none of {POOLED}")


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

  Mean and variance (of the population, not of a sample) are over all axes but
  the first. With `gain` = γ·g/√fan_in, g learnt per channel, it is the scaled
  weight standardisation of networks without normalisation. A channel of equal
  values becomes 0, one with a value that is not finite becomes NaN.

  Source: Qiao et al., "Micro-Batch Training with Batch-Channel Normalization
  and Weight Standardization" (2019), equation 8; Brock et al. (ICLR 2021),
  "Characterizing signal propagation to close the performance gap in
  unnormalized ResNets", equation 1.
  """
  wide = weight.astype(np.float64, order="C").reshape(len(weight), -1)
  with np.errstate(invalid="ignore", divide="ignore"):
    wide -= wide.mean(axis=1, keepdims=True)
    # einsum makes no array of squares
    variance = np.einsum("oi,oi->o", wide, wide) / max(1, wide.shape[1])
    divisor = np.sqrt(np.maximum(variance + epsilon, floor))
    wide *= (np.reshape(gain, -1) / divisor)[:, None]
  return wide.astype(np.float32).reshape(weight.shape)
