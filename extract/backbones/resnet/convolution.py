"""A convolution in whichever form the devices compute fastest."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.architecture import products


class Convolution(nn.Module):
  """Cross-correlation over height and width, the channels last.

  A 1x1 convolution is a matrix product over the channels (on a CPU 1.1 to 2.3
  times as fast as XLA's convolution), and a grouped one is a convolution for
  each group (2.6 to 4.4 times; on a TPU 128 channels are one pass of the matrix
  unit either way).

  Attributes:
    features: channels of the output.
    size: height and width of the kernel.
    stride: step, in both directions.
    padding: zeros on each side; "SAME" is TensorFlow's, which depends on the
      size of the input.
    groups: groups of channels that do not see each other.
    bias: add a bias per channel.
    compute_dtype: dtype of the products and of the result. Parameters of
      another dtype are cast to it.
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
    how = products(self.compute_dtype)
    kernel = self.param(
      "kernel",
      nn.initializers.lecun_normal(),
      (self.size, self.size, x.shape[-1] // self.groups, self.features),
    ).astype(how["dtype"])
    x = x.astype(how["dtype"])
    if self.size == 1 and self.groups == 1:
      x = x[:, :: self.stride, :: self.stride]
      out = jnp.matmul(x, kernel[0, 0], precision=how["precision"])
    else:
      out = self._by_group(x, kernel, how["precision"])
    if self.bias:
      bias = self.param("bias", nn.initializers.zeros, (self.features,))
      out = out + bias.astype(how["dtype"])
    return out

  def _by_group(
    self,
    x: Float[Array, "b h w i"],
    kernel: Float[Array, "k k i_group o"],
    precision: jax.lax.Precision | None,
  ) -> Float[Array, "b y x o"]:
    pad = self.padding

    def convolve(x: Array, kernel: Array) -> Array:
      return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(self.stride, self.stride),
        padding=pad if isinstance(pad, str) else [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=precision,
      )

    groups = zip(
      jnp.split(x, self.groups, axis=-1),
      jnp.split(kernel, self.groups, axis=-1),
      strict=True,
    )
    return jnp.concatenate([convolve(*group) for group in groups], axis=-1)
