"""From (epsilon, delta) to μ² and back, always to the safe side.

A Gaussian release of noise multiplier σ is μ-Gaussian DP with μ² = σ⁻², and
μ² of many releases, each chosen after those before it, add up. dp_accounting
solves for σ, which is raised until the theorem, in 50 digits, holds of it.

Sources: Balle & Wang, "Improving the Gaussian Mechanism for Differential
Privacy" (ICML 2018), theorem 8; Dong, Roth & Su, "Gaussian Differential
Privacy" (JRSS B 2022), corollary 3.3; Smith & Thakurta, "Fully Adaptive
Composition for Gaussian Differential Privacy" (2022).
"""

import decimal
import functools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np

from oneshot_dp.configs.errors import InputError

ACCOUNTANT = "dp_accounting.gaussian_mechanism (analytic, Balle & Wang 2018)"
NEIGHBORING_RELATION = "REPLACE_SPECIAL"  # a unit or nothing, with n public
LARGE_EPSILON = 20.0  # to be allow_weak_privacy on
_MARGIN = 1e-9  # relative, above the error of the solver in float64
_MAX_EPSILON = 1e6
_MAX_NOISE_MULTIPLIER = 2.0**17  # its parts still fit the noise of int64 sums
_DIGITS = 50  # far more than cancel where epsilon and 1/σ are small


def check_budget(
  epsilon: float,
  delta: float,
  *,
  allow_weak_privacy: bool = False,
  flag: str = "epsilon",
) -> None:
  """InputError for an (epsilon, delta) that is not a privacy guarantee."""
  if not 0 < epsilon <= _MAX_EPSILON:
    raise InputError(
      f"{flag}={epsilon:g} must be positive, and at most {_MAX_EPSILON:g}; for"
      " no privacy at all there is the --baseline of sweep."
    )
  if epsilon > LARGE_EPSILON and not allow_weak_privacy:
    raise InputError(
      f"{flag}={epsilon:g} is more than {LARGE_EPSILON:g} and protects almost"
      " nobody: give a smaller one, or insist with --weak-privacy."
    )
  _check_delta(delta)
  if _delta(_MAX_NOISE_MULTIPLIER**-2, epsilon) > delta:
    raise InputError(
      f"epsilon={epsilon:g} at delta={delta:g} needs so much noise that nothing"
      " could be learned: give a larger epsilon."
    )


def check_delta(
  delta: float, n: int, *, allow_weak_privacy: bool = False
) -> None:
  """InputError for a delta that publishing a random example would satisfy."""
  _check_delta(delta)
  if delta >= 1 / n and not allow_weak_privacy:
    raise InputError(
      f"delta={delta:g} is not below 1/n = {1 / n:.2g}: publishing one example"
      " would pass for private; give a smaller one, or insist (--weak-privacy)."
    )


def _check_delta(delta: float) -> None:
  if not 0 < delta < 1:
    raise InputError(f"delta={delta} must lie strictly between 0 and 1.")


@functools.lru_cache(maxsize=4096)
def mu_squared_from_epsilon(epsilon: float, delta: float) -> float:
  """The most μ² that is (ε, δ)-private, rounded down.

      Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) ≤ δ

  >>> round(mu_squared_from_epsilon(1.0, 1e-6), 4)
  0.056

  InputError: the budget is none, or needs absurd noise.
  """
  check_budget(epsilon, delta, allow_weak_privacy=True)
  from dp_accounting import gaussian_mechanism  # brings SciPy: a second

  # On its way the solver passes δ = 0, whose logarithm numpy warns of.
  with np.errstate(divide="ignore"):
    sigma = gaussian_mechanism.get_sigma_gaussian(float(epsilon), delta)
  bought = float(sigma) ** -2 * (1 - _MARGIN)
  while _delta(bought, epsilon) > delta:
    bought *= 1 - _MARGIN
  return bought


def noise_multiplier(epsilon: float, delta: float) -> float:
  """σ = 1/μ of one Gaussian release that (ε, δ) buys, rounded up."""
  return mu_squared_from_epsilon(epsilon, delta) ** -0.5 * (1 + 2**-50)


@functools.lru_cache(maxsize=4096)
def epsilon_of(mu_squared: float, delta: float) -> float:
  """The ε ≥ 0 of releases that cost μ² together, rounded up.

  The same releases where a unit is replaced by another cost 4·μ².

  InputError: μ² is negative or not finite, or δ outside (0, 1).
  """
  if not 0 <= mu_squared < math.inf:
    raise InputError(f"mu_squared={mu_squared} must be finite, 0 or more.")
  _check_delta(delta)
  with mpmath.workdps(_DIGITS):
    mu = mpmath.sqrt(mu_squared)
    if not mu or _delta(mu_squared, 0) <= delta:
      return 0.0
    # Newton's steps on log δ, which is concave: down from the tail's bound,
    # δ ≤ exp(−(ε − μ²/2)² / 2μ²). Of δ, −e^ε Φ(−μ/2 − ε/μ) is the derivative.
    root = mu**2 / 2 + mu * mpmath.sqrt(-2 * mpmath.log(delta))
    for _ in range(100):
      found = _delta(mu_squared, root)
      slope = mpmath.exp(root) * mpmath.ncdf(-mu / 2 - root / mu)
      step = mpmath.log(found / delta) * found / slope
      root += step
      if abs(step) <= 1e-25 * root:
        break
    epsilon = float(root)
    while _delta(mu_squared, epsilon) > delta:
      epsilon = math.nextafter(epsilon, math.inf)
    return epsilon


def sum_mu_squared(costs: Iterable[float | Fraction]) -> float:
  """Σ μ², rounded up: what releases cost together."""
  exact = sum((Fraction(cost) for cost in costs), Fraction(0))
  total = float(exact)
  return total if Fraction(total) >= exact else math.nextafter(total, math.inf)


@functools.lru_cache(maxsize=1024)  # a ledger says few over and over
def format_rounded_up(guarantee: float) -> str:
  """ε or δ in at most five digits, rounded up: what may be said of it.

  >>> format_rounded_up(9.95840186), format_rounded_up(1.2345649e-5)
  ('9.9585', '1.2346e-05')
  """
  if not math.isfinite(guarantee):
    return f"{guarantee:g}"
  rounding = decimal.Context(prec=5, rounding=decimal.ROUND_CEILING)
  # As it is written: 1e-5 is a little more than 1e-5 in binary.
  return f"{float(rounding.create_decimal(repr(float(guarantee)))):g}"


def _delta(squared: Any, epsilon: Any) -> Any:
  """δ of releases that cost μ²: theorem 8 of Balle & Wang, as it stands."""
  with mpmath.workdps(_DIGITS):
    mu = mpmath.sqrt(squared)
    near, far = mpmath.ncdf(mu / 2 - epsilon / mu), -mu / 2 - epsilon / mu
    return near - mpmath.exp(epsilon) * mpmath.ncdf(far)
