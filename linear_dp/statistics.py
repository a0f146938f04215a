"""The statistics that are summed over private rows.

Each statistic is a sum of outer products Σ_j left_j ⊗ row_j, and is defined by
its left factor: a vector of a row, its label, its weight and public numbers.
`PrivateSums.release` truncates left factors to integers and checks the norm of
each where it is added, so that no rounding in this file can break the bound on
sensitivity; it can only spoil what a row adds.

A left factor must have the same bits for a row wherever the row lies. That is
why products here are of integers and exact, everything else is one IEEE
operation on numbers of the row's own, and no product is added to anything
before it was rounded: a compiler that fuses or reorders changes nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.quantize import ROW_NORM, room_in_ball

KERNEL_NORM = 2**24 // ROW_NORM
"""Largest norm of a column of integer weights. Products with rows stay below
2²⁴, so float32 multiplies them exactly, in half of float64's time."""

# Softmax by integers: logits are multiples of _LOGIT_STEP, exponentials of
# _EXP_STEP, and probabilities are counted in units of 1/_PROBABILITY_UNITS.
_LOGIT_STEP = 2.0**-12
_EXP_STEP = 2.0**-24
_PROBABILITY_UNITS = 2.0**22
# Devices differ in the last bits of exp. With a table of integers from the
# host, a row adds the same bits wherever it is summed.
_EXP_TABLE = np.rint(np.exp(-np.arange(2**16) * _LOGIT_STEP) / _EXP_STEP)
_EXP_TABLE = _EXP_TABLE.astype(np.int32)


@dataclasses.dataclass(frozen=True)
class RowStatistic:
  """A sum over rows, Σ_j left_j ⊗ row_j, defined by its left factor.

  Attributes:
    id: identifies the statistic in saved heads, so that a later run averages
      what it buys with what was released before. Ids never change.
    left_factor: computes (row [c, d], label [c], weight [c], *public) → [c, m],
      where a row's left factor is to have a norm of at most its weight.
    one_column: whether the left factors alone are summed: each row counts as
      the number R, and the sum is [m, 1].
    scales_units: whether the left factors of a privacy unit of many rows are
      scaled together until what the unit adds has norm W·R; see `unit_norms`.
  """

  id: str
  left_factor: Callable[..., Array]
  one_column: bool = False
  scales_units: bool = False

  def __call__(
    self, row: Array, label: Array, weight: Array, *public: Array | None
  ) -> Array:
    return self.left_factor(row, label, weight, *public)


def row_statistic(
  *, id: str, one_column: bool = False, scales_units: bool = False
) -> Callable[[Callable[..., Array]], RowStatistic]:
  """Decorates a left factor: makes it the statistic of this id.

  Args:
    id: the saved name of the statistic, unique among all; it never changes.
    one_column: whether only the left factors are summed, as counts are.
    scales_units: whether the left factors of a unit are scaled together.

  Returns:
    A decorator from a left factor, as `RowStatistic` describes it, to a
    `RowStatistic` that can be called as the function was.
  """

  def decorate(left_factor: Callable[..., Array]) -> RowStatistic:
    return RowStatistic(id, left_factor, one_column, scales_units)

  return decorate


@row_statistic(id="class_sums")
def class_sums(
  row: Array, label: Array, weight: Array, classes: Array
) -> Array:
  """w·e_y: the weighted sum of the rows of each class, [K, d].

  `sum_kernels` adds it up by a scatter, which needs no products; this function
  is for those who want the left factors themselves, as the audit does.

  Args:
    row: not used: a left factor says by what the row is multiplied.
    label: int32 [c].
    weight: integers w [c].
    classes: the numbers of all classes, 0 to K − 1, [K].

  Returns:
    Left factors [c, K], of the norm w exactly.
  """
  # One entry is w and the others are 0, so the norm is w without any
  # arithmetic.
  return jnp.where(label[:, None] == classes, weight[:, None], 0)


@row_statistic(id="ones")
def row_weights(row: Array, label: Array, weight: Array) -> Array:
  """w: the weighted sum of all rows, [1, d].

  Args:
    row: not used.
    label: not used; the mean of the rows is that of all classes.
    weight: integers w [c].

  Returns:
    Left factors [c, 1].
  """
  return weight[:, None]


