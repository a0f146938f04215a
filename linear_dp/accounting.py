"""Converts (ε, δ) to μ² and back, always rounding to the safe side.

A Gaussian release with noise multiplier σ is μ-Gaussian DP with μ² = σ⁻². The
μ² of many releases add up, also when each is chosen after the results of those
before it. dp_accounting solves for σ in floating point; the result is then
moved to the safe side until the theorem holds for it in 50 digits.

Sources: Balle & Wang, "Improving the Gaussian Mechanism for Differential
Privacy" (ICML 2018), theorem 8; Dong, Roth & Su, "Gaussian Differential
Privacy" (JRSS B 2022), corollary 3.3; Smith & Thakurta, "Fully Adaptive
Composition for Gaussian Differential Privacy" (2022).
"""

import decimal
import functools
import math
import numbers
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from oneshot_dp.configs.errors import InputError

ACCOUNTANT = "dp_accounting.gaussian_mechanism (analytic, Balle & Wang 2018)"
NEIGHBORING_RELATION = "REPLACE_SPECIAL"
"""One data set has a privacy unit where the other has nothing; n is public."""

LARGE_EPSILON = 20.0
"""A larger ε needs `allow_weak_privacy`."""

_MARGIN = 1e-9  # relative, larger than the error of the solver in float64
_MAX_EPSILON = 1e6
# The noise of shares of the budget still fits int64 sums.
_MAX_NOISE_MULTIPLIER = 2.0**17
# Far more digits than cancel where ε and 1/σ are small.
_DIGITS = 50


def check_budget(
  epsilon: float,
  delta: float,
  *,
  allow_weak_privacy: bool = False,
  flag: str = "epsilon",
  weak_privacy_flag: str = "--weak-privacy",
) -> None:
  """Refuses an (ε, δ) that is not a privacy guarantee.

  Args:
    epsilon: ε.
    delta: δ.
    allow_weak_privacy: whether an ε above 20 is accepted.
    flag: what messages call ε.
    weak_privacy_flag: what messages call the permission of weak privacy.

  Raises:
    InputError: ε is not positive, or is too large; δ is outside (0, 1); or both
      are so small that nothing could be learned.
  """
  _check_number(flag, epsilon)
  # NaN fails the comparison, too, so it is refused here.
  if not 0 < epsilon <= _MAX_EPSILON:
    advice = ""
    if epsilon == math.inf:
      advice = "; `oneshot-dp sweep --baseline` makes a head without privacy"
    raise InputError(
      f"{flag}={epsilon:g} must be positive, and at most"
      f" {_MAX_EPSILON:g}{advice}."
    )
  if epsilon > LARGE_EPSILON and not allow_weak_privacy:
    raise InputError(
      f"{flag}={epsilon:g} is more than {LARGE_EPSILON:g} and protects almost"
      f" nobody: give a smaller one, or allow it with {weak_privacy_flag}."
    )
  _check_delta(delta)
  # The largest noise that int64 sums have room for must be enough. δ(ε) falls
  # as noise grows, so one evaluation at that noise decides.
  if _delta(_MAX_NOISE_MULTIPLIER**-2, epsilon) > delta:
    raise InputError(
      f"epsilon={epsilon:g} at delta={delta:g} needs so much noise that nothing"
      " could be learned: give a larger epsilon."
    )


def check_delta(
  delta: float,
  n: int,
  *,
  allow_weak_privacy: bool = False,
  weak_privacy_flag: str = "--weak-privacy",
) -> None:
  """Refuses a δ that would allow publishing an example outright.

  Args:
    delta: δ.
    n: the number of private rows.
    allow_weak_privacy: whether a δ of 1/n or more is accepted.
    weak_privacy_flag: what messages call the permission of weak privacy.

  Raises:
    InputError: δ is outside (0, 1), or is 1/n or more.
  """
  _check_delta(delta)
  if delta >= 1 / n and not allow_weak_privacy:
    raise InputError(
      f"delta={delta:g} is not below 1/n = {1 / n:.2g}: such a delta would"
      " allow publishing an example outright; give a smaller one, or allow it"
      f" with {weak_privacy_flag}."
    )


def _check_number(name: str, value: object) -> None:
  if not isinstance(value, numbers.Real):
    raise InputError(f"{name}={value!r} must be a number.")


def _check_delta(delta: float) -> None:
  _check_number("delta", delta)
  if not 0 < delta < 1:
    raise InputError(f"delta={delta} must lie strictly between 0 and 1.")


@functools.lru_cache(maxsize=4096)
def mu_squared_from_epsilon(epsilon: float, delta: float) -> float:
  """Computes the largest μ² that is (ε, δ)-DP, rounded down.

      Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) ≤ δ

  >>> round(mu_squared_from_epsilon(1.0, 1e-6), 4)
  0.056

  Args:
    epsilon: ε.
    delta: δ.

  Returns:
    μ², the sum of σ⁻² over all releases that the budget pays for.

  Raises:
    InputError: (ε, δ) is not a guarantee, or needs more noise than int64 sums
      have room for.

  Source: Balle & Wang (2018), theorem 8.
  """
  check_budget(epsilon, delta, allow_weak_privacy=True)
  from dp_accounting import gaussian_mechanism  # imports SciPy: one second

  # On its way, the solver passes δ = 0, for whose logarithm NumPy warns.
  with np.errstate(divide="ignore"):
    sigma = gaussian_mechanism.get_sigma_gaussian(float(epsilon), delta)
  # The solver's error may be on either side: μ² is lowered until the theorem
  # holds for it in many digits.
  mu_squared = float(sigma) ** -2 * (1 - _MARGIN)
  while _delta(mu_squared, epsilon) > delta:
    mu_squared *= 1 - _MARGIN
  return mu_squared


