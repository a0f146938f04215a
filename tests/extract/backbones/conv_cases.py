"""Small convolutional networks with drawn weights, and what timm makes of them.

Used by the tests and, in another environment, by conv_golden.py: NumPy only.
"""

import functools
import gzip
import json
import pathlib
from typing import Any

import numpy as np

GOLDEN = pathlib.Path(__file__).parent / "golden"
OUTPUTS = GOLDEN / "conv_outputs.npz"
LAYOUTS = GOLDEN / "conv_layouts.json.gz"

# Sides at which padding and pooling do not come out even, and one that does.
SIDES = (37, 64)
# XLA's options for small networks: to compile takes longer than to run.
SOON = {
  "xla_backend_optimization_level": 0,
  "xla_cpu_use_fusion_emitters": False,
}

BIT_TINY: dict[str, Any] = {"blocks": (2, 1, 1, 1), "width": 8, "groups": 4}
NFNET_TINY: dict[str, Any] = {
  "blocks": (1, 2, 1, 1),
  "widths": (32, 64, 96, 96),
  "root": 16,
  "group": 16,
}
NF_RESNET_TINY: dict[str, Any] = {
  "blocks": (2, 1, 3, 1),
  "widths": (32, 64, 96, 128),
  "root": 8,
}


def draw_weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
  """Weights by timm's names; kernels are far from standardised."""
  rng = np.random.default_rng(0)
  weights = {}
  for name in sorted(shapes):
    shape = tuple(shapes[name])
    if name.endswith("bias"):
      array = rng.normal(scale=0.2, size=shape)
    elif len(shape) == 4 and "gain" not in name and "attn" not in name:
      scale = rng.uniform(0.02, 0.3, size=(shape[0], 1, 1, 1))
      array = scale * (0.5 + rng.normal(size=shape))
    elif len(shape) == 4 and "attn" in name:
      array = rng.normal(size=shape) * shape[1] ** -0.5
    else:
      array = rng.uniform(0.5, 1.5, size=shape)
    weights[name] = np.asarray(array, np.float32)
  return weights


def draw_images(side: int) -> np.ndarray:
  """Two images of coloured noise, [2, s, s, 3]."""
  noise = np.random.default_rng(side).normal(size=(2, side, side, 3))
  return (noise + np.array([0.5, 0.0, -0.5])).astype(np.float32)


@functools.cache
def layouts() -> dict:
  """See conv_golden.py."""
  return json.loads(gzip.decompress(LAYOUTS.read_bytes()))


def weights_in(case: str, layout: str = "timm") -> dict[str, np.ndarray]:
  """Drawn weights of a small network by the names of a public layout."""
  tiny = layouts()["tiny"][case]
  weights = draw_weights(tiny["timm"])
  if layout == "timm":
    return weights
  result = {}
  for other, name in tiny[layout].items():
    array = weights[name]
    is_kernel = layout == "npz" and array.ndim == 4
    result[other] = array.transpose(2, 3, 1, 0) if is_kernel else array
  return result


def expected_output(case: str, side: int) -> np.ndarray:
  """timm's pooled embeddings of `draw_images(side)`, float32 [2, d]."""
  with np.load(OUTPUTS) as outputs:
    return outputs[f"{case}_{side}"]


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
  """Row by row."""
  a, b = a.astype(np.float64), b.astype(np.float64)
  return (a * b).sum(-1) / (
    np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
  )
