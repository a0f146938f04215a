"""Exact sums over private rows: the compiled part of the mechanism.

Σ_j left_j ⊗ row_j is summed in integers. Every left factor is truncated, and
‖left_j‖ ≤ w_j and ‖row_j‖ ≤ R are checked where the product is added; a row
that fails adds nothing. Since the weights of a privacy unit add up to at most
W, a unit moves any of these sums by at most W·R, whatever a statistic computes.

The sums are private. `private_sums` alone may release them, with noise.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float64, Int64

from oneshot_dp.linear_dp.quantize import ROW_NORM, within_ball
from oneshot_dp.linear_dp.rows import DATA, SAME, Chunk, Rows
from oneshot_dp.linear_dp.statistics import RowStatistic, class_sums
from oneshot_dp.linear_dp.unit_norms import scale_units

# As many rows of norm R as an int32 has room for, should all lie on one axis.
_MAX_ROWS_IN_INT32 = (2**31 - 1) // ROW_NORM


def exact_sum(
  rows: Rows, statistic: RowStatistic, public: tuple[Any, ...]
) -> Int64[np.ndarray, "m p"]:
  """The exact sum of a statistic over this host's rows: PRIVATE.

  Formal guarantees: a privacy unit, or nothing in its place, moves the sum by
  at most W·R in the Euclidean norm. The sum has the same bits for any order of
  rows, any chunks and any devices.

  Args:
    rows: the rows to sum over.
    statistic: what is summed.
    public: what the statistic takes besides the row, its label and weight.

  Returns:
    The sum as int64, [m, p], in units of 1/(W·R).
  """
  # A statistic is summed as a matrix product. For class sums that would
  # multiply each row by K − 1 zeros, so they are scattered instead.
  if statistic is class_sums:
    return _sum_by_class(rows)
  on_devices = NamedSharding(rows.mesh, DATA)
  on_all = NamedSharding(rows.mesh, SAME)
  # The left factors and their products with rows need 53 bits, and JAX has
  # 32-bit numbers unless x64 is enabled.
  with jax.enable_x64(True):
    # None stays None: an option that a statistic is not given.
    given = jax.device_put(jax.tree.map(np.asarray, public), on_all)
    given_shapes = jax.tree.map(jax.typeof, given)
    height = _left_columns(statistic, rows.feature_dim, given_shapes)
    width = 1 if statistic.one_column else rows.feature_dim
    shape = (rows.mesh.size, height, width)
    # One total for each device, added up at the end: with integers that gives
    # the same bits as any other order, and no device waits for another in the
    # loop.
    totals = jnp.zeros(shape, jnp.int64, device=on_devices)
    for chunk in rows.chunks():
      add_chunk = _outer(
        rows.mesh, statistic, rows.data.weight, chunk.unit_slots
      )
      totals = add_chunk(totals, chunk.arrays, given)
    return np.asarray(totals).sum(axis=0)


@functools.cache
def _left_columns(
  statistic: RowStatistic, feature_dim: int, given_shapes: tuple[Any, ...]
) -> int:
  """Finds out how many columns the left factors of a statistic have.

  It is looked up once: a training makes dozens of sums of the same shape, and
  to trace the statistic takes some milliseconds.

  Args:
    statistic: computes the left factors.
    feature_dim: d, the width of a row.
    given_shapes: shape and dtype of each public argument.
  """
  one_number = jax.ShapeDtypeStruct((1,), jnp.int32)
  one_row = jax.ShapeDtypeStruct((1, feature_dim), jnp.int16)
  left = jax.eval_shape(
    statistic, one_row, one_number, one_number, *given_shapes
  )
  return left.shape[1]


def _sum_by_class(rows: Rows) -> Int64[np.ndarray, "K d"]:
  """w·e_y ⊗ row, added up by a scatter.

  In int32 where every row weighs W, which is multiplied in afterwards, and in
  int64 where privacy units have many rows. On a v5e it takes 21 cycles a row at
  d = 1280, by XLA's estimate.
  """
  # Without units all weights are W, a factor of the whole sum. In each addend
  # it would overflow int32 at once.
  has_units = rows.data.has_units
  dtype = jnp.int64 if has_units else jnp.int32
  shape = (rows.mesh.size, rows.data.num_classes, rows.feature_dim)
  total = np.zeros(shape[1:], np.int64)
  sums = None
  num_summed = 0  # on each device, which has sums of its own
  for chunk in rows.chunks():
    on_device = len(chunk.label) // rows.mesh.size
    # Carried over to int64 before an int32 could overflow.
    if sums is not None and num_summed + on_device > _MAX_ROWS_IN_INT32:
      total += np.asarray(sums).sum(axis=0, dtype=np.int64)
      sums = None
      num_summed = 0
    with jax.enable_x64(has_units):
      if sums is None:
        sums = jnp.zeros(shape, dtype, device=NamedSharding(rows.mesh, DATA))
      sums = _scatter(rows.mesh, has_units)(sums, chunk.arrays, ())
    num_summed += on_device
  if sums is not None:
    total += np.asarray(sums).sum(axis=0, dtype=np.int64)
  if has_units:
    return total
  return total * rows.data.weight


@functools.cache
def _outer(
  mesh: Mesh, statistic: RowStatistic, unit_weight: int, unit_slots: int | None
) -> Callable[..., Array]:
  """Compiles how a chunk of rows is added to the sum of a statistic.

  One program is kept for each combination of arguments, as a training adds
  thousands of chunks in the same way.

  Args:
    mesh: the devices, each with a total of its own.
    statistic: what is summed.
    unit_weight: W.
    unit_slots: how many rows of a chunk each privacy unit has; None where each
      row stands alone.

  Returns:
    A function (totals int64 [devices, m, p], columns, public) → totals, whose
    first argument may not be used again.
  """

  def add(
    total: Array, columns: tuple[Array, ...], public: tuple[Any, ...]
  ) -> Array:
    # `a` is already bounded here: no statistic, whatever it computes, gets past
    # this point without the check that its guarantee rests on.
    a = bounded_left_factors(
      statistic, columns, public, unit_weight, unit_slots
    )
    z = columns[0].astype(jnp.float64)
    # A count is the sum of the left factors alone. Each row stands for the
    # number R, so that counts have the sensitivity W·R of all other sums.
    if statistic.one_column:
      z = jnp.full((len(z), 1), float(ROW_NORM))
    # Sums of integers below 2⁵³: exact in any order.
    product = jnp.matmul(a.T, z, precision="highest")
    return total + product.astype(jnp.int64)[None]

  return _sharded(mesh, add)


def bounded_left_factors(
  statistic: RowStatistic,
  columns: tuple[Array, ...],
  public: tuple[Any, ...],
  unit_weight: int,
  unit_slots: int | None,
) -> Float64[Array, "c m"]:
  """The integer left factors of rows, with every bound on them checked.

  Formal guarantees: ‖a_j‖ ≤ w_j and ‖z_j‖ ≤ R for each row j whose left factor
  is not 0, so that rows whose weights add up to W move a sum by at most W·R.
  Where the statistic scales units, ‖Σ_j a_j ⊗ z_j‖ ≤ W·R over the rows of each
  unit in place of ‖a_j‖ ≤ w_j; see `unit_norms`.

  Args:
    statistic: computes the left factors.
    columns: row int16 [c, d], label int32 [c], weight int32 [c].
    public: what the statistic takes besides.
    unit_weight: W.
    unit_slots: of the chunk that the rows are a device's part of.

  Returns:
    a [c, m]: integers in float64.
  """
  row, label, weight = columns
  # Truncation is toward zero, so it makes no left factor longer.
  left = statistic(row, label, weight, *public)
  a = jnp.trunc(left.astype(jnp.float64))
  z = row.astype(jnp.float64)
  # The check of lemma 1, in exact arithmetic: it holds for whatever the
  # statistic returned, NaN and infinity included, and needs no trust in its
  # formula. Squares of integers are exact up to 2⁵³, and what is past that is
  # too long anyway. NaN compares as False.
  is_short = jnp.square(a).sum(1) <= jnp.square(weight.astype(jnp.float64))
  is_short &= jnp.square(z).sum(1) <= ROW_NORM * ROW_NORM
  a = jnp.where(is_short[:, None], a, 0)
  # Rows of one unit may be scaled up together, past their own weights. That
  # check replaces the one above, so it is the last thing that is done to `a`.
  if statistic.scales_units and unit_slots is not None:
    a = scale_units(a, row, weight, unit_weight, unit_slots)
  return a


def left_factors_of_chunk(
  rows: Rows, statistic: RowStatistic, chunk: Chunk, public: tuple[Any, ...]
) -> Float64[np.ndarray, "c m"]:
  """The left factors with which the rows of a chunk are to be summed: PRIVATE.

  For the audit, which has to know what each of its canaries adds. The norms of
  single rows are not checked here: an audit that took a row for dropped, which
  a sum without its check adds, would not find that the check is missing.

  Args:
    rows: the rows that the chunk is of; their devices compute.
    statistic: computes the left factors.
    chunk: from `rows.chunks()`.
    public: what the statistic takes besides the row, its label and weight.

  Returns:
    Integers in float64, [c, m], in units of 1/W of a row; rows that fill up
    the chunk are 0.
  """

  def compute(columns: tuple[Array, ...], public: tuple[Any, ...]) -> Array:
    if not statistic.scales_units or chunk.unit_slots is None:
      left = statistic(*columns, *public)
      return jnp.trunc(left.astype(jnp.float64))
    return bounded_left_factors(
      statistic, columns, public, rows.data.weight, chunk.unit_slots
    )

  # As in a sum, each device has whole units.
  sharded = jax.shard_map(
    compute, mesh=rows.mesh, in_specs=(DATA, SAME), out_specs=DATA
  )
  with jax.enable_x64(True):
    given = jax.tree.map(jnp.asarray, public)
    return np.asarray(jax.jit(sharded)(chunk.arrays, given))


@functools.cache
def _scatter(mesh: Mesh, has_units: bool) -> Callable[..., Array]:
  """Compiles (sums [devices, K, d], columns, ()) → sums.

  With units, rows are multiplied by their weights; without, each adds itself.
  """

  def add(sums: Array, columns: tuple[Array, ...], public: tuple[()]) -> Array:
    row, label, weight = columns
    # The only check a scatter needs: the left factor w·e_y has norm w by
    # itself. A row that may be too long becomes zeros, and adds nothing.
    is_within, _ = within_ball(row.astype(jnp.float32))
    z = jnp.where(is_within[:, None], row, 0).astype(sums.dtype)
    if has_units:
      z = z * weight[:, None]
    return sums[0].at[label].add(z)[None]

  return _sharded(mesh, add)


def _sharded(mesh: Mesh, add: Callable[..., Array]) -> Callable[..., Array]:
  """Compiles `add` so that each device adds its rows to its own sums."""
  # The totals of the chunk before are given away (`donate_argnums`): a sum of
  # K·d int64 numbers is held once, and not once a chunk.
  specs = DATA, DATA, SAME
  add_own = jax.shard_map(add, mesh=mesh, in_specs=specs, out_specs=DATA)
  return jax.jit(add_own, donate_argnums=0)
