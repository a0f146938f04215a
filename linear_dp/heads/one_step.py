r"""`lamb`, `adam`, `momentum`: one step of an optimizer along one released sum.

At a kernel of zeros and the bias b0 of every class, each row x of class y has
the probabilities p0 = 1/(1 + exp(−b0)), so the gradient of its sigmoid
cross-entropy is r_y ⊗ x with r_y = p0·1 − e_y. Clipping it to norm C shortens
x to C/‖r‖ at most. Of rows z so shortened, the mean gradient is

    g = (p0·1 ⊗ T − S)/n,   S_c = Σ_{y=c} z,   T = Σ_c S_c.

S leaves the door once, of sensitivity C/‖r‖; all else is post-processing. The
paper adds noise N to n·g itself: here it is (p0·1 ⊗ 1ᵀ − I)·N, which differs by
p0 (4.5e-5 at b0 = −10) times the noise of T, and costs as much: ‖r‖ ≈ 1.

Source: Mehta, Thakurta, Kurakin & Cutkosky, "Large Scale Transfer Learning for
Differentially Private Image Classification" (TMLR 2023), algorithm 1, table 4.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from oneshot_dp.configs.head_config import OneStepName
from oneshot_dp.linear_dp.dataset import PrivateDataset
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows, rows_of
from oneshot_dp.linear_dp.statistics import class_sums

CLIP_NORM, INITIAL_BIAS = 1.0, -10.0
P0 = 1 / (1 + math.exp(-INITIAL_BIAS))
OPTIMIZERS: Mapping[OneStepName, optax.GradientTransformation] = {
  "lamb": optax.lamb(1.0, b1=0.9, b2=0.999, eps=1e-6),
  "adam": optax.adam(1.0, b1=0.9, b2=0.999, eps=1e-6),
  "momentum": optax.sgd(1.0, momentum=0.9),
}
"""The optimizers of table 4; the learning rate changes no class that wins."""


def residual_norm(num_classes: int) -> float:
  """‖r‖ = √((1 − p0)² + (K − 1)·p0²)."""
  return math.hypot(1 - P0, math.sqrt(num_classes - 1) * P0)


def clipped_rows(data: PrivateDataset) -> Rows:
  """Rows no longer than C/‖r‖, which are of norm R; for class sums alone."""
  most = residual_norm(data.num_classes) / CLIP_NORM
  return rows_of(data, max_inverse_norm=most, weight_norm_order=2)


def one_step(
  sums: PrivateSums,
  rows: Rows,
  buys: float,
  *goes_on: Any,
  optimizer: optax.GradientTransformation,
) -> tuple[LinearHead, dict[str, np.ndarray]]:
  """The head after one step from a kernel of zeros; its bias stays b0.

  Formal guarantees: the class sums leave by one Gaussian mechanism of μ² =
  `buys`, averaged with what left for a smaller ε; all else is post-processing.
  """
  s, _ = sums.release("class sums", rows, class_sums, mu_squared=buys)
  scale = CLIP_NORM / residual_norm(rows.data.num_classes) / rows.data.n
  gradient = jnp.asarray(((P0 * s.sum(axis=0) - s) * scale).T, jnp.float32)
  zero = jnp.zeros(gradient.shape, jnp.float32)
  kernel, _ = optimizer.update(gradient, optimizer.init(zero), zero)
  bias = np.full(rows.data.num_classes, INITIAL_BIAS, np.float32)
  return LinearHead(kernel=np.asarray(kernel), bias=bias), {}
