r"""Sums of clipped softmax gradients at any weights, and their private release.

With z the direction of a row after a released map, y = (u − c)·A, z = y/‖y‖
(or, where rows keep their norms, z = u·R/B), and W the weights of a step, an
example adds

    g = r ⊗ z · min(1, C/‖r ⊗ z‖),   r = softmax(Wᵀz) − e_y
                                  or r = sigmoid(Wᵀz + b) − e_y

The sum is made in float64 and its error is bounded: for a row (see `row_error`)
and for the addition of n of them,

    ‖F − Σ g_i‖ ≤ E = (n + 1)·(e_row + γ_N·C),   γ_N = N·2⁻⁵³/(1 − N·2⁻⁵³)

with N additions on the way to an entry. F and that of a neighbour are each
within E of their sums, so F is private at the sensitivity C + 2E, and rounding
to a grid adds what it adds in `clipping`. For a million rows of norm 1 E, which
depends on the public n, is some 10⁻⁵ of C, and 0.027 of C at 1.28 million rows
of 1280 numbers and norm 256, where weights are normal of deviation 1.

y is exact, see `ReleasedMap`. Rows of zeros, the null row and padding, add
nothing, wherever c is.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, integer_rows
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.unit_norm_rows import (
  ROWS_PER_DEVICE,
  SecretRows,
)
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.row_gradient import (
  SOFTMAX,
  Loss,
  gamma,
  row_error,
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretGradient(Secret):
  """F, private, C and E, public; only `release_gradient` reads it."""

  clip_norm: float
  error: float
  secret_sum: Float64[np.ndarray, "p K"]


def clipped_gradient(
  rows: SecretRows,
  released_map: ReleasedMap | None,
  kernel: Float64[np.ndarray, "p K"],
  clip_norm: float,
  *,
  loss: Loss = SOFTMAX,
  chosen: Bool[np.ndarray, " n"] | None = None,
) -> SecretGradient:
  """F, the sum of clipped gradients of the cross-entropy.

  Args:
    rows: the private rows.
    released_map: A and c, for rows of norm 1; None leaves them where they are.
    kernel: W, released as well.
    clip_norm: C.
    loss: what the gradients are of.
    chosen: rows of the sum, by their places, whatever they hold; None is all.

  Raises:
    InputError: damaged rows, a clip norm that is none, or a map of rows that
      keep their norms.
  """
  if not 0 < clip_norm < math.inf:
    raise InputError(f"clip_norm={clip_norm} must be positive and finite.")
  if rows.max_norm is not None and released_map is not None:
    raise InputError("Rows that keep their norms are not mapped.")
  add = _adder(rows.mesh, loss, rows.max_norm)
  shape = (rows.mesh.size, *kernel.shape)
  with jax.enable_x64(True):
    same = NamedSharding(rows.mesh, PartitionSpec())
    where = released_map or ReleasedMap(matrix=None)
    weights = jax.device_put((where.matrix, where.centre, kernel), same)
    total = jnp.zeros(shape, jnp.float64)
    for chunk in rows.secret_chunks(chosen):
      total = add(total, *weights, clip_norm, *chunk)
    summed = np.asarray(total).sum(axis=0)
  # Of all rows: how many are chosen is private, and the noise would tell.
  chunks = math.ceil(rows.most_rows / (ROWS_PER_DEVICE * rows.mesh.size))
  additions = ROWS_PER_DEVICE + chunks + 1 + rows.mesh.size
  of_a_row = row_error(kernel, clip_norm, loss, rows.max_norm or 1.0)
  of_a_row += gamma(additions) * clip_norm * (1 + 2**-20)
  return SecretGradient(
    clip_norm=clip_norm,
    error=(rows.most_rows + 1) * of_a_row,
    secret_sum=summed,
  )


def gradient_step(clip_norm: float) -> float:
  """C/B, a step of the grid that gradients are released on."""
  return clip_norm / GRID_RADIUS


def gradient_sensitivity(
  relation: NeighboringRelation,
  *,
  clip_norm: float,
  error: float,
  entries: int,
) -> float:
  r"""L2 sensitivity of rint(F/step), in grid steps, rounded up.

  Δ = B + 2E/step + (1 + 2⁻¹⁰)·√(p·K),   or 2Δ with REPLACE_ONE
  """
  rounding = (1 + 2**-10) * math.sqrt(entries)
  of_error = 2 * error / gradient_step(clip_norm)
  once = (GRID_RADIUS + of_error + rounding) * (1 + 2**-50)
  return once * changed_units(relation)


def release_gradient(
  secret: SecretGradient,
  noise_multiplier: float,
  relation: NeighboringRelation,
  source: NoiseSource | None,
) -> Float64[np.ndarray, "p K"]:
  """rint(F/step) + round(Z), in the units of C.

  The division rounds F/step by less than the sensitivity's 2⁻¹⁰·√(p·K).

  Formal guarantees: post-processing of the Gaussian mechanism of noise
  multiplier σ, which the caller has paid for. Without a source there is no
  noise: NOT PRIVATE.
  """
  step = gradient_step(secret.clip_norm)
  steps = np.rint(secret.secret_sum / step).astype(np.int64)
  if source is None:
    return steps * step
  sensitivity = gradient_sensitivity(
    relation,
    clip_norm=secret.clip_norm,
    error=secret.error,
    entries=steps.size,
  )
  noise_sd = math.nextafter(noise_multiplier * sensitivity, math.inf)
  return (steps + rounded_gaussian(steps.shape, noise_sd, source)) * step


@functools.cache
def _adder(
  mesh: Mesh, loss: Loss, max_norm: float | None
) -> Callable[..., Array]:
  """Compiles (totals [devices, p, K], A, c, W, C, *chunk) → totals."""

  def add(
    total: Array,
    matrix: Array | None,
    centre: Array | None,
    kernel: Array,
    clip_norm: Array,
    embedding: Array,
    scale: Array,
    label: Array,
  ) -> Array:
    u = integer_rows(embedding, scale).astype(jnp.float64)
    y = u if centre is None else u - centre
    y = y if matrix is None else y @ matrix
    length = jnp.linalg.norm(y, axis=1, keepdims=True)
    if max_norm is None:
      # ‖z‖ is 1, or 0 where the gradient is 0.
      live = (length > 0) & (scale > 0)[:, None]
      z, norm_of_z = jnp.where(live, y / jnp.where(live, length, 1), 0), 1.0
    else:
      step = max_norm / GRID_RADIUS
      z, norm_of_z = y * step, length * step
    residual = loss.residual(z @ kernel, label)
    norm = jnp.linalg.norm(residual, axis=1, keepdims=True) * norm_of_z
    clipped = residual * jnp.minimum(1, clip_norm / norm)
    return total + jnp.matmul(z.T, clipped)[None]

  data, same = PartitionSpec("data"), PartitionSpec()
  sharded = jax.shard_map(
    add,
    mesh=mesh,
    in_specs=(data, same, same, same, same, data, data, data),
    out_specs=data,
  )
  return jax.jit(sharded, donate_argnums=0)
