"""Residual networks without normalisation: NF-ResNet and NFNet.

A block computes, with W the scaled standardised kernels and a the activation,

    x + α·s·2·gate(W3 a'(… W1 a'(β x))),    a' = γ·a

α, β and γ are constants, s is learnt. `folded` puts β and γ into the kernels
that follow them, α, s and 2 into one number (in an NF-ResNet, which has no
gate, into W3 and its bias), so that plain convolutions, activations and sums
are left to compute.

DeepMind's own files of NFNet are pickles, which run code when they are loaded;
timm has published the same weights (dm_nfnet_f0.dm_in1k and so on). Kernels are
standardised as timm does: DeepMind's code takes max(var·fan_in, 1e-4) where
timm takes var + 1e-5.

Source: Brock et al., "Characterizing signal propagation to close the
performance gap in unnormalized ResNets" (ICLR 2021), section 4; Brock et al.,
"High-Performance Large-Scale Image Recognition Without Normalization" (ICML
2021), section 5 and appendix C.
"""

import functools
import re
from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones import resnet_v2
from oneshot_dp.extract.backbones.backbone import Arrays, products
from oneshot_dp.extract.backbones.resnet_v2 import (
  POOLED,
  Convolution,
  check_pooled,
  depths,
  standardize,
)

Kind = Literal["nf_resnet", "nfnet"]
GAMMA = {"nf_resnet": 1.7139588594436646, "nfnet": 1.7015043497085571}
"""1/√(variance of the activation of a standard normal variable)."""
_LAYERS = {
  ("nf_resnet", (2, 2, 2, 2)): 26,
  ("nf_resnet", (3, 4, 6, 3)): 50,
  ("nf_resnet", (3, 4, 23, 3)): 101,
} | {("nfnet", (n, 2 * n, 6 * n, 3 * n)): f"_f{n - 1}" for n in range(1, 8)}
_ALPHA = 0.2
_EPSILON = 1e-5


class NormFree(nn.Module):
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
  """

  kind: Kind
  blocks: tuple[int, ...]
  widths: tuple[int, ...]
  root: int
  group: int = 128
  embedding: str = POOLED
  compute_dtype: ComputeDtype = "float32"

  @nn.compact
  def __call__(
    self, images: Float32[Array, "b s s 3"]
  ) -> Float32[Array, "b d"]:
    """Embeddings of normalised images."""
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
          name=f"stem.conv{i + 1}",
        )(_activate(self.kind, x) if i else x)
    else:
      x = conv(self.root, 7, stride=2, padding=3, name="stem.conv")(x)
      x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    for stage, depth in enumerate(self.blocks):
      for place in range(depth):
        x = NormFreeBlock(
          self.kind,
          self.widths[stage],
          stride=2 if stage and not place else 1,
          group=self.group,
          compute_dtype=self.compute_dtype,
          name=f"stages.{stage}.{place}",
        )(x)
    if nfnet:
      x = conv(2 * self.widths[-1], 1, name="final_conv")(x)
    out = _activate(self.kind, x.astype(jnp.float32)).mean(axis=(1, 2))
    return out * GAMMA["nfnet"] if nfnet else out


class NormFreeBlock(nn.Module):
  """Convolutions, each after an activation, and a gate, beside a shortcut."""

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
      x = conv(self.features, 1, name="downsample.conv")(x)
    out = conv(inner, 1, name="conv1")(out)
    out = spatial(stride=self.stride, name="conv2")(act(out))
    if nfnet:
      out = spatial(name="conv2b")(act(out))
    out = conv(self.features, 1, name="conv3")(act(out))
    if not nfnet:
      return x + out
    # gain · out · sigmoid(W2 relu(W1 mean(out)))
    dense = functools.partial(nn.Dense, **products(self.compute_dtype))
    gate = out.mean(axis=(1, 2), dtype=jnp.float32)
    gate = nn.relu(dense(self.features // 2, name="attn_last.fc1")(gate))
    gate = dense(self.features, name="attn_last.fc2")(gate)
    gain = self.param("skipinit_gain", nn.initializers.ones, ())
    gate = gain * nn.sigmoid(gate.astype(jnp.float32))
    return x + out * gate[:, None, None].astype(out.dtype)


def _activate(kind: Kind, x: Float[Array, "..."]) -> Float[Array, "..."]:
  if kind == "nf_resnet":
    return nn.relu(x)
  return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)


def network_of(
  arrays: Mapping[str, np.ndarray], embedding: str | None
) -> NormFree:
  """The network of a file in timm's names; see `vit_file.network_of`."""
  check_pooled(embedding)
  blocks = depths(arrays, r"stages\.(\d+)\.(\d+)\.conv1\.gain")
  kind = "nfnet" if "stem.conv1.weight" in arrays else "nf_resnet"
  stem = "stem.conv4.weight" if kind == "nfnet" else "stem.conv.weight"
  firsts = [f"stages.{stage}.0.conv3.weight" for stage in range(len(blocks))]
  widths = tuple(len(arrays[first]) for first in firsts)
  group = arrays["stages.0.0.conv2.weight"].shape[1]
  if kind == "nfnet" and any(width % (2 * group) for width in widths):
    raise ValueError(f"{widths} channels are no whole groups of {group}")
  return NormFree(kind, blocks, widths, len(arrays[stem]), group)


def name_of(network: NormFree) -> str:
  """The name of a network of this kind and size."""
  kind, blocks = network.kind, network.blocks
  return kind + str(_LAYERS.get((kind, blocks), blocks))


fitted = resnet_v2.fitted


def folded(network: NormFree, arrays: Mapping[str, np.ndarray]) -> Arrays:
  """The same with scaled, standardised kernels and all constants in them."""
  found = {}
  for name, array in arrays.items():
    module, _, leaf = name.rpartition(".")
    gain = arrays.get(f"{module}.gain")
    if name.endswith("skipinit_gain"):
      found[name] = np.float32(2 * _ALPHA) * array.astype(np.float32)
    elif gain is None:
      # The gate's are 1x1 convolutions [out, in, 1, 1].
      found[name] = array.reshape(array.shape[:2]) if array.ndim == 4 else array
    elif leaf != "gain":
      before, after = _scales(module, network)
      if leaf == "bias":
        found[name] = array.astype(np.float32) * np.float32(after)
      else:
        scale = gain.astype(np.float64) * (before * after)
        scale /= max(1, np.prod(array.shape[1:])) ** 0.5
        found[name] = standardize(array, _EPSILON, scale)
  return found


def _scales(module: str, network: NormFree) -> tuple[float, float]:
  """What multiplies a convolution's input and its output."""
  if module in ("stem.conv1", "final_conv") and network.kind == "nfnet":
    return 1.0, 1.0
  before = GAMMA[network.kind]
  is_last = module.endswith(".conv3") and network.kind == "nf_resnet"
  if match := re.fullmatch(
    r"stages\.(\d+)\.(\d+)\.(conv1|downsample\.conv)", module
  ):
    # 1/√(variance of the block's input), the variance as predicted.
    stage, block = int(match[1]), int(match[2])
    since_reset = block or sum(network.blocks[:stage][-1:])
    before *= float((1 + since_reset * _ALPHA**2) ** -0.5)
  return before, _ALPHA if is_last else 1.0
