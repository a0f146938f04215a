r"""THE sum and THE door: nothing private leaves by another way.

    Σ_j left_j ⊗ row_j + round(Z),   Z ~ N(0, sd²),   sd = W·R/μ

Of every row, left_j is truncated to integers, and ‖left_j‖ ≤ w_j and ‖row_j‖ ≤
R are checked where it is added, so that a privacy unit, whose weights add up to
at most W, moves any of these sums by at most W·R: their sensitivity, whatever
a statistic computes.
"""

import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float64, Int64

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp.dataset import ROW_NORM, within_ball
from oneshot_dp.linear_dp.noise import NoiseSource, rounded_gaussian
from oneshot_dp.linear_dp.rows import DATA, SAME, Chunk, Rows, digest_of
from oneshot_dp.linear_dp.statistics import RowStatistic, class_sums

_SLACK = 1 + 2**-40  # of noise, so that rounded shares never cost more than all
_MAX_ROWS_IN_INT32 = (2**31 - 1) // ROW_NORM


class Release(NamedTuple):
  """What left: of which name and shape, with how much noise per sensitivity."""

  name: str
  shape: tuple[int, ...]
  noise_multiplier: float


class PrivateSums:
  """The only door out of private rows, and its account.

  Formal guarantees: what leaves is post-processing of Gaussian mechanisms, each
  of sensitivity W·R to a unit or nothing in its place, whose μ² = Σ σ⁻², in
  rationals, is at most
  `mu_squared_budget`, however each was chosen after those before it
  (Smith & Thakurta, "Fully Adaptive Composition for Gaussian Differential
  Privacy", 2022). Sums have the same bits for any order, devices and hosts.

  Args:
    source: of the noise; None is none, NOT PRIVATE.
    mu_squared_budget: μ², in the ledger before this exists.
    estimates: what left before of the same rows, and is public.

  Attributes:
    releases: what left by this door, in its order.
    estimates: statistic → the estimate of all that ever left of it, its σ⁻².
  """

  def __init__(
    self,
    source: NoiseSource | None,
    mu_squared_budget: float | Fraction,
    estimates: Mapping[str, tuple[Float64[np.ndarray, "..."], float]]
    | None = None,
  ):
    self.source = source
    self.mu_squared_budget = Fraction(mu_squared_budget)
    self.releases: list[Release] = []
    self.estimates = dict(estimates or {})
    self._spent = Fraction(0)

  def release(
    self,
    name: str,
    rows: Rows,
    statistic: RowStatistic,
    *,
    mu_squared: float,
    public: tuple[Any, ...] = (),
    cache: bool = True,
  ) -> tuple[Float64[np.ndarray, "m p"], float]:
    """Releases Σ left ⊗ row with noise of σ⁻² = `mu_squared`, under this name.

    `public` is what the statistic is given besides: what left, or is of
    nothing private. Without `cache` it is not known later.

    Returns the mean, by precision, of all that ever left of it, in units of a
    row of norm 1 and a unit's weight; and its noise multiplier (0 without).

    RunError: it would let out more than was paid, or rows of class sums are
    asked for something else; before anything is computed.
    """
    sensitivity = rows.data.weight * ROW_NORM
    if rows.weight_norm_order != 1 and statistic is not class_sums:
      raise RunError(f"{name}: of rows that are weighed for class sums alone.")
    sd, costs = math.inf, Fraction(0)
    if self.source is not None:
      if 0 < mu_squared < math.inf:
        sd = sensitivity / math.sqrt(mu_squared) * _SLACK
        costs = (sensitivity / Fraction(sd)) ** 2
      if not costs or self._spent + costs > self.mu_squared_budget:
        raise RunError(f"{name}: more than was charged, so nothing left.")
      self._spent += costs
    key = digest_of(statistic.id, rows.identity, *public)

    def exact() -> Int64[np.ndarray, "m p"]:
      if not cache or key not in rows._totals:
        rows._totals[key] = _sum(rows, statistic, public)
      return rows._totals[key] if cache else rows._totals.pop(key)

    total = rows.data.hosts.sum(exact)
    if (source := self.source) is None:
      return total / sensitivity, 0.0
    noisy = rows.data.hosts.from_first(
      lambda: total + rounded_gaussian(total.shape, sd, source), total.shape
    )
    self.releases.append(Release(name, total.shape, sd / sensitivity))
    bought = float(costs)
    mean, had = self.estimates.get(f"{name}/{key}", (0.0, 0.0))
    mean = (had * mean + bought * (noisy / sensitivity)) / (had + bought)
    if cache:
      self.estimates[f"{name}/{key}"] = mean, had + bought
    return mean, (had + bought) ** -0.5


