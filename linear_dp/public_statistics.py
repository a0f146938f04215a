r"""Mean and covariance *from public rows*, to centre and whiten private ones.

    z = A·(x − μ),   A = ((Σ/v + ρ·I)/(1 + ρ))^(−1/2),   v = tr(Σ)/d

or A = I, where the mean is enough. A feature of the mean variance v keeps its
scale, so that norms stay of the size that they were.

A head of z is folded into one of rows as they are:

    W·z + b = (W·A)·x + (b − W·A·μ)

*Why it costs nothing.* μ and A are of public rows, and z is a function of x
alone, bit for bit, wherever the row comes and whatever comes beside it: so
neighbouring data sets are still neighbours, and the sums of z have the
sensitivity that sums of x have. x − μ is one IEEE operation per number. A BLAS
product is not: the order of its additions may depend on the size of a block and
on where in it a row is. So it is made of integers,

    u = rint(2^a·(x − μ)),  ‖u‖ ≤ 2²⁶,    A = 2^(−j)·M,  columns of M ≤ 2²⁶

with the power a of a row read off its own largest number (a maximum has no
order). So u·M is exact (see `exact_map`), and 2^(−a−j)·(u·M) is rounded once,
to float32, number by number.
"""

import dataclasses
from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.rows.block import RowBlock, checked
from oneshot_dp.linear_dp.statistics.exact_map import check_integers

RIDGE = 10.0
"""ρ, in mean variances of a feature: only the few directions in which images
vary most are damped. Less would whiten those in which classes hardly differ: on
CIFAR-10 features, with other CIFAR-10 images as the public rows, LAMB has
78.4 % at 0.01, 85.0 % at 1, 87.0 % at 10 and 86.6 % by the mean alone."""
_NORM_BITS = 26
"""‖u‖ and the columns of M have as many; twice this is below float64's 53."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicMatrix:
  """A = 2^(−exponent)·integers, whose columns' norms are at most 2²⁶."""

  integers: Float64[np.ndarray, "d d"]
  exponent: int

  def __post_init__(self):
    check_integers(self.integers, 2**_NORM_BITS)

  @classmethod
  def of(cls, matrix: Float64[np.ndarray, "d d"]) -> "PublicMatrix":
    """The nearest one whose columns are long enough to be precise."""
    longest = np.linalg.norm(matrix, axis=0).max()
    # longest < 2^bits; rounding lengthens a column by √d/2 at most, so that one
    # bit less leaves it room for any d that fits in memory.
    _, bits = np.frexp(longest)
    exponent = _NORM_BITS - 1 - int(bits)
    return cls(integers=np.rint(np.ldexp(matrix, exponent)), exponent=exponent)

  @property
  def matrix(self) -> Float64[np.ndarray, "d d"]:
    """A, exactly."""
    return np.ldexp(self.integers, -self.exponent)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PublicStatistics:
  """x ↦ A·(x − μ), but 0 ↦ 0: the null row stays one. No A is the identity."""

  mean: Float32[np.ndarray, " d"]
  whitening: PublicMatrix | None = None

  @classmethod
  def of_blocks(
    cls,
    read: Callable[[], Iterable[RowBlock]],
    *,
    feature_dim: int,
    num_classes: int,
    num_examples: int,
    whiten: bool,
  ) -> "PublicStatistics":
    """Measures public rows, read once, or twice to take the covariance too."""

    def embeddings() -> Iterable[Float64[np.ndarray, "rows d"]]:
      for block in checked(
        read(),
        feature_dim=feature_dim,
        num_classes=num_classes,
        num_examples=num_examples,
      ):
        yield block.embedding.astype(np.float64)

    total = np.zeros(feature_dim)
    for rows in embeddings():
      total += rows.sum(axis=0)
    exact_mean = total / num_examples
    if not np.isfinite(exact_mean).all():
      raise InputError(
        "The public cache has an embedding that is not finite: run `oneshot-dp"
        " verify` on it."
      )
    mean = exact_mean.astype(np.float32)
    if not whiten:
      return cls(mean=mean)
    covariance = np.zeros((feature_dim, feature_dim))
    for rows in embeddings():
      rows -= exact_mean
      covariance += rows.T @ rows
    return cls(mean=mean, whitening=_whitening(covariance / num_examples))

  def mapped(
    self, embedding: Float[np.ndarray, "rows d"]
  ) -> Float32[np.ndarray, "rows d"]:
    """z of each row; NaN or infinities where it is not finite in float32.

    Formal guarantees: a row of the result is a function of that row alone; see
    the module. A row of zeros stays one: it stands for a row that is not there
    (REPLACE_SPECIAL), and −A·μ would be a contribution.
    """
    with np.errstate(over="ignore", invalid="ignore"):
      mapped = embedding.astype(np.float32) - self.mean
      if self.whitening is not None:
        integers, power = exact_integers(mapped)
        exact = integers @ self.whitening.integers
        back = np.ldexp(1.0, -power - self.whitening.exponent)
        mapped = (exact * back).astype(np.float32)
    mapped[~embedding.any(axis=1)] = 0
    return mapped

  def folded(self, head: LinearHead) -> LinearHead:
    """The head of rows as they are that a head of mapped rows amounts to.

    Its biases are rounded to float32 at the size of W·A·μ, in which a learning
    rate of a millionth would drown.
    """
    if head.unit_norm:
      raise InputError("a head of mapped rows at norm 1 cannot be folded.")
    kernel = np.asarray(head.kernel, np.float64)
    if self.whitening is not None:
      kernel = self.whitening.matrix @ kernel
    bias = np.asarray(head.bias, np.float64) - self.mean @ kernel
    return LinearHead(
      kernel=kernel.astype(np.float32), bias=bias.astype(np.float32)
    )


def _whitening(covariance: Float64[np.ndarray, "d d"]) -> PublicMatrix:
  mean_variance = np.trace(covariance) / len(covariance)
  if not mean_variance > 0:
    raise InputError(
      "The rows of the public cache are all alike: they have no covariance to"
      " whiten by; use their mean alone."
    )
  values, vectors = np.linalg.eigh(covariance)
  relative = np.maximum(values, 0) / mean_variance
  scale = np.sqrt((relative + RIDGE) / (1 + RIDGE))
  return PublicMatrix.of((vectors / scale) @ vectors.T)


def exact_integers(
  rows: Float32[np.ndarray, "rows d"],
) -> tuple[Float64[np.ndarray, "rows d"], Int32[np.ndarray, "rows 1"]]:
  """u = rint(2^a·x) of each row, with ‖u‖ ≤ 2²⁶, and a."""
  wide = rows.astype(np.float64)
  _, bits = np.frexp(np.abs(wide).max(axis=1, keepdims=True))
  # Every |x| < 2^bits becomes at most 2²⁶/√d.
  half_dim_bits = ((rows.shape[1] - 1).bit_length() + 1) // 2
  power = _NORM_BITS - half_dim_bits - bits
  return np.rint(wide * np.ldexp(1.0, power)), power
