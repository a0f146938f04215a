"""BiT: the pre-activation ResNets of "Big Transfer", GroupNorm throughout.

The convolutions are plain: their kernels were standardised when the file was
read (see `standardize`).
"""

import functools
import re

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import Architecture
from oneshot_dp.extract.backbones.resnet import bit_layouts
from oneshot_dp.extract.backbones.resnet.convolution import (
  Convolution,
  GroupNorm,
  stages,
)
from oneshot_dp.extract.images.preprocess import Preprocessing

EXAMPLES = (
  "bit_r50x1",
  "bit_r50x3",
  "bit_r50x4",
  "bit_r101x1",
  "bit_r101x3",
  "bit_r152x2",
  "bit_r152x4",
)

_NAME = re.compile(r"bit_r(50|101|152)x([1-9][0-9]?)")


class BitResNet(nn.Module):
  """Images to the mean over pixels of the last normalised activations.

  Attributes:
    blocks: residual blocks in each stage.
    width: channels of the root; stage k has 4·2^k times as many.
    groups: groups of every group normalisation.
    compute_dtype: of convolutions, activations and the residual stream; the
      statistics and the mean are computed in float32 in either case.

  Source: Kolesnikov et al., "Big Transfer (BiT): General Visual
  Representation Learning" (ECCV 2020), sections 3.1 and 3.2; He et al.,
  "Identity Mappings in Deep Residual Networks" (ECCV 2016), with the stride in
  the 3x3 convolution.
  """

  blocks: tuple[int, ...]
  width: int = 64
  groups: int = 32
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    conv = functools.partial(Convolution, compute_dtype=self.compute_dtype)
    x = conv(self.width, 7, stride=2, padding=3, name="stem")(images)
    # Zeros, not -inf, at the border, as when the weights were trained.
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    x = nn.max_pool(x, window_shape=(3, 3), strides=(2, 2))
    block = functools.partial(
      _Block, groups=self.groups, compute_dtype=self.compute_dtype
    )
    x = stages(x, block, self.blocks, 4 * self.width)
    x = GroupNorm(self.groups, name="norm")(x)
    return x.mean(axis=(1, 2), dtype=jnp.float32)


class _Block(nn.Module):
  features: int
  stride: int
  project: bool
  groups: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b y x o"]:
    conv = functools.partial(Convolution, compute_dtype=self.compute_dtype)
    inner = self.features // 4
    out = GroupNorm(self.groups, name="norm1")(x)
    if self.project:
      x = conv(self.features, 1, stride=self.stride, name="projection")(out)
    out = conv(inner, 1, name="conv1")(out)
    out = GroupNorm(self.groups, name="norm2")(out)
    out = conv(inner, 3, stride=self.stride, padding=1, name="conv2")(out)
    out = GroupNorm(self.groups, name="norm3")(out)
    return x + conv(self.features, 1, name="conv3")(out)


def find(name: str) -> Architecture | None:
  """The network that a name such as `bit_r50x4` means; None if it means none.

  The depth is 50, 101 or 152 layers, the width any whole multiple below 100.
  """
  match = _NAME.fullmatch(name)
  if match is None:
    return None
  depth, factor = int(match[1]), int(match[2])
  blocks = bit_layouts.BLOCKS[depth]
  return Architecture(
    name=name,
    summary=(
      f"BiT ResNet-v2 of {depth} layers, {factor}x as wide as a ResNet; "
      f"{2048 * factor} features"
    ),
    layouts=bit_layouts.LAYOUTS,
    embeddings=("pooled",),
    # Sides at which ImageNet-sized public weights were tuned.
    reference=Preprocessing(
      image_size=480 if name == "bit_r152x4" else 448, resample="bilinear"
    ),
    network=lambda _, dtype: BitResNet(
      blocks, 64 * factor, compute_dtype=dtype
    ),
    rename=bit_layouts.rename,
  )
