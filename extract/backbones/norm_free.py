"""Residual networks without normalisation: NF-ResNet and NFNet.

A block computes, with W the scaled standardised kernels and a the activation,

    x + α·s·2·gate(W3 a'(… W1 a'(β x))),    a' = γ·a

α, β and γ are constants, s is learnt. `fitted` puts β and γ into the kernels
that follow them, α, s and 2 into one number (in an NF-ResNet, which has no
gate, into W3 and its bias). Kernels are standardised as timm does: DeepMind's
code of NFNet takes max(var·fan_in, 1e-4) where timm takes var + 1e-5.

Source: Brock et al., "Characterizing signal propagation to close the
performance gap in unnormalized ResNets" (ICLR 2021), section 4; Brock et al.,
"High-Performance Large-Scale Image Recognition Without Normalization" (ICML
2021), section 5 and appendix C.
"""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float32

from oneshot_dp.configs.extract_config import ComputeDtype
from oneshot_dp.extract.backbones.resnet_v2 import (
  Convolution,
  depths,
  standardize,
)
from oneshot_dp.extract.weights import Arrays, Images

GAMMA = {"nf_resnet": 1.7139588594436646, "nfnet": 1.7015043497085571}
"""1/√(variance of the activation of a standard normal variable)."""
_ALPHA = 0.2


class NormFree(nn.Module):
  """Images to the mean over pixels of the last activations.

  Attributes:
    kind: "nf_resnet": ReLU, a 7x7 root and max-pool. "nfnet": GELU (exact), a
      root of four convolutions, four in a block, squeeze-and-excitation.
    blocks, widths: residual blocks, and channels, of each stage.
    root, group: channels after the root, and in a group of 3x3 convolutions.
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
    nfnet, x = self.kind == "nfnet", images
    same: dict[str, Any] = {"padding": "SAME" if nfnet else 1}
    conv = functools.partial(
      Convolution, bias=True, compute_dtype=self.compute_dtype
    )

    def act(x: Array) -> Array:
      if not nfnet:
        return nn.relu(x)
      wide = x.astype(jnp.float32)
      return jax.nn.gelu(wide, approximate=False).astype(x.dtype)

    if nfnet:
      for i, stride in enumerate((2, 1, 1, 2), start=1):
        x = act(x) if i > 1 else x
        wide = self.root // 2 ** (4 - i)
        x = conv(wide, 3, stride, name=f"stem.conv{i}", **same)(x)
    else:
      x = conv(self.root, 7, stride=2, padding=3, name="stem.conv")(x)
      x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    for stage, depth in enumerate(self.blocks):
      wide = self.widths[stage]
      inner = wide // (2 if nfnet else 4)
      same["groups"] = inner // self.group if nfnet else 1
      for place in range(depth):
        at, stride = f"stages.{stage}.{place}.", 1 + (stage > 0 and not place)
        out = act(x)
        if stride > 1 or x.shape[-1] != wide:
          x = out
          if stride > 1:
            # At an odd side the mean is over the pixels that there are.
            x = nn.avg_pool(x, (2, 2), (2, 2), "SAME", count_include_pad=False)
          x = conv(wide, 1, name=f"{at}downsample.conv")(x)
        out = conv(inner, 1, name=f"{at}conv1")(out)
        out = conv(inner, 3, stride, name=f"{at}conv2", **same)(act(out))
        if nfnet:
          out = conv(inner, 3, name=f"{at}conv2b", **same)(act(out))
        out = conv(wide, 1, name=f"{at}conv3")(act(out))
        if nfnet:  # out · s · sigmoid(W2 relu(W1 mean(out)))
          gate = out.mean(axis=(1, 2), keepdims=True, dtype=jnp.float32)
          gate = nn.relu(conv(wide // 2, 1, name=f"{at}attn_last.fc1")(gate))
          gate = conv(wide, 1, name=f"{at}attn_last.fc2")(gate)
          gain = self.param(f"{at}skipinit_gain", nn.initializers.ones, ())
          gate = gain * nn.sigmoid(gate.astype(jnp.float32))
          out = out * gate.astype(out.dtype)
        x = x + out
    if nfnet:
      x = conv(2 * self.widths[-1], 1, name="final_conv")(x)
    out = act(x.astype(jnp.float32)).mean(axis=(1, 2))
    return out * GAMMA["nfnet"] if nfnet else out


def network_of(arrays: Arrays, embedding: str | None) -> NormFree:
  """The network of a file in timm's names; see `vit.network_of`."""
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
  if network.kind == "nfnet":
    return f"nfnet_f{network.blocks[0] - 1}"
  return f"nf_resnet{3 * sum(network.blocks) + 2}"


def fitted(network: NormFree, arrays: Arrays, image_size: int) -> Arrays:
  """The same with scaled, standardised kernels and all constants in them."""
  found = {}
  for name, array in arrays.items():
    module, _, leaf = name.rpartition(".")
    gain = arrays.get(f"{module}.gain")
    if leaf == "skipinit_gain":
      found[name] = np.float32(2 * _ALPHA) * array.astype(np.float32)
    elif gain is None:
      found[name] = array
    elif leaf == "bias":
      found[name] = array * np.float32(_scales(module, network)[1])
    elif leaf == "weight":
      scale = gain.astype(np.float64) * np.prod(_scales(module, network))
      scale /= max(1, np.prod(array.shape[1:])) ** 0.5
      found[name] = standardize(array, 1e-5, scale)
  return found


def _scales(module: str, network: NormFree) -> tuple[float, float]:
  """What multiplies a convolution's input and its output."""
  if network.kind == "nfnet" and module in ("stem.conv1", "final_conv"):
    return 1.0, 1.0
  before = GAMMA[network.kind]
  after = _ALPHA if network.kind + module[-6:] == "nf_resnet.conv3" else 1.0
  first = r"stages\.(\d+)\.(\d+)\.(conv1|downsample\.conv)"
  if match := re.fullmatch(first, module):
    # 1/√(variance of the block's input), the variance as predicted.
    stage, block = int(match[1]), int(match[2])
    since_reset = block or sum(network.blocks[:stage][-1:])
    before *= (1 + since_reset * _ALPHA**2) ** -0.5
  return before, after
