"""Weights and images that depend on a name and a shape only."""

import math
import zlib

import numpy as np


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Float32 weights that depend on name and shape only, on any platform."""
  bits = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(
    math.prod(shape)
  )
  unit = ((bits >> np.uint64(40)).astype(np.float64) / 2**23 - 1).reshape(shape)
  if name.endswith("weight") and len(shape) == 1:
    unit = 1 + unit / 4
  elif len(shape) in (2, 4) and "pos" not in name:
    unit = unit * math.sqrt(6 / math.prod(shape[1:]))
  return unit.astype(np.float32)
