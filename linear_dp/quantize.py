"""Rows of embeddings as integers, whose products and sums are exact.

    z = rint(x·s),   s = min((R − √d/2 − 1)/‖x‖, R·max_inverse_norm),   ‖z‖ ≤ R

What becomes of a row depends on that row and on public numbers alone, and has
the same bits wherever the row lies: products and sums are of integers that
float64 (or float32) holds exactly, everything else is one IEEE operation on a
number of the row's own, and no product is added to anything before it was
rounded. The order of operations below is part of that guarantee.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Float64, Int16

ROW_NORM = 2**14
"""R, the largest norm of a row: its integers fit int16, and a float16 embedding
is no finer."""


def room_in_ball(dim: int) -> float:
  """The norm that a row of `dim` numbers may have before it is rounded.

      R·√(1 − (d + 2)·2⁻²⁴) − √d/2 − 1

  That is the norm of which `within_ball` is certain, less √d/2 for rounding to
  integers and 1 for float32 products: every honest row stays within the ball.
  """
  # Without this room a row of exactly norm R could round to a vector just
  # outside of the ball, and the check would drop it: an honest row would be
  # lost.
  certain = ROW_NORM * math.sqrt(1 - (dim + 2) * 2.0**-24)
  return certain - math.sqrt(dim) / 2 - 1


def row_scale(
  norm: Float[np.ndarray, " r"], dim: int, max_inverse_norm: float
) -> Float32[np.ndarray, " r"]:
  """The scale s of each row.

  Args:
    norm: norms of embeddings, [r], as stored.
    dim: d, the width of a row.
    max_inverse_norm: rows are scaled to norm R, but by no more than R times
      this; infinite for rows that all get norm R.

  Returns:
    s [r]; 0 for a row of zeros, and for one so short that s would overflow
    float32.
  """
  # On the host and in float64, from the norm that is stored: so the scale has
  # the same bits on all machines, whatever a device makes of a norm.
  wide_norm = norm.astype(np.float64)
  room = room_in_ball(dim)
  smallest = room / float(np.finfo(np.float32).max)
  # `where` leaves 0 for rows of norm 0, which are no images: a division would
  # make infinities of them, and then NaN.
  scale = np.divide(
    room, wide_norm, out=np.zeros_like(wide_norm), where=wide_norm > smallest
  )
  return np.minimum(scale, ROW_NORM * max_inverse_norm).astype(np.float32)


@jax.jit
def integer_rows(
  embedding: Float[Array, "c d"],
  scale: Float32[Array, " c"],
  weight: int | Array,
) -> tuple[Array, Array, Array]:
  """Scales embeddings and rounds them to integers.

  Args:
    embedding: [c, d].
    scale: s of each row, [c], from `row_scale`.
    weight: W, the weight of a row.

  Returns:
    z int16 [c, d]; weights int32 [c], 0 for rows of zeros; and whether each
    row must be refused [c]: it is not finite, or `within_ball` is not certain
    of it, which happens to no row whose stored norm is right.
  """
  # The scale came from a norm that was read from a file. It is not believed:
  # the integers themselves are measured, and a row whose norm was wrong is
  # refused.
  z = jnp.rint(embedding.astype(jnp.float32) * scale[:, None])
  is_within, is_row = within_ball(z)
  z = jnp.where(is_within[:, None], z, 0).astype(jnp.int16)
  return z, jnp.where(is_row, weight, 0).astype(jnp.int32), ~is_within


def within_ball(
  z: Float32[Array, "c d"],
) -> tuple[Bool[Array, " c"], Bool[Array, " c"]]:
  """Whether ‖z‖ ≤ R for certain, and whether z is not 0, for rows of integers.

  A sum of d squares in float32, in any order, is below the true one by at most
  d·2⁻²⁴ of it, which is what the bound leaves. NaN compares as False.

  Source: Higham, "Accuracy and Stability of Numerical Algorithms" (2002),
  section 4.2.
  """
  squares = jnp.square(z).sum(axis=1)
  bound = ROW_NORM * ROW_NORM * (1 - (z.shape[1] + 2) * 2.0**-24)
  return squares <= bound, squares > 0


@jax.jit
def mapped_rows(
  row: Int16[Array, "c d"], center: Float64[Array, " d"], matrix: Array
) -> Int16[Array, "c p"]:
  """(z − c)·A, brought to norm R again; a row of zeros stays one.

  Args:
    row: integers z [c, d].
    center: integers c [d].
    matrix: integers A [d, p], or an array without numbers for z − c alone.

  Returns:
    Integer rows [c, p] of norm ≤ R.
  """
  # |z − c| ≤ 2¹⁵ and |A| ≤ R = 2¹⁴, so a term is at most 2²⁹, and a sum of d <
  # 2²⁴ of them stays below 2⁵³: the product is exact in any order.
  y = row.astype(jnp.float64) - center
  if matrix.size:
    y = y @ matrix  # of integers below 2⁵³: exact
  p = y.shape[1]
  # A power of two brings each row to as many bits as its squares can have and
  # still add up exactly in float64: the norm has the same bits in any order.
  bits = (52 - (p - 1).bit_length()) // 2
  _, exponent = jnp.frexp(jnp.abs(y).max(1, keepdims=True))
  part = jnp.rint(jnp.ldexp(y, bits - exponent))
  norm = jnp.sqrt(jnp.square(part).sum(1, keepdims=True))
  z = jnp.rint(part * (room_in_ball(p) / jnp.maximum(norm, 1)))
  # The norm of the result is checked again, in exact integers. And a row of
  # zeros stays one: minus the center it would become a row like any other, and
  # a unit that is not there would add to the sum.
  is_kept = jnp.square(z).sum(1) <= ROW_NORM * ROW_NORM
  is_kept &= (row != 0).any(axis=1)
  return jnp.where(is_kept[:, None], z, 0).astype(jnp.int16)
