r"""Rows as integers u = rint(x·s) in the ball ‖u‖ ≤ B, exactly.

Their sums have the same bits in any order. That a row lies in the ball is
checked on the devices, in one of two forms with the same answer for every row:
a CPU is fastest in float64; a TPU has none (XLA emulates it by pairs of
float32, slowly), nor have small GPUs one worth using.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32

GRID_RADIUS = 2**20
"""B, in steps of the grid: the norm of the longest row."""
_LIMB_BITS = 7
_LIMB = 2**_LIMB_BITS - 1
MAX_ROW_DIM = (2**31 - 1) // 32_385
"""Coordinates of a row that `within_ball_int32` can sum: 66,311."""


def row_radius(row_dim: int, radius: int = GRID_RADIUS) -> float:
  """B − √D/2 − 1, the norm that a row has at most before it is rounded.

  Rounding moves a row by at most √D/2 steps, and 1 step pays for the float32
  products (each of the norm, the scale and the product is off by at most 2⁻²⁴
  of B, 1/16 step), so no honest row can leave the ball.
  """
  return radius - math.sqrt(row_dim) / 2 - 1


def row_scale(
  norm: Float[np.ndarray, " rows"], row_dim: int, most: float = math.inf
) -> Float32[np.ndarray, " rows"]:
  """s = min(most, (B − √D/2 − 1)/‖x‖), from a row to its integers.

  `most` is the scale of rows that are short enough; infinity brings every row
  to the edge of the ball. s is 0 for a row of zeros, and for one so short that
  it would leave float32.
  """
  radius = row_radius(row_dim)
  norm = np.asarray(norm, np.float64)
  floor = radius / float(np.finfo(np.float32).max)
  scale = np.divide(radius, norm, out=np.zeros_like(norm), where=norm > floor)
  return np.minimum(scale, most).astype(np.float32)


def integer_rows(
  embedding: Float[Array, "rows d"], scale: Float32[Array, " rows"]
) -> Float32[Array, "rows d"]:
  """u on a device; NaN or infinities where an embedding is not finite."""
  return jnp.rint(embedding.astype(jnp.float32) * scale[:, None])


def within_ball_float64(
  *parts: Float32[Array, "rows _"],
) -> Bool[Array, " rows"]:
  """‖u‖² ≤ B² in float64; to be traced under `jax.enable_x64`.

  A row, of integers, NaN or infinities, is the parts side by side. Integers up
  to 2⁵³ are exact in float64; a sum that grows past that is past B² too, and
  stays there. NaN compares as False.
  """
  squares = [_row_sums(jnp.square(p.astype(jnp.float64))) for p in parts]
  return sum(squares[1:], squares[0]) <= GRID_RADIUS**2


def within_ball_int32(row: Float32[Array, "rows D"]) -> Bool[Array, " rows"]:
  r"""‖u‖² ≤ B² in 32-bit integers.

  In limbs of 7 bits |u| = x₂·2¹⁴ + x₁·2⁷ + x₀, and

      ‖u‖² = Σx₂²·2²⁸ + Σ2x₂x₁·2²¹ + Σ(x₁² + 2x₂x₀)·2¹⁴ + Σ2x₁x₀·2⁷ + Σx₀²

  With x₂ ≤ 2⁶ and x₁, x₀ < 2⁷ the largest term is 127² + 2·64·127 = 32,385, so
  that no sum over `MAX_ROW_DIM` coordinates reaches 2³¹. Carrying from
  one sum to the next leaves four digits in base 2⁷ and a head, and B² = 2⁴⁰ is
  the head 2¹² with digits of zero.

  A coordinate that is NaN or longer than B counts as 2B (x₂ = 2⁷ alone): its
  own square is past B².
  """
  length = jnp.abs(row)
  length = jnp.where(length <= GRID_RADIUS, length, 2.0 * GRID_RADIUS)
  u = length.astype(jnp.int32)
  x2 = u >> (2 * _LIMB_BITS)
  x1 = (u >> _LIMB_BITS) & _LIMB
  x0 = u & _LIMB
  terms = (x0 * x0, 2 * x1 * x0, x1 * x1 + 2 * x2 * x0, 2 * x2 * x1, x2 * x2)
  *low, head = [term.sum(axis=1, dtype=jnp.int32) for term in terms]
  carry = digits = jnp.zeros(len(row), jnp.uint32)
  for total in low:
    value = total.astype(jnp.uint32) + carry  # may reach 2³¹
    digits |= value & _LIMB
    carry = value >> _LIMB_BITS
  head = head.astype(jnp.uint32) + carry
  limit = GRID_RADIUS**2 >> (_LIMB_BITS * len(low))
  return (head < limit) | ((head == limit) & (digits == 0))


def _row_sums(values: Float[Array, "rows d"]) -> Float[Array, " rows"]:
  """Sums rows by adding halves first.

  XLA's CPU backend sums along a row one number at a time, but adds halves of
  rows with vector instructions: 2.5 times as fast, measured at d = 1280.
  """
  while values.shape[1] > 64 and values.shape[1] % 2 == 0:
    half = values.shape[1] // 2
    values = values[:, :half] + values[:, half:]
  return values.sum(axis=1)
