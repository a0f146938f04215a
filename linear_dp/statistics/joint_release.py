r"""The joint release of class moments.

One vector of four parts, each on a grid where a row is at most B = 2²⁰ steps
long,

    ( √s_M·v(rint(M/B)),  √s_S·S,  √s_T·T,  √s_N·B·N ),   s_M + … + s_N = 1

with v as in `second_moment`, T = Σ_i u_i and M, S, N as in `class_moments`. A
row adds uuᵀ, u, u and 1, and ‖u‖ ≤ B: parts move by at most Δ_M = B + (1 +
2⁻¹⁰)·d, for M is rounded, and B, B and B, as sums are not. Together:

    Δ² = s_M·Δ_M² + (1 − s_M)·B²

A Gaussian mechanism of deviation sd = σΔ on the vector is noise of sd/√s_p on
part p, of sd/√(2·s_M) beside the diagonal of M, mirrored.
"""

import dataclasses
import math
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float64

from oneshot_dp.linear_dp.accounting.events import changed_units
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.noise.rounded_gaussian import GaussianChain
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.statistics.class_moments import SecretClassMoments
from oneshot_dp.linear_dp.statistics.second_moment import (
  beside_sd,
  mirrored,
  moment_sensitivity,
  moment_steps,
  num_beside,
)

_MOST_FOR_MOMENT = 0.3
_FEW_CLASSES = 10
_FOR_TOTAL = 0.05
_FOR_COUNTS = 0.05


class Shares(NamedTuple):
  """How the precision 1/σ² is divided: s_M, s_S, s_T and s_N.

  Without s_T the mean would be as noisy as K sums.
  """

  moment: float
  class_sums: float
  total: float = _FOR_TOTAL
  class_counts: float = _FOR_COUNTS

  @classmethod
  def of(cls, num_classes: int) -> Self:
    """s_M = 0.3·(10/max(K, 10))^(1/3): with more classes, S has more to say."""
    few = _FEW_CLASSES / max(num_classes, _FEW_CLASSES)
    moment = _MOST_FOR_MOMENT * few ** (1 / 3)
    return cls(moment, 1 - moment - _FOR_TOTAL - _FOR_COUNTS)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClassMoments:
  """M, S, T and N with noise, in units of one row of norm 1: public.

  M is symmetric, perhaps indefinite; counts may be negative.
  """

  num_examples: int
  has_units: bool = False
  noise_sd: float
  """In steps of 1/B, of the joint vector; 0 where there is no noise."""
  moment: Float64[np.ndarray, "d d"]
  class_sums: Float64[np.ndarray, "K d"]
  total: Float64[np.ndarray, " d"]
  class_counts: Float64[np.ndarray, " K"]

  @property
  def values(self) -> Float64[np.ndarray, " values"]:
    """All numbers of the four parts, one after another."""
    parts = self.moment, self.class_sums, self.total, self.class_counts
    return np.concatenate([part.ravel() for part in parts])

  @classmethod
  def of_values(
    cls, values: Float64[np.ndarray, " values"], d: int, **sizes: Any
  ) -> Self:
    """The moments of dimension d that `values` are the numbers of."""
    num_classes = len(values[d * (d + 1) :]) // (d + 1)
    ends = np.cumsum([d * d, num_classes * d, d])
    moment, class_sums, total, class_counts = np.split(values, ends)
    return cls(
      moment=moment.reshape(d, d),
      class_sums=class_sums.reshape(num_classes, d),
      total=total,
      class_counts=class_counts,
      **sizes,
    )

  @property
  def size(self) -> float:
    """What all rows weigh: n; of units, about how many there are."""
    if not self.has_units:
      return float(self.num_examples)
    return max(1.0, float(self.class_counts.sum()))


def joint_sensitivity(
  relation: NeighboringRelation, dim: int, num_classes: int
) -> float:
  """L2 sensitivity Δ (REPLACE_ONE: 2Δ), in steps of 1/B, rounded up."""
  once = NeighboringRelation.REPLACE_SPECIAL
  share = Shares.of(num_classes).moment
  squares = share * moment_sensitivity(once, dim) ** 2
  squares += (1 - share) * GRID_RADIUS**2
  joint = math.sqrt(squares) * (1 + 2**-50)
  return joint * changed_units(relation)


def part_sd(noise_sd: float, share: float) -> float:
  """sd/√s, rounded up: the noise on a part of the vector."""
  return noise_sd / math.sqrt(share) * (1 + 2**-50)


def without_noise(secret: SecretClassMoments) -> ClassMoments:
  """What is released, without noise: NOT PRIVATE."""
  return _in_rows(secret, 0.0, (0, 0, 0, 0))


class Releases:
  r"""Noisy moments, each the last plus more noise.

  Formal guarantees: each is post-processing of the Gaussian mechanism of
  deviation `noise_sd` on the joint vector of the module: noise of sd/√s on an
  integer, rounded exactly, is noise of sd on √s times the integer. All later
  ones are functions of the first, before it was rounded, and of independent
  noise (see `GaussianChain`).
  """

  def __init__(self, secret: SecretClassMoments, source: NoiseSource):
    num_classes, d = secret.secret_class_sums.shape
    self._secret = secret
    shapes = ((num_beside(d),), (d,), (num_classes, d), (d,), (num_classes,))
    self._chains = tuple(GaussianChain(shape, source) for shape in shapes)

  def extend(self, noise_sd: float) -> ClassMoments:
    """The moments with noise until its deviation is `noise_sd`.

    That is σ times `joint_sensitivity`, larger than the last; it is paid for.
    """
    shares = Shares.of(len(self._secret.secret_class_sums))
    of_moment, *others = (part_sd(noise_sd, share) for share in shares)
    deviations = (beside_sd(of_moment), of_moment, *others)
    above, diagonal, *of_sums = (
      chain.extend(sd)
      for chain, sd in zip(self._chains, deviations, strict=True)
    )
    noise = (mirrored(above, diagonal), *of_sums)
    return _in_rows(self._secret, noise_sd, noise)


def _in_rows(
  secret: SecretClassMoments, noise_sd: float, noise: tuple
) -> ClassMoments:
  parts = {
    "moment": moment_steps(secret.secret_moment),
    "class_sums": secret.secret_class_sums,
    "total": secret.secret_total,
    "class_counts": secret.secret_class_counts
    * (GRID_RADIUS // secret.count_steps),
  }
  return ClassMoments(
    num_examples=secret.num_examples,
    has_units=secret.count_steps > 1,
    noise_sd=noise_sd,
    **{
      name: (part + of_part) / GRID_RADIUS
      for (name, part), of_part in zip(parts.items(), noise, strict=True)
    },
  )
