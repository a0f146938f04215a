r"""Exact moments of unit-norm rows, in integers, by one pass.

    M = Σ_i u_i u_iᵀ,  S = Σ_i e_{y_i} u_iᵀ,  N = Σ_i e_{y_i}

Products of two integers below 2²⁰ and sums of 8192 of them are exact in
float64, or in limbs, so matrix units do the work and nothing is rounded. A row
without a direction, of zeros, adds nothing.

Where a privacy unit may be several rows, of weights b_i that add up to at most
B (`mean_rows`), what is added is rounded to integers whose norm is checked:

    M = Σ_i a_i a_iᵀ,  ‖a_i‖² ≤ b_i·B,      S = Σ_i e_{y_i} t_iᵀ,  ‖t_i‖ ≤ b_i,
    N = Σ_i b_i·e_{y_i},  in steps of 1/B

so that all rows of a unit move each sum by no more than one row would.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float32, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.integers import (
  GRID_RADIUS,
  integer_rows,
  row_radius,
)
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.unit_norm_rows import Chunk, SecretRows
from oneshot_dp.linear_dp.statistics.exact_product import (
  exact_product,
  squared_norm,
)

MAX_ROWS = 2**63 // GRID_RADIUS**2 - 1
"""More rows than these could leave int64."""
MOMENTS = "class moments"
"""The pass that other hosts are asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretClassMoments(Secret):
  """M, S and N; only `second_moment` and `joint_release` may read them.

  n is public. M is in steps of B⁻², S of B⁻¹, N of 1/`count_steps`.
  """

  public = ("num_examples",)

  num_examples: int
  secret_moment: Int64[np.ndarray, "d d"]
  secret_class_sums: Int64[np.ndarray, "K d"]
  secret_class_counts: Int64[np.ndarray, " K"]
  count_steps: int = 1

  @property
  def secret_total(self) -> Int64[np.ndarray, " d"]:
    """T = Σ_i u_i."""
    return self.secret_class_sums.sum(axis=0)


def class_moments(rows: SecretRows) -> SecretClassMoments:
  """M, S and N over all rows, exactly: the same bits in any order."""
  if rows.most_rows > MAX_ROWS:
    raise InputError(
      f"{rows.most_rows} rows are more than the {MAX_ROWS} whose second"
      " moment can be summed exactly; use --head lamb."
    )
  rows.count_units()
  rows.hosts.ask(MOMENTS, max_norm=rows.max_norm)
  add = _adder(rows.mesh, rows.wide)
  d, num_classes = rows.feature_dim, rows.num_classes
  shapes = ((d, d), (num_classes, d), (num_classes,))
  with jax.enable_x64(True):
    totals = tuple(
      jnp.zeros((rows.mesh.size, *shape), jnp.int64) for shape in shapes
    )
    for chunk in rows.secret_chunks():
      totals = add(totals, chunk)
    own = [np.asarray(total).sum(axis=0) for total in totals]
  moment, sums, counts = rows.hosts.sum(*own)
  return SecretClassMoments(
    num_examples=rows.num_examples,
    secret_moment=moment,
    secret_class_sums=sums,
    secret_class_counts=counts,
    count_steps=GRID_RADIUS if rows.has_units else 1,
  )


_Totals = tuple[Array, ...]


@functools.cache
def _adder(mesh: Mesh, wide: jnp.dtype) -> Callable[[_Totals, Chunk], _Totals]:
  """Compiles (totals, chunk) → totals, for one reading.

  Shapes of the totals: int64 [devices, d, d], [devices, K, d], [devices, K].
  """

  def add(totals: _Totals, chunk: Chunk) -> _Totals:
    moment, sums, counts = totals
    embedding, scale, _, label, weight = chunk
    has_direction = (scale > 0).astype(jnp.int64)
    root = u = integer_rows(embedding, scale)
    if weight is not None:
      length, weight = weight.astype(jnp.float32), weight.astype(jnp.int64)
      has_direction *= weight
      of_root = jnp.sqrt(length * GRID_RADIUS)
      root = _shortened(chunk, of_root, weight * GRID_RADIUS, wide)
      u = _shortened(chunk, length, weight**2, wide)
    counted = jax.ops.segment_sum(has_direction, label, counts.shape[1])
    gram = exact_product(root.T, root, (3, 3), wide)
    if wide == jnp.float64:  # in int64 from the start
      added = jax.ops.segment_sum(u.astype(jnp.int64), label, sums.shape[1])
    else:  # matrix units are faster than a scatter of emulated int64
      one_hot = jax.nn.one_hot(label, sums.shape[1], axis=0, dtype=jnp.int32)
      added = exact_product(one_hot, u, (1, 3), wide)
    return moment + gram[None], sums + added[None], counts + counted[None]

  data = PartitionSpec("data")
  sharded = jax.shard_map(add, mesh=mesh, in_specs=(data, data), out_specs=data)
  return jax.jit(sharded, donate_argnums=0)


def _shortened(
  chunk: Chunk,
  length: Float32[Array, " rows"],
  squared: Int64[Array, " rows"],
  wide: jnp.dtype,
) -> Float32[Array, "rows d"]:
  """Rows of integers at a norm of at most `length`, checked by its square."""
  dim = chunk.embedding.shape[1]
  slack = GRID_RADIUS - row_radius(dim)
  part = jnp.maximum(length - slack, 0) / (GRID_RADIUS - jnp.float32(slack))
  row = integer_rows(chunk.embedding, chunk.scale * part)
  short = squared_norm(row, wide) <= squared[:, None].astype(wide)
  return jnp.where(short, row, 0)
