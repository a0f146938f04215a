"""Residual networks without normalization: NF-ResNet and NFNet.

A block computes, with W the scaled standardized kernels and a the activation,

    x + α·s·2·gate(W3 a'(… W1 a'(β x))),    a' = γ·a

α, β and γ are constants, s is learned. `adapt_weights` multiplies β and γ into
the kernels that follow them, and α, s and 2 into one number (in an NF-ResNet,
which has no gate, into W3 and its bias). Kernels are standardized as timm does:
DeepMind's code of NFNet takes max(var·fan_in, 1e-4) where timm takes
var + 1e-5.

Source: Brock et al., "Characterizing signal propagation to close the
performance gap in unnormalized ResNets" (ICLR 2021), section 4; Brock et al.,
"High-Performance Large-Scale Image Recognition Without Normalization" (ICML
2021), section 5 and appendix C.
"""

import functools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.resnet_v2 import (
  Convolution,
  block_stride,
  count_blocks,
  standardize,
)
from oneshot_dp.extract.weights import Arrays, Images

CLASSIFIER_WEIGHTS: tuple[str, ...] = ("head.",)
GAMMA = {"nf_resnet": 1.7139588594436646, "nfnet": 1.7015043497085571}
"""1/√(variance of the activation of a standard normal variable)."""
_ALPHA = 0.2


class NormFree(nn.Module):
  """A network without normalization, read at the mean over pixels.

  Attributes:
    kind: "nf_resnet": ReLU, a 7x7 root and max-pool. "nfnet": GELU (exact), a
      root of four convolutions, four in a block, squeeze-and-excitation.
    blocks: residual blocks in each stage.
    widths: channels of each stage.
    root: channels after the root.
    group: channels in a group of the 3x3 convolutions.
    compute_dtype: dtype of convolutions, activations and the residual stream.
  """

  kind: str
  blocks: tuple[int, ...]
  widths: tuple[int, ...]
  root: int
  group: int
  compute_dtype: ComputeDtype = "float32"
  embedding = "pooled"

  @nn.compact
  def __call__(self, images: Images) -> Float32[Array, "b d"]:
    x = self._root(images)
    for stage, num_blocks in enumerate(self.blocks):
      for index in range(num_blocks):
        x = self._block(x, stage, index)
    if self.kind == "nfnet":
      x = self._convolution(2 * self.widths[-1], 1, name="final_conv")(x)
    out = self._activation(x.astype(jnp.float32)).mean(axis=(1, 2))
    if self.kind == "nfnet":
      out = out * GAMMA["nfnet"]
    return out

  def _root(self, images: Images) -> Array:
    """From pixels to the first stage's input, a quarter as high and wide."""
    if self.kind == "nf_resnet":
      conv = self._convolution(
        self.root, 7, stride=2, padding=3, name="stem.conv"
      )
      return nn.max_pool(conv(images), (3, 3), (2, 2), ((1, 1), (1, 1)))
    x = images
    for number, stride in enumerate((2, 1, 1, 2), start=1):
      if number > 1:
        x = self._activation(x)
      channels = self.root // 2 ** (4 - number)
      x = self._convolution(
        channels, 3, stride, padding="SAME", name=f"stem.conv{number}"
      )(x)
    return x

  def _block(self, x: Array, stage: int, index: int) -> Array:
    """One residual block."""
    block = f"stages.{stage}.{index}"
    stride = block_stride(stage, index)
    channels = self.widths[stage]
    if self.kind == "nfnet":
      inner = channels // 2
      spatial_conv = functools.partial(
        self._convolution,
        inner,
        3,
        padding="SAME",
        groups=inner // self.group,
      )
    else:
      inner = channels // 4
      spatial_conv = functools.partial(self._convolution, inner, 3, padding=1)

    # The branch sees the activation; so does the shortcut, if it is not the
    # identity.
    out = self._activation(x)
    if stride > 1 or x.shape[-1] != channels:
      x = out
      if stride > 1:
        # At an odd side the mean is over the pixels that there are.
        x = nn.avg_pool(x, (2, 2), (2, 2), "SAME", count_include_pad=False)
      x = self._convolution(channels, 1, name=f"{block}.downsample.conv")(x)
    out = self._convolution(inner, 1, name=f"{block}.conv1")(out)
    out = self._activation(out)
    out = spatial_conv(stride=stride, name=f"{block}.conv2")(out)
    if self.kind == "nfnet":
      out = self._activation(out)
      out = spatial_conv(name=f"{block}.conv2b")(out)
    out = self._activation(out)
    out = self._convolution(channels, 1, name=f"{block}.conv3")(out)
    if self.kind == "nfnet":
      out = out * self._gate(out, block).astype(out.dtype)
    return x + out

  def _gate(self, x: Array, block: str) -> Array:
    """Squeeze-and-excitation: s · sigmoid(W2 relu(W1 mean(x)))."""
    channels = x.shape[-1]
    gate = x.mean(axis=(1, 2), keepdims=True, dtype=jnp.float32)
    squeeze = self._convolution(channels // 2, 1, name=f"{block}.attn_last.fc1")
    excite = self._convolution(channels, 1, name=f"{block}.attn_last.fc2")
    gate = excite(nn.relu(squeeze(gate)))
    gain = self.param(f"{block}.skipinit_gain", nn.initializers.ones, ())
    return gain * nn.sigmoid(gate.astype(jnp.float32))

  def _activation(self, x: Array) -> Array:
    if self.kind == "nf_resnet":
      return nn.relu(x)
    return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)

  @property
  def _convolution(self) -> Callable[..., Convolution]:
    """The kind of convolution that all of them are."""
    return functools.partial(
      Convolution, bias=True, compute_dtype=self.compute_dtype
    )