def _sum(
  rows: Rows, statistic: RowStatistic, public: tuple[Any, ...]
) -> Int64[np.ndarray, "m p"]:
  """The exact sum over this host's rows."""
  if statistic is class_sums:
    return _class_sums(rows)
  data, same = (NamedSharding(rows.mesh, spec) for spec in (DATA, SAME))
  number = jax.ShapeDtypeStruct((1,), jnp.int32)
  row = jax.ShapeDtypeStruct((1, rows.feature_dim), jnp.int16)
  with jax.enable_x64(True):
    given = jax.device_put(
      tuple(None if p is None else np.asarray(p) for p in public), same
    )
    height = jax.eval_shape(statistic, row, number, number, *given).shape[1]
    width = 1 if statistic.one_column else rows.feature_dim
    total = jnp.zeros((rows.mesh.size, height, width), jnp.int64, device=data)
    for chunk in rows.chunks():
      total = _outer(rows.mesh, statistic)(total, chunk, given)
    return np.asarray(total).sum(axis=0)


def _class_sums(rows: Rows) -> Int64[np.ndarray, "K d"]:
  """w·e_y ⊗ row by a scatter: int32 where all rows weigh W, int64 where not.

  On a v5e 21 cycles a row at d = 1280, by XLA's estimate.
  """
  weighs = rows.data.has_units
  shape = rows.mesh.size, rows.data.num_classes, rows.feature_dim
  total, sums, count = np.zeros(shape[1:], np.int64), None, 0
  for chunk in rows.chunks():
    if count + len(chunk.label) > _MAX_ROWS_IN_INT32:
      total += np.asarray(sums).sum(axis=0, dtype=np.int64)
      sums, count = None, 0
    with jax.enable_x64(weighs):
      if sums is None:
        dtype = jnp.int64 if weighs else jnp.int32
        sums = jnp.zeros(shape, dtype, device=NamedSharding(rows.mesh, DATA))
      sums = _scatter(rows.mesh, weighs)(sums, chunk, ())
    count += len(chunk.label)
  if sums is not None:
    total += np.asarray(sums).sum(axis=0, dtype=np.int64)
  return total if weighs else total * rows.data.weight


@functools.cache
def _outer(mesh: Mesh, statistic: RowStatistic) -> Callable[..., Array]:
  """Compiles (totals int64 [devices, m, p], chunk, public) → totals."""

  def add(total: Array, chunk: Chunk, public: tuple[Any, ...]) -> Array:
    row, label, w = chunk
    a = jnp.trunc(statistic(row, label, w, *public).astype(jnp.float64))
    z = row.astype(jnp.float64)
    # Squares of integers: exact up to 2⁵³, and past that too long anyway.
    short = jnp.square(a).sum(1) <= jnp.square(w.astype(jnp.float64))
    short &= jnp.square(z).sum(1) <= ROW_NORM * ROW_NORM
    a = jnp.where(short[:, None], a, 0)
    if statistic.one_column:
      z = jnp.full((len(z), 1), float(ROW_NORM))
    # Sums of integers below 2⁵³: exact in any order.
    product = jnp.matmul(a.T, z, precision="highest")
    return total + product.astype(jnp.int64)[None]

  return _sharded(mesh, add)


@functools.cache
def _scatter(mesh: Mesh, weighs: bool) -> Callable[..., Array]:
  """Compiles (sums [devices, K, d], chunk, ()) → sums, of steps of 1 or W."""

  def add(sums: Array, chunk: Chunk, public: tuple[()]) -> Array:
    row, label, w = chunk
    short, _ = within_ball(row.astype(jnp.float32))
    z = jnp.where(short[:, None], row, 0).astype(sums.dtype)
    return sums[0].at[label].add(z * w[:, None] if weighs else z)[None]

  return _sharded(mesh, add)


def _sharded(mesh: Mesh, add: Callable[..., Array]) -> Callable[..., Array]:
  """Each device adds its rows to its own sums."""
  specs = DATA, DATA, SAME
  add_own = jax.shard_map(add, mesh=mesh, in_specs=specs, out_specs=DATA)
  return jax.jit(add_own, donate_argnums=0)
