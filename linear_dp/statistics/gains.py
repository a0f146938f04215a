r"""How many rows new weights get right and old ones do not: a noisy count.

    c_j = Σ_i b_i·(h_ij − h_i0),   h_ij = 1 where W_j ranks row i's class first

and 0 elsewhere; b_i is 1, or the row's part of its unit, in steps of 1/B. A row
of zeros is ranked alike by all weights, and adds nothing.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float64, Int64

from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.statistics.exact_map import integer_kernel
from oneshot_dp.linear_dp.statistics.exact_product import exact_product
from oneshot_dp.linear_dp.statistics.step_rows import StepChunk, StepRows

GAINS = "gains"
"""The pass that other hosts are asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretGains(Secret):
  """c, in steps of 1/`count_steps`; only `release_gains` reads it."""

  secret_gains: Int64[np.ndarray, " m"]
  count_steps: int


def count_gains(
  rows: StepRows, kernels: Float64[np.ndarray, "_ p K"]
) -> SecretGains:
  """c of the weights behind the first, which they are compared with.

  Formal guarantees: a privacy unit moves each of the counts by at most 1,
  whatever it holds, and they do not depend on the order of the rows.
  """
  rows.share()
  integers = np.stack([integer_kernel(kernel)[0] for kernel in kernels])
  rows.hosts.ask(GAINS, kernels=kernels)
  add = _adder(rows.mesh, rows.wide)
  with jax.enable_x64(True):
    public = jax.device_put(
      integers.astype(np.int32), NamedSharding(rows.mesh, PartitionSpec())
    )
    total = jnp.zeros((rows.mesh.size, len(kernels) - 1), jnp.int64)
    for chunk in rows.secret_chunks():
      total = add(total, public, chunk)
    own = np.asarray(total).sum(axis=0)
  (summed,) = rows.hosts.sum(own)
  # Of all hosts: this one may have no rows to tell it by.
  steps = GRID_RADIUS if rows.has_units else 1
  return SecretGains(secret_gains=summed, count_steps=steps)


def gain_sensitivity(relation: NeighboringRelation, count: int) -> float:
  """L2 sensitivity of c, of so many counts, in units: √m, or 2√m."""
  return math.nextafter(math.sqrt(count), math.inf) * changed_units(relation)


def release_gains(
  secret: SecretGains, noise_sd: float, source: NoiseSource | None
) -> Float64[np.ndarray, " m"]:
  """c + round(noise), in units.

  Formal guarantees: post-processing of the Gaussian mechanism of deviation
  `noise_sd`, σ times `gain_sensitivity`, which the caller has paid for. Without
  a source there is no noise: NOT PRIVATE.
  """
  gains, steps = secret.secret_gains, secret.count_steps
  if source is not None:
    gains = gains + rounded_gaussian(gains.shape, noise_sd * steps, source)
  return gains / steps


@functools.cache
def _adder(mesh: Mesh, wide: jnp.dtype) -> Callable[..., Array]:
  """Compiles (totals [devices, m], W [1 + m, p, K], chunk) → totals."""

  def add(total: Array, kernels: Array, chunk: StepChunk) -> Array:
    z, _, label, weight = chunk
    logits = (
      exact_product(z, kernel, (2, 2), wide, jnp.float32) for kernel in kernels
    )
    old, *new = [
      (of.argmax(axis=1) == label).astype(jnp.int64) for of in logits
    ]
    gained = jnp.stack(new) - old
    if weight is not None:
      gained *= weight.astype(jnp.int64)
    return total + gained.sum(axis=1)[None]

  data, same = PartitionSpec("data"), PartitionSpec()
  return jax.jit(
    jax.shard_map(add, mesh=mesh, in_specs=(data, same, data), out_specs=data)
  )