@row_statistic(id="itself")
def second_moment(row: Array, label: Array, weight: Array) -> Array:
  """row·w/R: the weighted sum of row ⊗ row, [d, d].

  After noise, (M + Mᵀ)/2 has exactly the law of a symmetric release.

  Args:
    row: integers [c, d] with ‖row‖ ≤ R.
    label: not used.
    weight: integers w [c].

  Returns:
    Left factors, float64 [c, d], along the rows themselves.
  """
  # ‖row‖ ≤ R, so this is no longer than w. R is a power of two: the products
  # are exact, and the truncation to integers is the only rounding.
  return row.astype(jnp.float64) * weight[:, None] * (1 / ROW_NORM)


@row_statistic(id="units", one_column=True)
def unit_count(row: Array, label: Array, weight: Array) -> Array:
  """w: about how many privacy units have a row that is not zero, [1, 1].

  A unit whose rows weigh W together counts for one, and never for more.

  Args:
    row: not used.
    label: not used.
    weight: integers w [c]; 0 for rows of zeros.

  Returns:
    Left factors [c, 1].
  """
  return weight[:, None]


@row_statistic(id="class_counts", one_column=True)
def class_counts(
  row: Array, label: Array, weight: Array, classes: Array
) -> Array:
  """w·e_y: how many units, in fractions, belong to each class, [K, 1].

  Args:
    row: not used.
    label: int32 [c].
    weight: integers w [c].
    classes: the numbers of all classes, 0 to K − 1, [K].

  Returns:
    Left factors [c, K], of the norm w exactly.
  """
  return jnp.where(label[:, None] == classes, weight[:, None], 0)


@row_statistic(id="right", one_column=True)
def correct_predictions(
  row: Array, label: Array, weight: Array, kernels: Array, biases: Array
) -> Array:
  """⌊w/√H⌋ for each of H heads that predicts the row's class, [H, 1].

  Of classes with equal logits the first one is predicted. The counts are to be
  multiplied by √H.

  Args:
    row: integers [c, d].
    label: [c].
    weight: [c].
    kernels: [H, d, K], from `integer_heads`.
    biases: [H, K], from `integer_heads`.

  Returns:
    Left factors [c, H], of norm w at most.
  """
  # H entries of at most w/√H have norm w together. The factor 1 − 2⁻⁴⁰ is
  # larger than the rounding of the square root, so no row is dropped for one
  # unit too much.
  share = jnp.floor(weight * (1 / math.sqrt(len(kernels)) * (1 - 2**-40)))
  hits = []
  for kernel, bias in zip(kernels, biases, strict=True):
    logits = row.astype(jnp.float64) @ kernel + bias
    hits.append(logits.argmax(axis=1) == label)
  return jnp.where(jnp.stack(hits, axis=1), share[:, None], 0)


@row_statistic(id="prediction_gain", one_column=True)
def prediction_gain(
  row: Array, label: Array, weight: Array, kernels: Array, biases: Array
) -> Array:
  """w where the second of two heads alone is right, −w where the first, [1, 1].

  Both right counts would cost twice the noise in each: a row may be right in
  both, but it moves their difference by its weight at most.

  Args:
    row: integers [c, d].
    label: [c].
    weight: [c].
    kernels: [2, d, K], from `integer_heads`.
    biases: [2, K], from `integer_heads`.

  Returns:
    Left factors [c, 1]: w, −w, or 0 where both are right or both wrong.
  """
  first, second = (
    (row.astype(jnp.float64) @ kernel + bias).argmax(axis=1) == label
    for kernel, bias in zip(kernels, biases, strict=True)
  )
  gain = second.astype(jnp.int32) - first.astype(jnp.int32)
  return (gain * weight)[:, None]


