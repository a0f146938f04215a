r"""Sums of clipped gradients at any weights, and their private release.

A row adds the integers ρ ⊗ z, with z of `step_rows` and ρ of `row_gradient`:
the gradient at W, clipped to C, in steps of C/(B·R). So

    F = Σ_i ρ_i ⊗ z_i,   ‖ρ_i ⊗ z_i‖ = ‖ρ_i‖·‖z_i‖ ≤ B·R

is the same integer for any order of the rows, any chunks, devices and hosts.
What is released is rint(F/R), in steps of C/B: of sensitivity B, and √(p·K) for
the rounding of two vectors of integers.

W is public, and rounded to integers, so that logits are exact as well.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float64, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.noise.rounded_gaussian import rounded_gaussian
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS, row_radius
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.statistics.exact_map import (
  STEP_RADIUS,
  integer_kernel,
)
from oneshot_dp.linear_dp.statistics.exact_product import exact_product
from oneshot_dp.linear_dp.statistics.row_gradient import (
  SOFTMAX,
  Loss,
  clipped_residual,
)
from oneshot_dp.linear_dp.statistics.step_rows import StepChunk, StepRows

MAX_ROWS = 2**62 // (GRID_RADIUS * STEP_RADIUS)
"""More rows than these could leave int64."""
GRADIENT = "gradient"
"""The pass that other hosts are asked for."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SecretGradient(Secret):
  """F, private, and C, public; only `release_gradient` reads it.

  F is a sum of parts, which the devices may still be computing.
  """

  clip_norm: float
  secret_parts: Int64[np.ndarray | Array, "parts p K"]

  @property
  def secret_sum(self) -> Int64[np.ndarray, "p K"]:
    """F; waits for the devices."""
    return np.asarray(self.secret_parts).sum(axis=0)


def clipped_gradient(
  rows: StepRows,
  kernel: Float64[np.ndarray, "p K"],
  clip_norm: float,
  *,
  loss: Loss = SOFTMAX,
  chosen: Bool[np.ndarray, " n"] | None = None,
  log_prior: Float64[np.ndarray, " K"] | None = None,
) -> SecretGradient:
  """F, the sum of clipped gradients of the cross-entropy.

  Formal guarantees: a privacy unit, a row or several whose weights add up to at
  most B, moves F by at most B·R, whatever it holds, and F does not depend on
  the order of the rows, nor on devices.

  W, the kernel, is released as well, and rounded as `integer_kernel` does it;
  `chosen` are rows of the sum, by their places among those of all hosts,
  whatever they hold (None is all); `log_prior`, added to the logits of every
  row, is public.

  InputError: damaged rows, too many, or a clip norm that is none.
  """
  if not 0 < clip_norm < math.inf:
    raise InputError(f"clip_norm={clip_norm} must be positive and finite.")
  if rows.most_rows > MAX_ROWS:
    raise InputError(
      f"{rows.most_rows} rows are more than the {MAX_ROWS} whose gradients"
      " can be summed exactly; use --head lamb."
    )
  rows.share()
  rows.hosts.ask(
    GRADIENT,
    kernel=kernel,
    clip_norm=clip_norm,
    loss=loss.name,
    bias=loss.bias,
    chosen=chosen,
    log_prior=log_prior,
  )
  integers, power = integer_kernel(kernel)
  step = 2.0**-power / row_radius(len(kernel), STEP_RADIUS)
  add = _adder(rows.mesh, loss, rows.wide)
  same = NamedSharding(rows.mesh, PartitionSpec())
  with jax.enable_x64(True):
    public = jax.device_put(
      (
        integers.astype(np.int32),
        np.float32(step),
        np.float32(clip_norm),
        log_prior if log_prior is None else log_prior.astype(np.float32),
      ),
      same,
    )
    total = jnp.zeros(
      (rows.mesh.size, *kernel.shape),
      jnp.int64,
      device=NamedSharding(rows.mesh, PartitionSpec("data")),
    )
    for chunk in rows.secret_chunks(chosen):
      total = add(total, *public, chunk)
  if rows.hosts.count > 1:
    (summed,) = rows.hosts.sum(np.asarray(total).sum(axis=0))
    total = summed[None]
  return SecretGradient(clip_norm=clip_norm, secret_parts=total)


def gradient_step(clip_norm: float) -> float:
  """C/B, a step of the grid that gradients are released on."""
  return clip_norm / GRID_RADIUS


def gradient_sensitivity(relation: NeighboringRelation, entries: int) -> float:
  r"""L2 sensitivity of rint(F/R), in grid steps, rounded up.

  Δ = B + √(p·K),   or 2Δ with REPLACE_ONE
  """
  once = (GRID_RADIUS + math.sqrt(entries)) * (1 + 2**-50)
  return once * changed_units(relation)


def release_gradient(
  secret: SecretGradient,
  noise_multiplier: float,
  relation: NeighboringRelation,
  source: NoiseSource | None,
) -> Float64[np.ndarray, "p K"]:
  """rint(F/R) + round(Z), in the units of C.

  Formal guarantees: post-processing of the Gaussian mechanism of noise
  multiplier σ, which the caller has paid for. Without a source there is no
  noise: NOT PRIVATE.
  """
  noise: int | Int64[np.ndarray, "p K"] = 0
  if source is not None:
    shape = secret.secret_parts.shape[1:]
    sensitivity = gradient_sensitivity(relation, math.prod(shape))
    noise_sd = math.nextafter(noise_multiplier * sensitivity, math.inf)
    # Before the sum is asked for: it is drawn while the devices work.
    noise = rounded_gaussian(shape, noise_sd, source)
  steps = (secret.secret_sum + STEP_RADIUS // 2) // STEP_RADIUS + noise
  return steps * gradient_step(secret.clip_norm)


@functools.cache
def _adder(mesh: Mesh, loss: Loss, wide: jnp.dtype) -> Callable[..., Array]:
  """Compiles (totals [devices, p, K], W, step, C, log π, chunk) → totals."""

  def add(
    total: Array,
    kernel: Array,
    logit_step: Array,
    clip_norm: Array,
    log_prior: Array | None,
    chunk: StepChunk,
  ) -> Array:
    z, length, label, weight = chunk
    product = exact_product(z, kernel, (2, 2), wide, jnp.float32)
    clipped = clipped_residual(
      product,
      logit_step,
      length,
      label,
      clip_norm,
      loss,
      wide,
      log_prior,
      weight,
    )
    return total + exact_product(z.T, clipped, (2, 3), wide)[None]

  data, same = PartitionSpec("data"), PartitionSpec()
  sharded = jax.shard_map(
    add,
    mesh=mesh,
    in_specs=(data, same, same, same, same, data),
    out_specs=data,
  )
  return jax.jit(sharded, donate_argnums=0)
