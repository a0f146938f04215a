r"""The joint release of class moments.

*Sensitivity.* What is released is one vector of four parts, each on a grid
where a row is at most B = 2²⁰ steps long,

    ( √s_M·v(rint(M/B)),  √s_S·S,  √s_T·T,  √s_N·B·N ),   s_M + … + s_N = 1

with v as in `second_moment`, T = Σ_i u_i and M, S, N as in `class_moments`. A
row adds uuᵀ, u, u and 1, and ‖u‖ ≤ B, which is checked in integers: parts move
by at most Δ_M = B + (1 + 2⁻¹⁰)·d, for M is rounded, and B, B and B, as sums are
not. Together:

    Δ² = s_M·Δ_M² + (1 − s_M)·B²

A Gaussian mechanism of deviation sd = σΔ on the vector is noise of sd/√s_p on
part p, of sd/√(2·s_M) beside the diagonal of M, mirrored.
"""

import dataclasses
import math

import numpy as np
from dp_accounting import NeighboringRelation
from jaxtyping import Float64

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares:
  """How the precision 1/σ² is divided: s_M, s_S, s_T and s_N.

  The more classes, the more there is to be seen in S.

  Attributes:
    num_classes: K.
  """

  num_classes: int

  @property
  def moment(self) -> float:
    """s_M = 0.3·(10/max(K, 10))^(1/3)."""
    classes = max(self.num_classes, _FEW_CLASSES)
    return _MOST_FOR_MOMENT * (_FEW_CLASSES / classes) ** (1 / 3)

  @property
  def class_sums(self) -> float:
    """s_S: what the others leave."""
    return 1 - self.moment - self.total - self.class_counts

  @property
  def total(self) -> float:
    """s_T: without it the mean would be as noisy as K sums."""
    return _FOR_TOTAL

  @property
  def class_counts(self) -> float:
    """s_N."""
    return _FOR_COUNTS


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClassMoments:
  """M, S, T and N with noise, in units of one row of norm 1: public.

  Attributes:
    num_examples: n.
    noise_sd: in steps of 1/B, of the joint vector; 0 where there is no noise.
    moment: [d, d] float64, symmetric, perhaps indefinite.
    class_sums: [K, d] float64.
    total: [d] float64.
    class_counts: [K] float64, perhaps negative.
  """

  num_examples: int
  noise_sd: float
  moment: Float64[np.ndarray, "d d"]
  class_sums: Float64[np.ndarray, "K d"]
  total: Float64[np.ndarray, " d"]
  class_counts: Float64[np.ndarray, " K"]


def joint_sensitivity(
  relation: NeighboringRelation, dim: int, num_classes: int
) -> float:
  """L2 sensitivity Δ of the joint vector, in steps of 1/B, rounded up.

  Args:
    relation: REPLACE_ONE is a row removed and a row added, 2Δ.
    dim: d.
    num_classes: K, which the shares depend on.
  """
  once = NeighboringRelation.ADD_OR_REMOVE_ONE
  share = Shares(num_classes=num_classes).moment
  squares = share * moment_sensitivity(once, dim) ** 2
  squares += (1 - share) * GRID_RADIUS**2
  joint = math.sqrt(squares) * (1 + 2**-50)
  return joint * (2 if relation is NeighboringRelation.REPLACE_ONE else 1)


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

  Args:
    secret: the exact moments.
    source: the random bits.
  """

  def __init__(self, secret: SecretClassMoments, source: NoiseSource):
    num_classes, d = secret.secret_class_sums.shape
    self._secret = secret
    shapes = ((num_beside(d),), (d,), (num_classes, d), (d,), (num_classes,))
    self._chains = tuple(GaussianChain(shape, source) for shape in shapes)

  def extend(self, noise_sd: float) -> ClassMoments:
    """The moments with noise until its deviation is `noise_sd`.

    Args:
      noise_sd: in steps of 1/B, larger than the last; σ times
        `joint_sensitivity`. The caller has paid for it.
    """
    shares = Shares(num_classes=len(self._secret.secret_class_sums))
    of_moment = part_sd(noise_sd, shares.moment)
    deviations = (
      beside_sd(of_moment),
      of_moment,
      part_sd(noise_sd, shares.class_sums),
      part_sd(noise_sd, shares.total),
      part_sd(noise_sd, shares.class_counts),
    )
    above, diagonal, *of_sums = (
      chain.extend(sd)
      for chain, sd in zip(self._chains, deviations, strict=True)
    )
    noise = (mirrored(above, diagonal), *of_sums)
    return _in_rows(self._secret, noise_sd, noise)


def _in_rows(
  secret: SecretClassMoments, noise_sd: float, noise: tuple
) -> ClassMoments:
  sums = secret.secret_class_sums
  steps = (
    moment_steps(secret.secret_moment),
    sums,
    secret.secret_total,
    secret.secret_class_counts * GRID_RADIUS,
  )
  moment, class_sums, total, counts = (
    (part + of_part) / GRID_RADIUS
    for part, of_part in zip(steps, noise, strict=True)
  )
  return ClassMoments(
    num_examples=secret.num_examples,
    noise_sd=noise_sd,
    moment=moment,
    class_sums=class_sums,
    total=total,
    class_counts=counts,
  )
