"""What is summed: of each row a vector left, of integers of norm ≤ its weight.

The statistic is Σ_j left_j ⊗ row_j. `PrivateSums.release` truncates left and
checks every norm in integers: what floating-point numbers do here may spoil a
row, never its bound. A `left` is a function of the row, its label, its weight
and public numbers, with the same bits for a row wherever it is: products are of
integers and exact, all else is one IEEE operation on a number of its own, and
no product is added to anything before it was rounded.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import ROW_NORM, room_in_ball

RowStatistic = Callable[..., Any]
KERNEL = 2**24 // ROW_NORM
"""Norm of the longest integer weights: in float32 products with rows are exact,
in half of float64's time."""
_LOGIT, _EXP = 2.0**-12, 2.0**-24  # steps of logits and of exponentials
_STEP = 2.0**22
_POWERS = np.rint(np.exp(-np.arange(2**16) * _LOGIT) / _EXP).astype(np.int32)


def class_sums(row: Array, label: Array, w: Array, classes: Array) -> Array:
  """w·e_y: the sum of each class's rows, [K, d]; the door has a faster way."""
  return jnp.where(label[:, None] == classes, w[:, None], 0)


def ones(row: Array, label: Array, w: Array) -> Array:
  """w: the sum of all rows, [1, d]."""
  return w[:, None]


def itself(row: Array, label: Array, w: Array) -> Array:
  """row·w/R: the second moment, [d, d].

  (M + Mᵀ)/2, after the noise, has exactly the law of a symmetric release.
  """
  return row.astype(jnp.float64) * w[:, None] * (1 / ROW_NORM)


def units(row: Array, label: Array, w: Array) -> Array:
  """w: about how many privacy units have a row that is not null, [1, 1]."""
  return w[:, None]


def class_counts(row: Array, label: Array, w: Array, classes: Array) -> Array:
  """w·e_y: how many units, in parts, are of each of `classes`, [K, 1]."""
  return class_sums(row, label, w, classes)


def right(
  row: Array, label: Array, w: Array, kernels: Array, biases: Array
) -> Array:
  """⌊w/√H⌋ where head h ranks the row's class first, [H, 1].

  `kernels` [H, d, K] and `biases` [H, K] are those of `integer_heads`. Of heads
  that rank alike the first class is first. Estimates are to be scaled by √H.
  """
  share = jnp.floor(w * (1 / math.sqrt(len(kernels)) * (1 - 2**-40)))
  hits = []
  for kernel, bias in zip(kernels, biases, strict=True):
    logits = row.astype(jnp.float64) @ kernel + bias
    hits.append(logits.argmax(axis=1) == label)
  return jnp.where(jnp.stack(hits, axis=1), share[:, None], 0)


ONE_COLUMN = frozenset([units, class_counts, right])
"""Sums of left alone: row is the number R, so that they are [m, 1]."""


def integer_heads(
  kernels: Sequence[Float[np.ndarray, "d K"]],
  biases: Sequence[Float[np.ndarray, " K"]],
) -> tuple[Float64[np.ndarray, "H d K"], Float64[np.ndarray, "H K"]]:
  """Heads of rows at norm 1, as the integers that `right` reads."""
  found = []
  for kernel, bias in zip(kernels, biases, strict=True):
    kernel, bias = np.float64(kernel), np.float64(bias)
    longest = np.sqrt(np.square(kernel).sum(axis=0)).max()
    longest = max(longest, np.abs(bias - bias.mean()).max(), 1e-200)
    grid = 2.0 ** math.floor(math.log2(2**30 / longest))
    shift = (bias - bias.mean()) * (grid * room_in_ball(len(kernels[0])))
    found.append((np.rint(kernel * grid), np.rint(shift)))
  integers, biases = zip(*found, strict=True)
  return np.stack(integers), np.stack(biases)


def integer_kernel(
  kernel: Float64[np.ndarray, "p K"],
) -> tuple[Float64[np.ndarray, "p K"], float]:
  """The nearest weights of integers, and their step for `residual`.

  The kernel is of rows at norm 1. InputError: it is not finite.
  """
  longest = float(np.linalg.norm(kernel, axis=0).max())
  if not math.isfinite(longest):
    raise InputError(f"weights whose longest column has norm {longest}.")
  room = KERNEL - math.sqrt(len(kernel)) / 2 - 1
  power = math.floor(math.log2(room / longest)) if longest > 0 else 0
  return np.rint(np.ldexp(kernel, power)), 2.0**-power / ROW_NORM


def residual(
  row: Array,
  label: Array,
  w: Array,
  kernel: Array,
  step: Array,
  clip: Array,
  log_prior: Array | None = None,
) -> Array:
  """(softmax(l) − e_y)·w/clip, of norm ≤ w: a clipped gradient, [K, d].

  l = row·kernel·step (+ log_prior, public), with the integers of
  `integer_kernel`. The sum is in units of `clip`.
  """
  product = jnp.matmul(
    row.astype(jnp.float32), kernel.astype(jnp.float32), precision="highest"
  )
  logit = jnp.rint(product.astype(jnp.float64) * (step / _LOGIT))
  if log_prior is not None:
    logit = logit + jnp.rint(log_prior * (1 / _LOGIT))
  below = jnp.minimum(logit.max(1, keepdims=True) - logit, len(_POWERS) - 1)
  power = jnp.asarray(_POWERS)[below.astype(jnp.int32)].astype(jnp.int64)
  p = jnp.rint(power * (_STEP / power.sum(1, keepdims=True)))
  r = p - jax.nn.one_hot(label, p.shape[1], dtype=jnp.float64) * _STEP
  norm = jnp.sqrt(jnp.square(r).sum(1, keepdims=True))
  shorter = jnp.minimum(1 / (_STEP * clip), (1 - 2**-40) / jnp.maximum(norm, 1))
  return r * (shorter * w[:, None])
