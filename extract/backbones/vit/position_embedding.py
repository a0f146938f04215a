"""Position embeddings of a Vision Transformer for another image size.

Each family's own code resizes the grid of embeddings in its own way; the same
weights give the same embeddings as there only if that way is taken. On the
host, in NumPy, so that the bits do not depend on the device.
"""

import math
from typing import Literal

import numpy as np
import scipy.ndimage
from jaxtyping import Float

# "bilinear": corners on corners (vision_transformer, big_vision). "bicubic":
# edges on edges, PyTorch's kernel (DeiT, DINOv2, SigLIP). "bicubic_antialias":
# the same with PyTorch's antialias=True (DINOv2 with registers).
Resize = Literal["bilinear", "bicubic", "bicubic_antialias"]


def is_square(number: int) -> bool:
  """Whether that many patches (at least one) form a square grid."""
  return number > 0 and math.isqrt(number) ** 2 == number


def resize_grid(
  positions: Float[np.ndarray, "m2 width"], num_patches: int, how: Resize
) -> Float[np.ndarray, "g2 width"]:
  """Position embeddings of m × m patches, row after row, for g × g."""
  if len(positions) == num_patches:
    return positions
  old, new = math.isqrt(len(positions)), math.isqrt(num_patches)
  grid = positions.reshape(old, old, -1).astype(np.float32)
  if how == "bilinear":
    grid = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
  else:
    weights = bicubic_weights(old, new, antialias=how == "bicubic_antialias")
    # In float64: it is small, and then the order of summation is of no matter.
    grid = np.einsum("ia,jb,abw->ijw", weights, weights, grid, optimize=True)
  return grid.reshape(new * new, -1).astype(np.float32)


def bicubic_weights(
  old: int, new: int, antialias: bool
) -> Float[np.ndarray, "{new} {old}"]:
  """The weight of each of `old` samples in each of `new`; rows sum to one.

  Sample i of the new grid lies at (i + 1/2)·old/new − 1/2 of the old one.

  * Without antialiasing: Keys' kernel with a = −3/4 on the four nearest
    samples; beyond the edge stands the sample at the edge.
  * With it: a = −1/2, the kernel stretched by old/new where that is above
    one; beyond the edge stands nothing, and the rest is normalised.

  Source: Keys, "Cubic convolution interpolation for digital image processing"
  (IEEE TASSP 1981), equation 4; constants and edges as
  torch.nn.functional.interpolate(mode="bicubic", align_corners=False).
  """
  place = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
  if antialias:
    distance = (np.arange(old) - place) / max(1.0, old / new)
    weights = _keys(distance, a=-0.5)
    return weights / weights.sum(axis=1, keepdims=True)
  near = np.floor(place) + np.arange(-1, 3)
  weights = np.zeros((new, old))
  np.add.at(
    weights,
    (np.arange(new)[:, None], near.clip(0, old - 1).astype(int)),
    _keys(near - place, a=-0.75),
  )
  return weights


def _keys(
  distance: Float[np.ndarray, "n m"], a: float
) -> Float[np.ndarray, "n m"]:
  x = np.abs(distance)
  inner = ((a + 2) * x - (a + 3)) * x**2 + 1
  outer = a * (((x - 5) * x + 8) * x - 4)
  return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
