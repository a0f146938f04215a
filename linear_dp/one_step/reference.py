r"""The paper's step in a screenful of NumPy: what the room has to equal.

One row after another, in Python's integers and rationals, for rows that are a
privacy unit each and a data set that fits in memory. Nothing is checked, kept
secret or charged, and nothing but the tests uses it: they hold `exact_sum` and
`release` to its bits, and `step` to float32.
"""

import math
from fractions import Fraction

import numpy as np

B = 2**20


def statistic(
  x: np.ndarray,
  y: np.ndarray,
  num_classes: int,
  clip_norm: float,
  b0: float,
  train_bias: bool,
) -> tuple[np.ndarray, float, float]:
  """G = rint(p0·T) − S, p0 and ‖r‖: the clipped gradients' sum on the grid."""
  p0 = 1 / (1 + math.exp(-b0)) if b0 >= 0 else math.exp(b0) / (1 + math.exp(b0))
  residual = math.sqrt((1 - p0) ** 2 + (num_classes - 1) * p0**2)
  residual *= 1 + 2**-50  # rounded up
  dim = x.shape[1] + train_bias
  sums = [[0] * dim for _ in range(num_classes)]
  for row, label in zip(x.astype(np.float32), y, strict=True):
    norm = np.float32(math.sqrt(float((row.astype(np.float64) ** 2).sum())))
    if norm == 0:
      continue  # the null row: nothing, not even its bias
    norm = math.sqrt(float(norm) ** 2 + 1) if train_bias else float(norm)
    # u = rint(x̃·s): in steps of C/(B·‖r‖), and clipped a little early.
    scale = min(B * residual / clip_norm, (B - math.sqrt(dim) / 2 - 1) / norm)
    one = [np.float32(1)] if train_bias else []
    for i, value in enumerate([*row, *one]):
      sums[label][i] += round(float(value * np.float32(scale)))
  totals = [sum(column) for column in zip(*sums, strict=True)]
  shared = [round(Fraction(p0) * total) for total in totals]
  g = [[p - s for p, s in zip(shared, row, strict=True)] for row in sums]
  return np.array(g), p0, residual


def noise_sd(
  sigma: float, residual: float, shape: tuple[int, ...], replace_one: bool
) -> float:
  """σΔ, Δ = B·‖r‖ + (1 + 2⁻¹⁰)·√(K·D) grid steps, rounded up."""
  rounding = (1 + 2**-10) * math.sqrt(math.prod(shape))
  sensitivity = (B * residual + rounding) * (1 + 2**-50)
  return math.nextafter(sigma * (1 + replace_one) * sensitivity, math.inf)


def step(
  mean: np.ndarray,
  b0: float,
  train_bias: bool,
  head: str,
  lr: float,
  eps: float,
) -> tuple[np.ndarray, np.ndarray]:
  """Kernel [d, K] and bias [K] after a step along (G + noise)·C/(B·‖r‖·n)."""
  update = mean if head == "momentum" else mean / (np.abs(mean) + eps)
  bias = np.full(len(mean), b0)
  if not train_bias:
    return -lr * update.T, bias
  kernel, last = update[:, :-1], update[:, -1]
  lengths = np.linalg.norm(bias), np.linalg.norm(last)
  # LAMB's trust ratio; that of a kernel of zeros is 1.
  ratio = lengths[0] / lengths[1] if head == "lamb" and all(lengths) else 1
  return -lr * kernel.T, bias - lr * ratio * last
