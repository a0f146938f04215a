r"""Products of matrices of integers, without an error, on any device.

Where there is float64, all partial sums are integers up to 2⁵³, or up to 2²⁴ in
float32, so a product is exact in any order of the additions. Where there is
none (a TPU), matrices are split into limbs, x = Σ_i 2^(8i)·x_i with x_i in
[−128, 127], whose products an int8 matrix unit adds up in int32. The same
integers either way.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

Numbers = Float[Array, "..."] | Integer[Array, "..."]


def exact_product(
  x: Numbers,
  y: Numbers,
  limbs: tuple[int, int],
  wide: jnp.dtype,
  result: jnp.dtype | type = jnp.int64,
) -> Numbers:
  """x [a, b] @ y [b, c] of integers, each |x| ≤ 2^(8·limbs[0] − 2).

  b is at most 2¹⁷, and no partial sum of float64 is above 2⁵³. `wide` is
  float64 or, where there is none, int64. The product fits its dtype; where that
  is float32, no partial sum is above 2²⁴, and the product takes half the time.
  """
  if wide == jnp.float64:
    # x as it is read, also where it is transposed: XLA's CPU backend multiplies
    # so in two thirds of the time.
    factors = result if result == jnp.float32 else wide
    rows = jax.lax.optimization_barrier(x.astype(factors))
    # Or a GPU would round float32's factors to 11 bits.
    product = jnp.matmul(rows, y.astype(factors), precision="highest")
    return product.astype(result)
  of_x, of_y = _limbs(x, limbs[0]), _limbs(y, limbs[1])
  whole = jnp.int32 if result == jnp.float32 else result
  total = jnp.zeros((), whole)
  for i, one in enumerate(of_x):
    for j, other in enumerate(of_y):
      part = jnp.matmul(one, other, preferred_element_type=jnp.int32)
      # What leaves int32 on the way comes back: it is all modulo 2³².
      total += part.astype(whole) << jnp.array(8 * (i + j), whole)
  return total.astype(result)


def exact_sum(x: Numbers, wide: jnp.dtype) -> Array:
  """A sum of integers along the last axis, kept, in `wide`."""
  return jnp.sum(x.astype(wide), axis=-1, keepdims=True, dtype=wide)


def squared_norm(x: Numbers, wide: jnp.dtype) -> Array:
  """‖x‖² of rows of integers below 2³¹, [rows, 1] in `wide`."""
  return exact_sum(jnp.square(x.astype(wide)), wide)


def _limbs(x: Numbers, count: int) -> list[Array]:
  """The lowest first, in int8."""
  rest, found = x.astype(jnp.int32), []
  for _ in range(count - 1):
    low = ((rest + 128) & 255) - 128
    found.append(low.astype(jnp.int8))
    rest = (rest - low) >> 8
  return [*found, rest.astype(jnp.int8)]