def infer_network(arrays: Arrays, embedding: str | None) -> NormFree:
  """Returns the network that a weights file belongs to; see `Family`.

  Args:
    arrays: by timm's names. A stem of several convolutions tells an NFNet
      from an NF-ResNet.
    embedding: not used: all networks of this family have one, "pooled".

  Raises:
    KeyError: an array is missing that all networks of this family have.
    ValueError: channels are no whole number of groups.
  """
  blocks = count_blocks(arrays, r"stages\.(\d+)\.(\d+)\.conv1\.gain")
  # The stem tells the two kinds apart: one convolution, or four.
  kind = "nf_resnet"
  root = "stem.conv.weight"
  if "stem.conv1.weight" in arrays:
    kind = "nfnet"
    root = "stem.conv4.weight"
  widths = []
  for stage in range(len(blocks)):
    widths.append(len(arrays[f"stages.{stage}.0.conv3.weight"]))
  group = arrays["stages.0.0.conv2.weight"].shape[1]
  # Groups are inferred from one kernel; a file of other groups would fail in
  # the middle of the network, with a message about shapes.
  if kind == "nfnet" and any(width % (2 * group) for width in widths):
    raise ValueError(f"{widths} channels are no whole groups of {group}")
  return NormFree(kind, blocks, tuple(widths), len(arrays[root]), group)


def inferred_name(network: NormFree) -> str:
  """Returns the backbone name of a network of this kind and size."""
  if network.kind == "nfnet":
    return f"nfnet_f{network.blocks[0] - 1}"
  return f"nf_resnet{3 * sum(network.blocks) + 2}"


def adapt_weights(network: NormFree, arrays: Arrays, image_size: int) -> Arrays:
  """Returns the arrays with standardized kernels and all constants in them.

  Args:
    network: from `infer_network`.
    arrays: by timm's names, with the gains of standardized kernels.
    image_size: not used: convolutions take any.

  Returns:
    Arrays by the same names, less the gains: standardized kernels have these,
    and the scales of activations and branches, multiplied in.
  """
  adapted = {}
  for name, array in arrays.items():
    module, _, leaf = name.rpartition(".")
    gain = arrays.get(f"{module}.gain")
    # What is constant is multiplied into the arrays once: into the learned
    # number behind the gate, into biases, and into kernels with their gains.
    if leaf == "skipinit_gain":
      adapted[name] = np.float32(2 * _ALPHA) * array.astype(np.float32)
    elif gain is None:
      adapted[name] = array
    elif leaf == "bias":
      _, output_scale = _scales(module, network)
      adapted[name] = array * np.float32(output_scale)
    elif leaf == "weight":
      scale = gain.astype(np.float64) * np.prod(_scales(module, network))
      scale /= max(1, np.prod(array.shape[1:])) ** 0.5
      adapted[name] = standardize(array, 1e-5, scale)
  return adapted


def _scales(module: str, network: NormFree) -> tuple[float, float]:
  """Returns the factors of a convolution's input and output."""
  # Those two see no activation and are no residual branch.
  if network.kind == "nfnet" and module in ("stem.conv1", "final_conv"):
    return 1.0, 1.0
  input_scale = GAMMA[network.kind]
  output_scale = 1.0
  # An NFNet has α in its gate.
  if network.kind == "nf_resnet" and module.endswith(".conv3"):
    output_scale = _ALPHA
  first = r"stages\.(\d+)\.(\d+)\.(conv1|downsample\.conv)"
  match = re.fullmatch(first, module)
  if match:
    # β = 1/√(variance of the block's input), the variance as predicted: it
    # grows by α² in each block, and the first block of a stage resets it.
    stage = int(match[1])
    block = int(match[2])
    blocks_since_reset = block
    if block == 0 and stage > 0:
      blocks_since_reset = network.blocks[stage - 1]
    input_scale *= (1 + blocks_since_reset * _ALPHA**2) ** -0.5
  return input_scale, output_scale
