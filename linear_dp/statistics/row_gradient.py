r"""The clipped gradient of one row, in integers.

With z the row, ν its norm, W the weights and C the clip norm, the gradient is

    g = r ⊗ νz/‖z‖ · min(1, C/(ν‖r‖)),   r = softmax(l) − e_y
                                      or r = sigmoid(l + b) − e_y

of logits l = ν·Wᵀz/‖z‖. It is rounded to ρ ⊗ z with integers ρ, in steps of
C/B, and ‖ρ‖ ≤ B is checked in integers: what floating-point numbers do in
between may spoil a gradient, and never its bound.

Nothing here depends on an order of additions: sums are of integers, all else
is an IEEE operation on a number of its own. No product is added to anything
before it was rounded, so that it does not matter either which of them a
compiler fuses. The exponential is ours for that: XLA's has other bits in a
program of another shape.
"""

import dataclasses
import math
from typing import get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32, Integer

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import LossName
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, row_radius
from oneshot_dp.linear_dp.statistics.exact_product import (
  exact_sum,
  squared_norm,
)

_LOGIT = 2.0**-16
_EXP = 2.0**-24
"""Steps of logits, and of the exponentials that are summed."""
_LEAST_LOGIT = -40.0 / _LOGIT
"""Below it, an exponential is as good as 0."""
_EXP_TERMS = 10
_LN2 = math.floor(math.log(2) * 2**18)
"""ln 2 in steps of 2⁻¹⁸, of which float32 holds many times as many exactly."""


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
    self,
    logits: Float32[Array, "rows K"],
    label: Integer[Array, " rows"],
    wide: jnp.dtype,
  ) -> Float32[Array, "rows K"]:
    """r, the gradient in the logits, which are integers in steps of 2⁻¹⁶."""
    if self.name == "softmax":
      most = logits.max(axis=1, keepdims=True)
      power = exponential(logits - most)
      total = exact_sum(jnp.rint(power * (1 / _EXP)), wide)
      inverse = 1 / (total.astype(jnp.float32) * _EXP)
    else:
      bias = round(self.bias / _LOGIT)
      logits = logits + bias
      power = exponential(-jnp.abs(logits))
      power, inverse = jnp.where(logits < 0, power, 1), 1 / (1 + power)
    # (A product is not added to: see `exponential`.)
    return jnp.abs(power * inverse) - jax.nn.one_hot(
      label, logits.shape[1], dtype=jnp.float32
    )

  def residual_bits(self, num_classes: int) -> int:
    """b such that r in steps of 2⁻ᵇ has a square norm below 2⁵³."""
    if self.name == "softmax":
      return 22
    return min(22, 26 - math.ceil(math.log2(num_classes) / 2))


SOFTMAX = Loss()


def exponential(logits: Float32[Array, "*axes"]) -> Float32[Array, "*axes"]:
  """exp(l), of integers l ≤ 0 in steps of 2⁻¹⁶: the same bits in any program.

      exp(l) = 2⁻ᵏ·exp(r),   r = k·ln 2 + l,   0 ≤ r < ln 2

  within 2⁻²¹ of its size, and exp(0) = 1. Each product is exact, or its
  absolute value is taken before it is added to: it is positive, but no compiler
  knows that, so none makes one operation of the two.
  """
  logits = jnp.maximum(logits, _LEAST_LOGIT)
  k = jnp.ceil(logits * (-_LOGIT / math.log(2) * (1 + 2**-20)))
  rest = jnp.abs(k * (math.log(2) - _LN2 * 2.0**-18))
  r = jnp.maximum((k * _LN2 + logits * 4) * 2.0**-18 + rest, 0)
  series = jnp.float32(0)
  for i in reversed(range(_EXP_TERMS)):
    series = jnp.float32(1 / math.factorial(i)) + jnp.abs(r * series)
  exponent = (127 - k.astype(jnp.int32)) << 23
  return series * jax.lax.bitcast_convert_type(exponent, jnp.float32)


def clipped_residual(
  product: Float32[Array, "rows K"],
  logit_step: float | Array,
  length: Float32[Array, " rows"],
  label: Integer[Array, " rows"],
  clip_norm: float | Array,
  loss: Loss,
  wide: jnp.dtype,
  log_prior: Float32[Array, " K"] | None = None,
  weight: Int32[Array, " rows"] | None = None,
) -> Float32[Array, "rows K"]:
  """ρ, of integers, in steps of C/B.

  Formal guarantees: ‖ρ‖ ≤ B, or the row's weight, checked in integers for every
  row. A row that fails, which none does whose arithmetic is IEEE 754's, is not
  in the sum.

  `product` is Wᵀz, of integers, in steps of `logit_step` for a row of norm 1;
  `length` is ν, `clip_norm` C. The label of padding does not matter, as z is 0.
  `log_prior`, added to the logits of every row, is public. ρ is weighed by
  `weight`, in steps of 1/B, up to B; None is B.
  """
  num_classes = product.shape[1]
  step = jnp.asarray(logit_step, jnp.float32) * (1 / _LOGIT)
  logits = jnp.rint(product * (length * step)[:, None])
  if log_prior is not None:
    logits = logits + jnp.rint(log_prior * (1 / _LOGIT))
  of_step = 2.0 ** loss.residual_bits(num_classes)
  residual = jnp.rint(loss.residual(logits, label, wide) * of_step)
  norm = jnp.sqrt(squared_norm(residual, wide).astype(jnp.float32))
  norm = jnp.maximum(norm, 1)  # or XLA divides by the root in one, coarsely
  longest = jnp.float32(row_radius(num_classes, GRID_RADIUS))
  per_norm = jnp.float32(GRID_RADIUS / of_step) / jnp.float32(clip_norm)
  most = GRID_RADIUS
  if weight is not None:
    most = weight[:, None].astype(wide)
    part = weight[:, None].astype(jnp.float32) * jnp.float32(1 / GRID_RADIUS)
    per_norm = per_norm * part
    longest = jnp.maximum(longest - (1 - part) * GRID_RADIUS, 0)
  factor = jnp.minimum(length[:, None] * per_norm, longest / norm)
  clipped = jnp.rint(residual * factor)
  within = jnp.abs(clipped) <= GRID_RADIUS
  clipped = jnp.where(within, clipped, jnp.float32(2 * GRID_RADIUS))
  short = squared_norm(clipped, wide) <= most * most
  return jnp.where(short, clipped, 0)
