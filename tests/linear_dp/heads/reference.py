"""The paper's step in a screenful of NumPy: what `one_step` has to equal.

In Python's integers; nothing is checked or charged. Only the tests use it.
"""

import math

import numpy as np

R = 2**14
UNIT_WEIGHT = 2**20


def class_sums(
  x: np.ndarray, y: np.ndarray, num_classes: int, clip_norm: float, b0: float
) -> np.ndarray:
  """S [K, d]: UNIT_WEIGHT times the sum of each class's rows, on the grid."""
  most = residual_norm(num_classes, b0) / clip_norm
  sums = np.zeros((num_classes, x.shape[1]), object)
  for row, label in zip(x.astype(np.float32), y, strict=True):
    norm = float(np.float32(math.sqrt((row.astype(np.float64) ** 2).sum())))
    sure = R * math.sqrt(1 - (len(row) + 2) * 2.0**-24)
    room = sure - math.sqrt(len(row)) / 2 - 1
    # In steps of C/(R·‖r‖), and clipped a little early.
    scale = np.float32(min(room / norm, R * most) if norm else 0)
    sums[label] += [UNIT_WEIGHT * round(float(value * scale)) for value in row]
  return sums


def residual_norm(num_classes: int, b0: float) -> float:
  """‖r‖, of r = p0·1 − e_y."""
  p0 = 1 / (1 + math.exp(-b0))
  return math.sqrt((1 - p0) ** 2 + (num_classes - 1) * p0**2)


def gradient(
  sums: np.ndarray, n: int, clip_norm: float, b0: float
) -> np.ndarray:
  """The mean clipped gradient [K, d] = (p0·1 ⊗ T − S)/n, in its own units."""
  s = sums.astype(np.float64) / (UNIT_WEIGHT * R)  # of sensitivity 1
  p0 = 1 / (1 + math.exp(-b0))
  return (p0 * s.sum(axis=0) - s) * clip_norm / residual_norm(len(s), b0) / n


def step(mean: np.ndarray, head: str) -> np.ndarray:
  """The kernel [d, K] after one step from zero at a learning rate of 1."""
  if head == "momentum":
    return -mean.T
  return -(mean / (np.abs(mean) + 1e-6)).T  # LAMB's trust ratio of zeros is 1
