"""WRN: the Wide ResNets of De et al., pretrained on ImageNet at 32 pixels.

DeepMind's own files are Python pickles, which run code when they are loaded, so
they are not read: `extract/README.md` says how to make an npz of one.
"""

import functools
import re
from collections.abc import Mapping

import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import Architecture, Arrays, Shape
from oneshot_dp.extract.backbones.resnet.convolution import (
  Convolution,
  GroupNorm,
  stages,
  standardize,
)
from oneshot_dp.extract.backbones.resnet.layouts import family, refuse_another
from oneshot_dp.extract.images.preprocess import Preprocessing

EXAMPLES = ("wrn_16_4", "wrn_28_10", "wrn_40_4")

_NAME = re.compile(r"wrn_([1-9][0-9])_([1-9][0-9]?)")
_STAGES = 3
# CIFAR's, by which jax_privacy normalises whatever these networks are shown.
_REFERENCE = Preprocessing(
  image_size=32,
  resample="bilinear",
  mean=(0.49139968, 0.48215841, 0.44653091),
  std=(0.24703223, 0.24348513, 0.26158784),
)
# Of the smallest var·fan_in that is divided by.
_FLOOR = 1e-4


class WideResNet(nn.Module):
  """Images to the mean over pixels of the last normalised activations.

  Every convolution has a bias, and comes after relu and then GroupNorm, in that
  order.

  Attributes:
    blocks: residual blocks in each of the three stages.
    width: stage k has 16·width·2^k channels.
    groups: groups of every group normalisation.
    compute_dtype: of convolutions, activations and the residual stream; the
      statistics and the mean are computed in float32 in either case.

  Source: De et al., "Unlocking High-Accuracy Differentially Private Image
  Classification through Scale" (2022), section 3, and its code in jax_privacy;
  Zagoruyko & Komodakis, "Wide Residual Networks" (BMVC 2016).
  """

  blocks: int
  width: int
  groups: int = 16
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    x = Convolution(
      *(16, 3),
      padding=1,
      bias=True,
      compute_dtype=self.compute_dtype,
      name="stem",
    )(images)
    block = functools.partial(
      _Block, groups=self.groups, compute_dtype=self.compute_dtype
    )
    x = stages(x, block, [self.blocks] * _STAGES, 16 * self.width)
    x = GroupNorm(self.groups, relu=False, name="norm")(nn.relu(x))
    return x.mean(axis=(1, 2), dtype=np.float32)


class _Block(nn.Module):
  features: int
  stride: int
  project: bool
  groups: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b y x o"]:
    def convolved(
      x: Array, size: int, stride: int, norm: str, name: str
    ) -> Array:
      x = GroupNorm(self.groups, relu=False, name=norm)(nn.relu(x))
      return Convolution(
        *(self.features, size, stride, "SAME"),
        bias=True,
        compute_dtype=self.compute_dtype,
        name=name,
      )(x)

    out = convolved(x, 3, self.stride, "norm1", "conv1")
    out = convolved(out, 3, 1, "norm2", "conv2")
    if self.project:
      x = convolved(x, 1, self.stride, "skip_norm", "skip")
    return x + out


def find(name: str) -> Architecture | None:
  """The network that a name such as `wrn_28_10` means; None if it means none.

  The depth is 4 layers more than a multiple of 6, the width any below 100.
  """
  match = _NAME.fullmatch(name)
  if match is None or int(match[1]) % 6 != 4:
    return None
  depth, width = int(match[1]), int(match[2])
  return Architecture(
    name=name,
    summary=(
      f"Wide ResNet of {depth} layers, {width}x as wide, for 32 pixels; "
      f"{64 * width} features"
    ),
    layouts=("npz made of jax_privacy's parameters (extract/README.md)",),
    embeddings=("pooled",),
    reference=_REFERENCE,
    network=lambda _, dtype: WideResNet(
      (depth - 4) // 6, width, compute_dtype=dtype
    ),
    rename=functools.partial(rename, name=name),
  )


def rename(
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, Shape],
  path: str,
  *,
  name: str,
) -> Arrays:
  """Parameters of `WideResNet` from Haiku's; see `Architecture.rename`.

  Kernels are standardised: gain · (w − mean)/√max(var·fan_in, 1e-4).
  """
  del shapes  # nothing depends on the size of the image
  refuse_another(_describe(arrays), name, path)
  result: Arrays = {}
  for key, array in arrays.items():
    module, _, leaf = key.rpartition("/")
    if module == "wide_res_net/Softmax" or leaf == "gain":
      continue
    ours, gain = _ours(module), arrays.get(f"{module}/gain")
    if ours is None:
      result[key] = array  # to be named in an error
    elif leaf == "w":
      is_kernel = array.ndim == 4 and array.dtype.kind not in "biu"
      if not is_kernel or gain is None or gain.shape != array.shape[-1:]:
        result[key] = array
        continue
      fan_in = array[..., 0].size
      result[f"{ours}/kernel"] = standardize(
        array, 0.0, gain / fan_in**0.5, floor=_FLOOR / fan_in
      )
    else:
      result[f"{ours}/{'bias' if leaf == 'offset' else leaf}"] = array
  return result


def _ours(module: str) -> str | None:
  name = module.removeprefix("wide_res_net/")
  if name in ("First_conv", "Final_norm"):
    return {"First_conv": "stem", "Final_norm": "norm"}[name]
  if match := re.fullmatch(r"Block_([1-3])_skip_(norm|conv)", name):
    part = {"norm": "skip_norm", "conv": "skip"}[match[2]]
    return f"stage{match[1]}_block1/{part}"
  match = re.fullmatch(r"Block_([1-3])(_norm|Conv)_(\d+)_([01])", name)
  if match is None:
    return None
  stage, kind, block, place = match.groups()
  kind = kind.strip("_").lower()
  return f"stage{stage}_block{int(block) + 1}/{kind}{int(place) + 1}"


def _describe(arrays: Mapping[str, np.ndarray]) -> str | None:
  first = arrays.get("wide_res_net/Block_1Conv_0_0/w")
  if first is None:
    return family(arrays)
  blocks = sum(bool(re.search(r"Block_1Conv_\d+_0/w$", key)) for key in arrays)
  return f"wrn_{6 * blocks + 4}_{first.shape[-1] // 16}"
