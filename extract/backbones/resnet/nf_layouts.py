"""timm's names of NF-ResNet's and NFNet's parameters, and what is folded in.

A block computes, with W the scaled standardised kernels and a the activation,

    x + α·s·2·gate(W3 a'(… W1 a'(β x))),    a' = γ·a

α, β and γ are constants, s is learnt. β and γ are folded into the kernels that
follow them, α, s and 2 into one number (in an NF-ResNet, which has no gate,
into W3 and its bias).

DeepMind's own files of NFNet are Python pickles, which run code when they are
loaded, so they are not read: timm has published the same weights as
safetensors (dm_nfnet_f0.dm_in1k and so on). Kernels are standardised as timm
does: DeepMind's code takes max(var·fan_in, 1e-4) where timm takes var + 1e-5.
"""

import re
from collections.abc import Mapping
from typing import Literal

import numpy as np

from oneshot_dp.extract.backbones.backbone import Arrays, Shape
from oneshot_dp.extract.backbones.resnet.convolution import standardize
from oneshot_dp.extract.backbones.resnet.layouts import (
  depths,
  family,
  refuse_another,
)

Kind = Literal["nf_resnet", "nfnet"]

# Residual blocks of each stage.
BLOCKS = {
  "nf_resnet50": (3, 4, 6, 3),
  "nf_resnet26": (2, 2, 2, 2),
  "nf_resnet101": (3, 4, 23, 3),
  "nfnet_f0": (1, 2, 6, 3),
  "nfnet_f1": (2, 4, 12, 6),
  "nfnet_f2": (3, 6, 18, 9),
  "nfnet_f3": (4, 8, 24, 12),
}
# 1/√(variance of the activation of a standard normal variable).
GAMMA = {"nf_resnet": 1.7139588594436646, "nfnet": 1.7015043497085571}

_ALPHA = 0.2
_EPSILON = 1e-5
_BLOCK = re.compile(r"stages\.(\d+)\.(\d+)\.(.+)")
_HEAD = "head.fc."
_CONVOLUTIONS = {
  "conv1": "conv1",
  "conv2": "conv2",
  "conv2b": "conv2b",
  "conv3": "conv3",
  "downsample.conv": "projection",
}
_SQUEEZE = {
  "attn_last.fc1.weight": "squeeze/in/kernel",
  "attn_last.fc1.bias": "squeeze/in/bias",
  "attn_last.fc2.weight": "squeeze/out/kernel",
  "attn_last.fc2.bias": "squeeze/out/bias",
  "skipinit_gain": "squeeze/gain",
}


def rename(
  arrays: Mapping[str, np.ndarray],
  shapes: Mapping[str, Shape],
  path: str,
  *,
  kind: Kind,
  blocks: tuple[int, ...],
) -> Arrays:
  """Parameters of a `NormFreeNet` from timm's; see `Architecture.rename`."""
  del shapes  # nothing depends on the size of the image
  refuse_another(_describe(arrays), _label(kind, blocks), path)
  result: Arrays = {}
  left = {key for key in arrays if not key.startswith(_HEAD)}
  for key in arrays:
    module = key.removesuffix(".gain")
    parts = {f"{module}.{leaf}" for leaf in ("weight", "gain", "bias")}
    ours = _outside(module) or _inside(module, _CONVOLUTIONS)
    if ours and key != module and parts <= left:
      before, after = _scales(ours, kind, blocks)
      weight, gain = arrays[f"{module}.weight"], arrays[key]
      is_kernel = weight.ndim == 4 and weight.dtype.kind not in "biu"
      if not is_kernel or gain.size != len(weight):
        continue  # to be named in an error
      gain = gain.astype(np.float64).reshape(-1) * (before * after)
      gain /= max(1, np.prod(weight.shape[1:])) ** 0.5
      result[f"{ours}/kernel"] = standardize(
        weight.transpose(2, 3, 1, 0), _EPSILON, gain
      )
      result[f"{ours}/bias"] = arrays[f"{module}.bias"] * np.float32(after)
      left -= parts
    elif new := _inside(key, _SQUEEZE):
      result[new] = _gate(arrays[key], key)
      left.discard(key)
  return result | {key: arrays[key] for key in arrays if key in left}


def _outside(module: str) -> str | None:
  if match := re.fullmatch(r"stem\.conv(\d?)", module):
    return f"stem{match[1] or 1}"
  return "final" if module == "final_conv" else None


def _inside(name: str, names: Mapping[str, str]) -> str | None:
  match = _BLOCK.fullmatch(name)
  if match is None or match[3] not in names:
    return None
  block = f"stage{int(match[1]) + 1}_block{int(match[2]) + 1}"
  return f"{block}/{names[match[3]]}"


def _gate(array: np.ndarray, key: str) -> np.ndarray:
  if key.endswith("skipinit_gain"):
    return np.asarray(array * np.float32(2 * _ALPHA))
  # fc1 and fc2 are 1x1 convolutions [out, in, 1, 1].
  return array[:, :, 0, 0].T if array.ndim == 4 else array


def _scales(
  ours: str, kind: Kind, blocks: tuple[int, ...]
) -> tuple[float, float]:
  """What multiplies the convolution's input and its output."""
  if kind == "nfnet" and ours in ("stem1", "final"):
    return 1.0, 1.0
  before = GAMMA[kind]
  after = _ALPHA if ours.endswith("/conv3") and kind == "nf_resnet" else 1.0
  if ours.endswith(("/conv1", "/projection")):
    # 1/√(variance of the block's input), the variance as predicted.
    stage, block = (int(n) - 1 for n in re.findall(r"\d+", ours)[:2])
    since_reset = block or sum(blocks[:stage][-1:])
    before *= float((1 + since_reset * _ALPHA**2) ** -0.5)
  return before, after


def _describe(arrays: Mapping[str, np.ndarray]) -> str | None:
  first = (k.removesuffix(".gain") for k in arrays if k.endswith("conv1.gain"))
  blocks = depths(_inside(name, _CONVOLUTIONS) or "" for name in first)
  if not blocks:
    return family(arrays)
  kind = "nfnet" if "stem.conv1.weight" in arrays else "nf_resnet"
  return _label(kind, blocks)


def _label(kind: str, blocks: tuple[int, ...]) -> str:
  for name, known in BLOCKS.items():
    if name.startswith(kind) and known == blocks:
      return name
  return f"an {kind} of {blocks} blocks"