def noise_multiplier(epsilon: float, delta: float) -> float:
  """Computes σ = 1/μ of one Gaussian release that is (ε, δ)-DP, rounded up.

  Args:
    epsilon: ε.
    delta: δ.

  Returns:
    σ, the standard deviation of the noise over the sensitivity.

  Raises:
    InputError: (ε, δ) is not a guarantee, or needs more noise than int64 sums
      have room for.
  """
  return mu_squared_from_epsilon(epsilon, delta) ** -0.5 * (1 + 2**-50)


@functools.lru_cache(maxsize=4096)
def epsilon_of(mu_squared: float, delta: float) -> float:
  """Computes the ε ≥ 0 of releases that cost μ² together, rounded up.

  Where a unit may be replaced by another one, instead of by nothing, the same
  releases cost 4·μ².

  Args:
    mu_squared: Σ σ⁻² over the releases.
    delta: δ.

  Returns:
    The smallest float64 ε for which they are (ε, δ)-DP.

  Raises:
    InputError: μ² is negative or not finite, or δ is outside (0, 1).
  """
  _check_number("mu_squared", mu_squared)
  if not 0 <= mu_squared < math.inf:
    raise InputError(f"mu_squared={mu_squared} must be finite, 0 or more.")
  _check_delta(delta)
  with mpmath.workdps(_DIGITS):
    mu = mpmath.sqrt(mu_squared)
    if not mu or _delta(mu_squared, 0) <= delta:
      return 0.0
    # Newton's steps on log δ(ε), which is concave, down from the bound on the
    # tail, δ ≤ exp(−(ε − μ²/2)² / 2μ²). The derivative of δ is −e^ε·Φ(−μ/2 −
    # ε/μ).
    root = mu**2 / 2 + mu * mpmath.sqrt(-2 * mpmath.log(delta))
    for _ in range(100):
      delta_at_root = _delta(mu_squared, root)
      slope = mpmath.exp(root) * mpmath.ncdf(-mu / 2 - root / mu)
      step = mpmath.log(delta_at_root / delta) * delta_at_root / slope
      root += step
      if abs(step) <= 1e-25 * root:
        break
    # Rounding to float64 may have gone down: up again, until the theorem holds.
    epsilon = float(root)
    while _delta(mu_squared, epsilon) > delta:
      epsilon = math.nextafter(epsilon, math.inf)
    return epsilon


def sum_mu_squared(costs: Iterable[float | Fraction]) -> float:
  """Returns Σ μ², rounded up: what releases cost together.

  Args:
    costs: the μ² of each release, in any order; a float64 is taken exactly.

  Returns:
    The smallest float64 that is not below the sum; 0 of no releases.
  """
  # Every float64 is a fraction, so the sum is exact and independent of its
  # order. A ledger that adds its charges up again gets the same number.
  exact = sum((Fraction(cost) for cost in costs), Fraction(0))
  total = float(exact)
  return total if Fraction(total) >= exact else math.nextafter(total, math.inf)


@functools.lru_cache(maxsize=1024)  # a ledger repeats few numbers
def format_rounded_up(guarantee: float) -> str:
  """Formats ε or δ with at most five digits, rounded up.

  >>> format_rounded_up(9.95840186), format_rounded_up(1.2345649e-5)
  ('9.9585', '1.2346e-05')

  Args:
    guarantee: an ε or a δ; infinity is printed as "inf".
  """
  if not math.isfinite(guarantee):
    return f"{guarantee:g}"
  # A guarantee that is printed must hold: 1.00001 may not be shown as 1.
  rounding = decimal.Context(prec=5, rounding=decimal.ROUND_CEILING)
  # Of the decimal text: in binary, 1e-5 is a little more than 1e-5.
  return f"{float(rounding.create_decimal(repr(float(guarantee)))):g}"


@functools.lru_cache(maxsize=1024)
def format_rounded_down(noise_multiplier: float) -> str:
  """Formats σ with at most five digits, rounded down.

  >>> format_rounded_down(3.73063), format_rounded_down(0.0)
  ('3.7306', '0')

  Args:
    noise_multiplier: σ, finite.
  """
  # As an ε that is printed may not be too small, a noise may not be too large.
  rounding = decimal.Context(prec=5, rounding=decimal.ROUND_FLOOR)
  return f"{float(rounding.create_decimal(repr(float(noise_multiplier)))):g}"


def _delta(mu_squared: Any, epsilon: Any) -> Any:
  """Returns the δ of releases that cost μ², in 50 digits.

      δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ)

  Source: Balle & Wang (2018), theorem 8.
  """
  # Fifty digits: for a small ε the two terms of δ agree in their first digits,
  # and what is left after subtracting them must still be far more precise than
  # float64.
  with mpmath.workdps(_DIGITS):
    mu = mpmath.sqrt(mu_squared)
    # How likely the privacy loss exceeds ε, with the unit and without it.
    probability_with_unit = mpmath.ncdf(mu / 2 - epsilon / mu)
    probability_without_unit = mpmath.ncdf(-mu / 2 - epsilon / mu)
    return (
      probability_with_unit - mpmath.exp(epsilon) * probability_without_unit
    )
