r"""Rows as integers z = rint(x·s) in the ball ‖z‖ ≤ R, the same bits anywhere.

Everything here is a function of one row, by operations that have one result:
products and sums of integers that are exact, and IEEE operations on a number of
its own, none of which is a product that something is added to.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, Int16, Int32

R = 2**14
"""Norm of the longest row: it fits int16, and a float16 is no finer."""


def row_scale(
  norm: Float[np.ndarray, " r"], dim: int, most: float
) -> Float32[np.ndarray, " r"]:
  """s: 0 for a row of zeros, or one so short that s would leave float32.

  Rounding moves a row by at most √d/2, and 1 pays for the float32 products.
  """
  room = R - math.sqrt(dim) / 2 - 1
  wide = norm.astype(np.float64)
  floor = room / float(np.finfo(np.float32).max)
  scale = np.divide(room, wide, out=np.zeros_like(wide), where=wide > floor)
  return np.minimum(scale, R * most).astype(np.float32)


@jax.jit
def integer_rows(
  embedding: Float[Array, "c d"], scale: Float32[Array, " c"], weight: int
) -> tuple[Int16[Array, "c d"], Int32[Array, " c"], Bool[Array, " c"]]:
  """z, the weight of rows that are not null, and whether a row is refused.

  It is where it is not finite or may leave the ball: one that `within_ball` is
  not sure of cannot have the scale of `row_scale`.
  """
  z = jnp.rint(embedding.astype(jnp.float32) * scale[:, None])
  fine, is_row = within_ball(z)
  z = jnp.where(fine[:, None], z, 0).astype(jnp.int16)
  return z, jnp.where(is_row, weight, 0).astype(jnp.int32), ~fine


def within_ball(
  z: Float32[Array, "c d"],
) -> tuple[Bool[Array, " c"], Bool[Array, " c"]]:
  """Whether ‖z‖ ≤ R of rows of integers for certain, and whether one is not 0.

  A sum of d squares in float32, in any order, is below the true one by at most
  d·2⁻²⁴ of it (Higham, "Accuracy and Stability", equation 3.5, and one more for
  the squares), which is what the bound leaves. NaN compares as False.
  """
  squares = jnp.square(z).sum(axis=1)
  return squares <= R * R * (1 - (z.shape[1] + 2) * 2.0**-24), squares > 0


@jax.jit
def mapped_rows(
  row: Int16[Array, "c d"], centre: Float64[Array, " d"], matrix: Array
) -> Int16[Array, "c p"]:
  """(z − c)·A at norm R again, of integers; no A where it has no numbers."""
  y = row.astype(jnp.float64) - centre
  if matrix.size:
    y = y @ matrix  # of integers below 2⁵³: exact
  p = y.shape[1]
  # To as many bits as squares add up exactly with, by a power of two.
  bits = (52 - (p - 1).bit_length()) // 2
  _, exponent = jnp.frexp(jnp.abs(y).max(1, keepdims=True))
  part = jnp.rint(jnp.ldexp(y, bits - exponent))
  norm = jnp.sqrt(jnp.square(part).sum(1, keepdims=True))
  room = R - math.sqrt(p) / 2 - 1
  z = jnp.rint(part * (room / jnp.maximum(norm, 1)))
  short = jnp.square(z).sum(1, keepdims=True) <= R * R
  # A null row stays one.
  return jnp.where(short & (row != 0).any(1, keepdims=True), z, 0).astype(
    jnp.int16
  )
