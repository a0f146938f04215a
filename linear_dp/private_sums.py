r"""The Gaussian mechanism: the only release point of private rows.

    Σ_j left_j ⊗ row_j + round(Z),   Z ~ N(0, sd²),   sd = W·R/μ

The sum has sensitivity W·R to a privacy unit or nothing in its place, because
`sum_kernels` checks every norm in integers where it is added. Rounding the
noise is post-processing: sums are of integers, so G + round(Z) = round(G + Z).
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from oneshot_dp.configs.errors import RunError
from oneshot_dp.linear_dp.dataset import digest_of
from oneshot_dp.linear_dp.noise import NoiseSource, rounded_gaussian
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.rows import Rows
from oneshot_dp.linear_dp.statistics import RowStatistic, class_sums
from oneshot_dp.linear_dp.sum_kernels import exact_sum

# Noise is larger by so little, so that shares of a budget whose sum was rounded
# up never cost more than all of it.
_NOISE_SLACK = 1 + 2**-40


class Release(NamedTuple):
  """A noisy sum that was released, or several of one shape and noise.

  Attributes:
    name: what receipts call it.
    shape: of the sum, [m, p].
    noise_multiplier: σ, the standard deviation of the noise over the
      sensitivity.
    count: how many were released one after the other, each with noise of its
      own. A receipt may state a count that no memory could hold one by one.
  """

  name: str
  shape: tuple[int, ...]
  noise_multiplier: float
  count: int = 1


class PrivateSums:
  """The Gaussian mechanism on private rows, and the account of its budget.

  Formal guarantees: everything released is post-processing of Gaussian
  mechanisms, each of sensitivity W·R to a unit or nothing in its place, whose
  μ² = Σ σ⁻², in rationals, is at most `mu_squared_budget`, however each was
  chosen after those before it. Sums have the same bits for any order of rows,
  devices and hosts.

  Attributes:
    source: the random bits of the noise; None means no noise, which is NOT
      PRIVATE.
    mu_squared_budget: μ² that all releases together may cost.
    releases: everything released so far, in order.
    estimates: for each statistic, the mean of all noisy sums of it that were
      ever released, weighed by their precision, and its precision σ⁻².

  Source: Smith & Thakurta, "Fully Adaptive Composition for Gaussian
  Differential Privacy" (2022).
  """

  def __init__(
    self,
    source: NoiseSource | None,
    mu_squared_budget: float | Fraction,
    estimates: Mapping[str, tuple[Float64[np.ndarray, "..."], float]]
    | None = None,
  ):
    """Opens an account.

    Args:
      source: the random bits of the noise; None means no noise, which is NOT
        PRIVATE.
      mu_squared_budget: μ², which was charged to the ledger beforehand.
      estimates: what was released of the same rows before, and is public.
    """
    self.source = source
    self.mu_squared_budget = Fraction(mu_squared_budget)
    self.releases: list[Release] = []
    self.estimates = dict(estimates or {})
    self._spent_mu_squared = Fraction(0)

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
    """Releases a noisy sum.

    Args:
      name: what receipts call it.
      rows: the private rows.
      statistic: what is summed over them.
      mu_squared: μ² = σ⁻², what this release costs; any positive number where
        there is no noise.
      public: what the statistic takes besides the row, its label and weight:
        released before, or a function of nothing private.
      cache: whether the exact sum is kept for a later release of the same
        statistic, and the noisy one is averaged into what was released before.
        False for sums that are released once, such as gradients.

    Returns:
      A pair. The estimate, float64 [m, p], is the mean, weighted by precision,
      of all that was ever released of this statistic; its unit is a row of norm
      1 at a unit's full weight. The noise multiplier of the estimate is 0
      without noise.

    Raises:
      RunError: the release would exceed the budget, or `rows` are weighted for
        class sums alone and the statistic is another; raised before anything
        is computed.
    """
    # Rows of order 2 have weights with Σ w² ≤ W², so Σ w may exceed W. Only the
    # class sums, whose blocks are orthogonal, keep sensitivity W·R with such
    # weights.
    if rows.weight_norm_order != 1 and statistic is not class_sums:
      raise RunError(
        f"{name}: these rows are weighted for class sums alone; nothing was"
        " released."
      )
    # W·R, in the integers of the sum. It is public: W follows from n, R is a
    # constant.
    sensitivity = rows.data.weight * ROW_NORM
    # The budget is spent before the sum is computed and noise is drawn.
    sd = math.inf
    cost = Fraction(0)
    if self.source is not None:
      sd, cost = self._spend(name, mu_squared, sensitivity)

    # The key says which function of the rows the sum is, by public facts alone.
    # It is saved with heads, so a later run that asks for the same function
    # finds it.
    key = digest_of(statistic.id, rows.identity, *public)

    def own_sum() -> Int64[np.ndarray, "m p"]:
      if not cache:
        return exact_sum(rows, statistic, public)
      return rows.sum_cache.get(key, lambda: exact_sum(rows, statistic, public))

    total = rows.data.hosts.sum(own_sum)
    if self.source is None:
      return total / sensitivity, 0.0

    # Only here does a private number become public. If each host drew its own
    # noise, hosts would hold several noisy copies of one sum, whose mean has
    # less noise than was paid for, and would compute different weights.
    # Host 0 draws the noise, and all hosts get the same noisy sum.
    source = self.source
    noisy = rows.data.hosts.from_first(
      lambda: total + rounded_gaussian(total.shape, sd, source), total.shape
    )
    self.releases.append(Release(name, total.shape, sd / sensitivity))
    # From here on, numbers are public: a later release of the same statistic
    # adds its precision to this one's.
    new_precision = float(cost)
    estimate, precision = self.estimates.get(f"{name}/{key}", (0.0, 0.0))
    weighted = precision * estimate + new_precision * (noisy / sensitivity)
    precision = precision + new_precision
    estimate = weighted / precision
    if cache:
      self.estimates[f"{name}/{key}"] = estimate, precision
    return estimate, precision**-0.5

  def _spend(
    self, name: str, mu_squared: float, sensitivity: int
  ) -> tuple[float, Fraction]:
    """Takes a release off the budget.

    Returns:
      The standard deviation of the noise, rounded up, and its exact cost μ².

    Raises:
      RunError: the cost is not a positive number, or exceeds what is left.
    """
    if not 0 < mu_squared < math.inf:
      raise RunError(
        f"{name}: mu_squared={mu_squared} must be positive and finite; nothing"
        " was released."
      )
    # The account is kept of the float64 `sd` that noise is really drawn with,
    # as an exact fraction, so no rounding of σ or μ² can let a run exceed its
    # charge.
    sd = sensitivity / math.sqrt(mu_squared) * _NOISE_SLACK
    cost = (sensitivity / Fraction(sd)) ** 2
    if self._spent_mu_squared + cost > self.mu_squared_budget:
      raise RunError(
        f"{name}: the release would exceed the charged budget; nothing was"
        " released."
      )
    # Spent before anything can fail: an error later on leaves the budget
    # smaller than it need be, and never larger.
    self._spent_mu_squared += cost
    return sd, cost
