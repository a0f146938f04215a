"""Gradients of one row to 50 digits."""

import mpmath
import numpy as np

from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.row_gradient import SOFTMAX


def real_gradient(
  u, label, kernel, clip_norm, loss=SOFTMAX, max_norm=None
) -> list:
  """Row u's clipped gradient, [p·K]."""
  with mpmath.workdps(50):
    length = mpmath.sqrt(sum(v * v for v in u)) or 1
    if max_norm is not None:
      length = GRID_RADIUS / mpmath.mpf(max_norm)
    z = [v / length for v in u]
    logits = [mpmath.fdot(z, map(mpmath.mpf, w)) for w in kernel.T.tolist()]
    if loss.name == "softmax":
      powers = [mpmath.exp(v - max(logits)) for v in logits]
      probability = [v / mpmath.fsum(powers) for v in powers]
    else:
      probability = [1 / (1 + mpmath.exp(-v - loss.bias)) for v in logits]
    r = [v - (c == label) for c, v in enumerate(probability)]
    norm = mpmath.norm(r) * mpmath.norm(z)
    shrink = min(1, clip_norm / norm) if norm else 1
    return [a * b * shrink for a in z for b in r]


def distance(found: np.ndarray, real: list) -> float:
  with mpmath.workdps(50):
    pairs = zip(found.ravel().tolist(), real, strict=True)
    return float(mpmath.norm([mpmath.mpf(a) - b for a, b in pairs]))
