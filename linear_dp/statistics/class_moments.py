r"""Exact moments of unit-norm rows, in integers, by one pass.

    M = Σ_i u_i u_iᵀ,  S = Σ_i e_{y_i} u_iᵀ,  N = Σ_i e_{y_i}

Products of two integers below 2²⁰ and sums of 8192 of them are exact in
float64, or in limbs, so matrix units do the work and nothing is rounded. A row
without a direction, of zeros, adds nothing.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, integer_rows
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.exact_product import exact_product

MAX_ROWS = 2**63 // GRID_RADIUS**2 - 1
"""More rows than these could leave int64."""
MOMENTS = "class moments"
"""The pass that other hosts are asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretClassMoments(Secret):
  """M, S and N; only `second_moment` and `joint_release` may read them.

  n is public. M is in steps of B⁻², S of B⁻¹.
  """

  public = ("num_examples",)

  num_examples: int
  secret_moment: Int64[np.ndarray, "d d"]
  secret_class_sums: Int64[np.ndarray, "K d"]
  secret_class_counts: Int64[np.ndarray, " K"]

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
  rows.hosts.ask(MOMENTS, max_norm=rows.max_norm)
  add = _adder(rows.mesh, rows.wide)
  d, num_classes = rows.feature_dim, rows.num_classes
  shapes = ((d, d), (num_classes, d), (num_classes,))
  with jax.enable_x64(True):
    totals = tuple(
      jnp.zeros((rows.mesh.size, *shape), jnp.int64) for shape in shapes
    )
    for chunk in rows.secret_chunks():
      totals = add(totals, chunk.embedding, chunk.scale, chunk.label)
    own = [np.asarray(total).sum(axis=0) for total in totals]
  moment, sums, counts = rows.hosts.sum(*own)
  return SecretClassMoments(
    num_examples=rows.num_examples,
    secret_moment=moment,
    secret_class_sums=sums,
    secret_class_counts=counts,
  )


_Totals = tuple[Array, ...]


@functools.cache
def _adder(
  mesh: Mesh, wide: jnp.dtype
) -> Callable[[_Totals, Array, Array, Array], _Totals]:
  """Compiles (totals, embedding, scale, label) → totals, for one reading.

  Shapes of the totals: int64 [devices, d, d], [devices, K, d], [devices, K].
  """

  def add(
    totals: _Totals, embedding: Array, scale: Array, label: Array
  ) -> _Totals:
    moment, sums, counts = totals
    u = integer_rows(embedding, scale)
    has_direction = (scale > 0).astype(jnp.int64)
    counted = jax.ops.segment_sum(has_direction, label, counts.shape[1])
    gram = exact_product(u.T, u, (3, 3), wide)
    if wide == jnp.float64:  # in int64 from the start
      added = jax.ops.segment_sum(u.astype(jnp.int64), label, sums.shape[1])
    else:  # matrix units are faster than a scatter of emulated int64
      one_hot = jax.nn.one_hot(label, sums.shape[1], axis=0, dtype=jnp.int32)
      added = exact_product(one_hot, u, (1, 3), wide)
    return moment + gram[None], sums + added[None], counts + counted[None]

  data = PartitionSpec("data")
  sharded = jax.shard_map(
    add, mesh=mesh, in_specs=(data, data, data, data), out_specs=data
  )
  return jax.jit(sharded, donate_argnums=0)
