r"""The exact second moment of unit-norm rows, and its private release.

    M = Σ_i u_i u_iᵀ    (integers, in steps of B⁻²: ‖u_i‖ ≤ B)

Products of two integers below 2²⁰ and sums of 8192 of them are exact in
float64, so matrix units do the work and nothing is rounded.

*Sensitivity.* A row adds u uᵀ, whose Frobenius norm is ‖u‖² ≤ B². What is
released is rint(M/B), on a grid where noise is far from float64's last bits:
one row moves it by at most B steps, and rounding d² entries by 1 each. Written
as the vector v of the diagonal and √2 times the upper triangle, a symmetric
matrix has ‖v‖₂ = ‖M‖_F. The mechanism adds Gaussian noise of deviation sd to
v: sd on the diagonal and sd/√2 above it, mirrored below.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float64, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, integer_rows
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows

MAX_ROWS = 2**63 // GRID_RADIUS**2 - 1
"""More rows than these could leave int64."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretMoment(Secret):
  """M, and T = Σ u_i; only `release_moment` and `release_mean` may read them.

  Attributes:
    num_examples: n; public.
    secret_moment: M, [d, d] int64, symmetric, in steps of B⁻². Private.
    secret_total: T, [d] int64, in steps of B⁻¹. Private.
  """

  public = ("num_examples",)

  num_examples: int
  secret_moment: Int64[np.ndarray, "d d"]
  secret_total: Int64[np.ndarray, " d"]


def second_moment(rows: SecretRows) -> SecretMoment:
  """Σ u uᵀ and Σ u over all rows, exactly: the same bits in any order.

  Raises:
    InputError: damaged rows, or more than `MAX_ROWS`.
  """
  check_number(rows)
  add = _adder(rows.mesh)
  d = rows.feature_dim
  with jax.enable_x64(True):
    moment, total = (
      jnp.zeros((rows.mesh.size, *shape), jnp.int64) for shape in ((d, d), (d,))
    )
    for embedding, scale, _ in rows.secret_chunks():
      moment, total = add((moment, total), embedding, scale)
    sums = [np.asarray(part).sum(axis=0) for part in (moment, total)]
  return SecretMoment(
    num_examples=rows.num_examples,
    secret_moment=sums[0],
    secret_total=sums[1],
  )


def check_number(rows: SecretRows) -> None:
  """Refuses more rows than `MAX_ROWS`, before any is read."""
  if rows.num_examples > MAX_ROWS:
    raise InputError(
      f"{rows.num_examples} rows are more than the {MAX_ROWS} whose second"
      " moment can be summed exactly; use --head lamb."
    )


def exact_gram(u: Float64[Array, "rows d"]) -> Int64[Array, "d d"]:
  """uᵀu of the integer rows of one device's chunk, which float64 holds."""
  return jnp.matmul(u.T, u).astype(jnp.int64)


def moment_sensitivity(relation: NeighboringRelation, dim: int) -> float:
  """L2 sensitivity of the vector of rint(M/B), in its steps, rounded up.

      Δ = B + (1 + 2⁻¹⁰)·d

  Args:
    relation: REPLACE_ONE is a row removed and a row added, 2Δ. (√2·B would do,
      but the ledger takes its releases for twice as sensitive.)
    dim: d.

  Returns:
    Δ, or 2Δ.
  """
  once = (GRID_RADIUS + (1 + 2**-10) * dim) * (1 + 2**-50)
  return once * (2 if relation is NeighboringRelation.REPLACE_ONE else 1)


def release_moment(
  secret: SecretMoment, noise_sd: float, source: NoiseSource | None
) -> Float64[np.ndarray, "d d"]:
  r"""M + noise, in units of one row's ‖x‖² = 1; symmetric, perhaps indefinite.

  Formal guarantees: post-processing of the Gaussian mechanism of deviation
  `noise_sd` on the vector v above: noise of sd/√2 on an integer, rounded
  exactly, is noise of sd on √2 times the integer.

  Args:
    secret: the exact moment.
    noise_sd: in steps of 1/B; σ times `moment_sensitivity`. The caller has paid
      for it.
    source: the random bits; None adds no noise, which is NOT PRIVATE.

  Returns:
    [d, d] float64.
  """
  moment = moment_steps(secret.secret_moment)
  if source is None:
    return moment / GRID_RADIUS
  dim = len(moment)
  beside = (num_beside(dim),)
  above = rounded_gaussian(beside, beside_sd(noise_sd), source)
  noise = mirrored(above, rounded_gaussian((dim,), noise_sd, source))
  return (moment + noise) / GRID_RADIUS


def mean_sensitivity(relation: NeighboringRelation) -> float:
  """L2 sensitivity of T, in its steps: B, as it is of integers; or 2B."""
  return GRID_RADIUS * (
    2.0 if relation is NeighboringRelation.REPLACE_ONE else 1.0
  )


def release_mean(
  secret: SecretMoment, noise_sd: float, source: NoiseSource | None
) -> Float64[np.ndarray, " d"]:
  """(T + noise)/n, in units of a row of norm 1.

  Formal guarantees: post-processing of the Gaussian mechanism of deviation
  `noise_sd` on T.

  Args:
    secret: the exact total.
    noise_sd: in steps of 1/B; σ times `mean_sensitivity`. The caller has paid
      for it.
    source: the random bits; None adds no noise, which is NOT PRIVATE.

  Returns:
    [d] float64.
  """
  total = secret.secret_total
  if source is not None:
    total = total + rounded_gaussian(total.shape, noise_sd, source)
  return total / (GRID_RADIUS * secret.num_examples)


def moment_steps(moment: Int64[np.ndarray, "d d"]) -> Int64[np.ndarray, "d d"]:
  """rint(M/B), in integers; halves go up."""
  return (moment + GRID_RADIUS // 2) // GRID_RADIUS


def num_beside(dim: int) -> int:
  """How many entries lie above the diagonal."""
  return dim * (dim - 1) // 2


def beside_sd(noise_sd: float) -> float:
  """sd/√2, rounded up: of the entries that come twice."""
  return noise_sd / math.sqrt(2) * (1 + 2**-50)


def mirrored(
  above: Int64[np.ndarray, " e"], diagonal: Int64[np.ndarray, " d"]
) -> Int64[np.ndarray, "d d"]:
  """The symmetric matrix of what is above its diagonal, by rows, and on it."""
  dim = len(diagonal)
  matrix = np.zeros((dim, dim), np.int64)
  matrix[np.triu_indices(dim, k=1)] = above
  matrix += matrix.T
  matrix[np.diag_indices(dim)] = diagonal
  return matrix


@functools.cache
def _adder(mesh: Mesh) -> Callable[..., tuple[Array, Array]]:
  """Compiles ((M, T) of every device, embedding, scale) → (M, T)."""

  def add(
    totals: tuple[Array, Array], embedding: Array, scale: Array
  ) -> tuple[Array, Array]:
    u = integer_rows(embedding, scale).astype(jnp.float64)
    moment, total = totals
    of_rows = u.sum(axis=0).astype(jnp.int64)
    return moment + exact_gram(u)[None], total + of_rows[None]

  data = PartitionSpec("data")
  sharded = jax.shard_map(
    add, mesh=mesh, in_specs=((data, data), data, data), out_specs=(data, data)
  )
  return jax.jit(sharded, donate_argnums=0)
