"""The gradient of one row, and how far float64 may be from it."""

import dataclasses
import math
from typing import get_args

import jax
import numpy as np
from jaxtyping import Array, Float, Float64, Integer

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import LossName

_UNIT_ROUNDOFF = 2.0**-53


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
  """What the gradients are of.

  Attributes:
    name: cross-entropy of one softmax, or of a sigmoid per class.
    bias: b, which every sigmoid has and which is not trained. A softmax does
      not see it.
  """

  name: LossName = "softmax"
  bias: float = 0.0

  def __post_init__(self):
    # A receipt may name any.
    if self.name not in get_args(LossName):
      raise InputError(
        f"loss={self.name!r} must be one of {', '.join(get_args(LossName))}."
      )

  def residual(
    self, logits: Float[Array, "rows K"], label: Integer[Array, " rows"]
  ) -> Float[Array, "rows K"]:
    """r, the gradient in the logits."""
    if self.name == "softmax":
      probability = jax.nn.softmax(logits)
    else:
      probability = jax.nn.sigmoid(logits + self.bias)
    return probability - jax.nn.one_hot(
      label, logits.shape[1], dtype=logits.dtype
    )

  def residual_norm(self, num_classes: int) -> float:
    """The largest ‖r‖ that a row can have, rounded up."""
    squared = 2 if self.name == "softmax" else num_classes
    return math.sqrt(squared) * (1 + 2**-50)


SOFTMAX = Loss()


def row_error(
  kernel: Float64[np.ndarray, "p K"],
  clip_norm: float,
  loss: Loss = SOFTMAX,
  max_norm: float = 1.0,
) -> float:
  r"""e_row: how far a row's gradient may be from its real value, any row.

  With u = 2⁻⁵³, R the largest ‖z‖, r the largest ‖r‖ and w the norm of the
  longest column of W: z is off by a part e_z = (p + 8)u of itself (its norm is
  a sum of p squares), and a logit by e_l = (γ_p + e_z)·w·R, and by (w·R + |b|)u
  where a bias is added. That moves every entry of the residual by a part of
  itself: of a sigmoid by e_l, as its slope is no more than p and than 1 − p; of
  a softmax by 2e_l. Besides, the functions are rounded: a softmax by (K + 16)u
  (exp is taken to be good to 8 units in the last place), K sigmoids by √K·16u;
  and products and norms by a part (K + p + 16)u. Clipping, being a projection,
  stretches nothing, and what is longer than C and off by a part e of itself is
  off by 2Ce at most behind it:

      e_row = 2·(min(2C, s·R)·e_r + min(2C, r·R)·(e_z + (K + p + 16)u) + R·e_f)

  with e_r the part of the residual, of which s·e_r bounds the length as well (s
  = 1 for a softmax, √K/4 for sigmoids, whose slopes are ¼ at most), and e_f the
  rounding of the functions.
  Doubled, for what was left out: products of these.
  """
  p, num_classes = kernel.shape
  largest = float(np.linalg.norm(kernel, axis=0).max()) * max_norm
  of_z = (p + 8) * _UNIT_ROUNDOFF
  of_logit = (gamma(p) + of_z) * largest
  if loss.name == "softmax":
    of_residual, slope = 2 * of_logit, 1.0
    of_function = (num_classes + 16) * _UNIT_ROUNDOFF
  else:
    of_residual = of_logit + (largest + abs(loss.bias)) * _UNIT_ROUNDOFF
    slope = math.sqrt(num_classes) / 4
    of_function = math.sqrt(num_classes) * 16 * _UNIT_ROUNDOFF
  of_product = of_z + (num_classes + p + 16) * _UNIT_ROUNDOFF
  longest = loss.residual_norm(num_classes) * max_norm
  error = min(2 * clip_norm, slope * max_norm) * of_residual
  error += min(2 * clip_norm, longest) * of_product
  return 2 * (error + max_norm * of_function)


def gamma(terms: int) -> float:
  """Higham's γ: the relative error of a sum of so many products."""
  return terms * _UNIT_ROUNDOFF / (1 - terms * _UNIT_ROUNDOFF)