@row_statistic(id="residual", scales_units=True)
def residual(
  row: Array,
  label: Array,
  weight: Array,
  kernel: Array,
  step: Array,
  clip: Array,
  log_prior: Array | None = None,
) -> Array:
  """(softmax(l) − e_y)·w/C, no longer than w: a clipped gradient, [K, d].

      l = row·kernel·step (+ log_prior)

  The sum is in units of C. The left factors of a privacy unit of many rows are
  then scaled together; see `unit_norms`. The order of the operations below is
  what makes their bits independent of devices and compilers.

  Args:
    row: integers [c, d].
    label: [c].
    weight: [c].
    kernel: integers [d, K], from `integer_kernel`.
    step: what one unit of row·kernel is worth, from `integer_kernel`.
    clip: C, the norm to which softmax(l) − e_y is clipped.
    log_prior: public logarithms of class shares, [K], added to the logits.

  Returns:
    Left factors, float64 [c, K], of norm w at most.
  """
  # The kernel's columns have norm at most 2²⁴/R, so every partial sum of a
  # product is an integer below 2²⁴, which float32 holds: exact in any order.
  # Logits: an exact product of integers, then rounded to the grid.
  product = jnp.matmul(
    row.astype(jnp.float32), kernel.astype(jnp.float32), precision="highest"
  )
  logit = jnp.rint(product.astype(jnp.float64) * (step / _LOGIT_STEP))
  if log_prior is not None:
    logit = logit + jnp.rint(log_prior * (1 / _LOGIT_STEP))
  # Softmax from a table of integer exponentials, whose sum is exact.
  distance = logit.max(1, keepdims=True) - logit
  index = jnp.minimum(distance, len(_EXP_TABLE) - 1).astype(jnp.int32)
  power = jnp.asarray(_EXP_TABLE)[index].astype(jnp.int64)
  p = jnp.rint(power * (_PROBABILITY_UNITS / power.sum(1, keepdims=True)))
  # Probabilities are integers as well, so the residual and its squares are
  # exact, and only what follows is rounded, each time by one operation on one
  # number.
  one_hot = jax.nn.one_hot(label, p.shape[1], dtype=jnp.float64)
  r = p - one_hot * _PROBABILITY_UNITS
  # The clip: scaled by 1/C, or by 1/norm where that is shorter.
  norm = jnp.sqrt(jnp.square(r).sum(1, keepdims=True))
  scale = jnp.minimum(
    1 / (_PROBABILITY_UNITS * clip), (1 - 2**-40) / jnp.maximum(norm, 1)
  )
  return r * (scale * weight[:, None])


def integer_heads(
  kernels: Sequence[Float[np.ndarray, "d K"]],
  biases: Sequence[Float[np.ndarray, " K"]],
) -> tuple[Float64[np.ndarray, "H d K"], Float64[np.ndarray, "H K"]]:
  """Rounds H heads to integers, for `correct_predictions`.

  Args:
    kernels: of heads that classify rows at norm 1, each [d, K].
    biases: each [K].

  Returns:
    The kernels [H, d, K] and biases [H, K], each head on a grid of its own that
    keeps its ranking and leaves products with rows exact in float64.
  """
  integer_kernels = []
  integer_biases = []
  for kernel, bias in zip(kernels, biases, strict=True):
    kernel64 = np.asarray(kernel, np.float64)
    bias64 = np.asarray(bias, np.float64)
    # What all biases have in common ranks no class above another, and would use
    # up the bits of the grid.
    centered = bias64 - bias64.mean()
    longest = np.sqrt(np.square(kernel64).sum(axis=0)).max()
    longest = max(longest, np.abs(centered).max(), 1e-200)
    # A power of two, so that scaling rounds nothing. Columns of norm 2³⁰ times
    # rows of norm 2¹⁴ stay below 2⁵³ with the bias, which is scaled as a row at
    # norm 1 is.
    grid = 2.0 ** math.floor(math.log2(2**30 / longest))
    integer_kernels.append(np.rint(kernel64 * grid))
    scale = grid * room_in_ball(len(kernel64))
    integer_biases.append(np.rint(centered * scale))
  return np.stack(integer_kernels), np.stack(integer_biases)


def integer_kernel(
  kernel: Float64[np.ndarray, "p K"],
) -> tuple[Float64[np.ndarray, "p K"], float]:
  """Rounds weights to integers, for `residual`.

  Args:
    kernel: weights [p, K] for rows at norm 1.

  Returns:
    The integer weights [p, K], and what one unit of their product with a row
    of integers is worth.

  Raises:
    InputError: the weights are not finite.
  """
  longest = float(np.linalg.norm(kernel, axis=0).max())
  if not math.isfinite(longest):
    raise InputError(f"weights whose longest column has norm {longest}.")
  # √p/2 is what rounding adds to a column's norm at most.
  room = KERNEL_NORM - math.sqrt(len(kernel)) / 2 - 1
  # The largest power of two that fits, so that scaling back is exact.
  power = 0
  if longest > 0:
    power = math.floor(math.log2(room / longest))
  return np.rint(np.ldexp(kernel, power)), 2.0**-power / ROW_NORM
