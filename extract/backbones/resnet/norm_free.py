"""Residual networks without normalisation: NF-ResNet and NFNet.

Every constant of these networks that multiplies a convolution's input or
output has been folded into its kernel when the file was read (nf_layouts.py),
so that plain convolutions, activations and sums are left to compute.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.backbone import (
  IMAGENET,
  Architecture,
  products,
)
from oneshot_dp.extract.backbones.resnet import nf_layouts
from oneshot_dp.extract.backbones.resnet.convolution import Convolution
from oneshot_dp.extract.backbones.resnet.nf_layouts import BLOCKS, GAMMA, Kind
from oneshot_dp.extract.images.preprocess import Preprocessing

EXAMPLES = tuple(BLOCKS)

# Test size, and the share of each side that is kept (timm's).
_TEST = {
  "nfnet_f0": (256, 0.9),
  "nfnet_f1": (320, 0.91),
  "nfnet_f2": (352, 0.92),
  "nfnet_f3": (416, 0.94),
}


def find(name: str) -> Architecture | None:
  """The network that a name such as `nfnet_f0` means; None if it means none."""
  if name not in BLOCKS:
    return None
  if name in _TEST:
    kind, widths, root, features = "nfnet", (256, 512, 1536, 1536), 128, 3072
    title = f"NFNet-{name[-2:].upper()}, {sum(BLOCKS[name])} residual blocks"
    files = "dm_nfnet_*"
    side, share = _TEST[name]
    reference = Preprocessing(
      image_size=side,
      resize=math.floor(side / share),
      keep_aspect=False,
      **IMAGENET,
    )
  else:
    kind, widths, root, features = "nf_resnet", (256, 512, 1024, 2048), 64, 2048
    title = f"NF-ResNet of {name.removeprefix('nf_resnet')} layers"
    files = "nf_resnet*"
    # 94 % of the shorter side, as timm tests the published NF-ResNet-50.
    reference = Preprocessing(image_size=288, resize=306, **IMAGENET)
  blocks = BLOCKS[name]
  return Architecture(
    name=name,
    summary=f"{title}; {features} features",
    layouts=(f"safetensors of timm ({files})",),
    embeddings=("pooled",),
    reference=reference,
    network=lambda _, dtype: NormFreeNet(
      kind, blocks, widths, root, compute_dtype=dtype
    ),
    rename=functools.partial(nf_layouts.rename, kind=kind, blocks=blocks),
  )


class NormFreeNet(nn.Module):
  """Images to the mean over pixels of the last activations.

  Attributes:
    kind: "nf_resnet": ReLU, a 7x7 root and max-pool, padding the same on all
      sides, three convolutions in a block. "nfnet": GELU (exact), a root of
      four convolutions, "SAME" padding, four convolutions in a block (the 3x3
      ones in groups), then squeeze-and-excitation; a final 1x1 convolution to
      twice as many channels.
    blocks, widths: residual blocks, and channels, of each stage.
    root: channels after the root.
    group: channels of a group in an nfnet's 3x3 convolutions.
    compute_dtype: of convolutions, activations and the residual stream; GELU,
      squeezing and the mean are computed in float32 in either case.

  Source: Brock et al., "Characterizing signal propagation to close the
  performance gap in unnormalized ResNets" (ICLR 2021), section 4; Brock et al.,
  "High-Performance Large-Scale Image Recognition Without Normalization" (ICML
  2021), section 5 and appendix C.
  """

  kind: Kind
  blocks: tuple[int, ...]
  widths: tuple[int, ...]
  root: int
  group: int = 128
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    nfnet, x = self.kind == "nfnet", images
    conv = functools.partial(
      Convolution, bias=True, compute_dtype=self.compute_dtype
    )
    if nfnet:
      for i, stride in enumerate((2, 1, 1, 2)):
        x = conv(
          self.root // 2 ** (3 - i),
          3,
          stride=stride,
          padding="SAME",
          name=f"stem{i + 1}",
        )(_activate(self.kind, x) if i else x)
    else:
      x = conv(self.root, 7, stride=2, padding=3, name="stem1")(x)
      x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    for stage, (depth, width) in enumerate(
      zip(self.blocks, self.widths, strict=True)
    ):
      for block in range(depth):
        x = _Block(
          self.kind,
          width,
          stride=2 if stage and not block else 1,
          group=self.group,
          compute_dtype=self.compute_dtype,
          name=f"stage{stage + 1}_block{block + 1}",
        )(x)
    if nfnet:
      x = conv(2 * self.widths[-1], 1, name="final")(x)
    out = _activate(self.kind, x.astype(jnp.float32)).mean(axis=(1, 2))
    return out * GAMMA["nfnet"] if nfnet else out


class _Block(nn.Module):
  kind: Kind
  features: int
  stride: int
  group: int
  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(self, x: Float[Array, "b h w i"]) -> Float[Array, "b y x o"]:
    nfnet = self.kind == "nfnet"
    act = functools.partial(_activate, self.kind)
    conv = functools.partial(
      Convolution, bias=True, compute_dtype=self.compute_dtype
    )
    inner = self.features // (2 if nfnet else 4)
    spatial = functools.partial(
      conv,
      inner,
      3,
      padding="SAME" if nfnet else 1,
      groups=inner // self.group if nfnet else 1,
    )
    out = act(x)
    if self.stride > 1 or x.shape[-1] != self.features:
      x = out
      if self.stride > 1:
        # At an odd side the mean is over the pixels that there are.
        x = nn.avg_pool(x, (2, 2), (2, 2), "SAME", count_include_pad=False)
      x = conv(self.features, 1, name="projection")(x)
    out = conv(inner, 1, name="conv1")(out)
    out = spatial(stride=self.stride, name="conv2")(act(out))
    if nfnet:
      out = spatial(name="conv2b")(act(out))
    out = conv(self.features, 1, name="conv3")(act(out))
    if nfnet:
      out = _SqueezeExcite(self.compute_dtype, name="squeeze")(out)
    return x + out


class _SqueezeExcite(nn.Module):
  """gain · x · sigmoid(W2 relu(W1 mean(x)))."""

  compute_dtype: ComputeDtype

  @nn.compact
  def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
    how, channels = products(self.compute_dtype), x.shape[-1]
    gain = self.param("gain", nn.initializers.ones, ())
    gate = x.mean(axis=(1, 2), dtype=jnp.float32)
    gate = nn.relu(nn.Dense(channels // 2, name="in", **how)(gate))
    gate = nn.Dense(channels, name="out", **how)(gate)
    gate = gain * nn.sigmoid(gate.astype(jnp.float32))
    return x * gate[:, None, None].astype(x.dtype)


def _activate(kind: Kind, x: Float[Array, "..."]) -> Float[Array, "..."]:
  if kind == "nf_resnet":
    return nn.relu(x)
  return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)
