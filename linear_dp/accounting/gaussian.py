"""From (epsilon, delta) to the noise multiplier and back, always rounded up.

The analytic Gaussian mechanism of Balle & Wang. The noise multiplier is solved
for by dp_accounting, up to the tolerance of its solver, and then raised until
the theorem, in 50 digits, holds of it; epsilon is read off the theorem itself.
"""

import decimal
import functools
import math
from collections.abc import Iterable

import mpmath
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.accounting.vocabulary import dp_accounting

ACCOUNTANT = "dp_accounting.gaussian_mechanism (analytic, Balle & Wang 2018)"

_MARGIN = 1e-9
"""Relative rounding, for the float64 error of the solver's function."""
_MAX_EPSILON = 1e6
_MAX_NOISE_MULTIPLIER = 2.0**20
"""Far above any use, and far below where noise would leave int64."""
_MAX_SEARCHED = 2.0**36
"""A search for more noise may never end."""
_MAX_STEPS = 100
_DIGITS = 50
"""Far more than cancel where epsilon and 1/σ are small."""


def check_budget(epsilon: float, delta: float) -> None:
  """Refuses an (epsilon, delta) that is not a privacy guarantee."""
  if not (math.isfinite(epsilon) and epsilon > 0):
    raise InputError(
      f"epsilon={epsilon} must be positive and finite; for a baseline without"
      " privacy, --baseline is a flag of sweep and compare."
    )
  if epsilon > _MAX_EPSILON:
    raise InputError(
      f"epsilon={epsilon:g} protects nobody; more than {_MAX_EPSILON:g} is"
      " refused."
    )
  if not 0 < delta < 1:
    raise InputError(
      f"delta={delta} must lie strictly between 0 and 1, well below 1/n."
    )
  if _delta(_MAX_SEARCHED, epsilon) > delta:
    raise InputError(
      f"epsilon={epsilon:g} at delta={delta:g} needs a noise multiplier of more"
      f" than {_MAX_SEARCHED:.2g}; nothing could be learned through"
      " that: give a larger epsilon."
    )


def check_delta(delta: float, num_examples: int, *, insisted: bool) -> None:
  """Refuses a delta that publishing one example at random would satisfy."""
  if delta >= 1 / num_examples and not insisted:
    raise InputError(
      f"delta={delta:g} is not below 1/n = {1 / num_examples:.2g}: publishing"
      " one example at random would pass for private; use a smaller delta, or"
      " insist: --large-delta, in Python large_delta=True."
    )


def noise_multiplier(epsilon: float, delta: float) -> float:
  """The smallest σ, rounded up, for which one Gaussian release is private.

      Φ(1/(2σ) − εσ) − e^ε·Φ(−1/(2σ) − εσ) ≤ δ

  Formal guarantees: the inequality holds of the σ returned, in real numbers, so
  that `epsilon_of(noise_multiplier(ε, δ), δ)` is at most ε.

  >>> round(noise_multiplier(1.0, 1e-6), 4)
  4.2247

  Args:
    epsilon: ε > 0.
    delta: δ in (0, 1).

  Returns:
    σ, the noise's standard deviation in units of the L2 sensitivity.

  InputError: the budget is none. Source: Balle & Wang, "Improving the Gaussian
  Mechanism for Differential Privacy", ICML 2018, theorem 8.
  """
  check_budget(epsilon, delta)
  return _calibrated(float(epsilon), float(delta))


def check_noise_multiplier(sigma: float, epsilon: float, loss: str) -> None:
  """Refuses more noise than 2²⁰; `loss` says what that makes impossible."""
  if sigma > _MAX_NOISE_MULTIPLIER:
    raise InputError(
      f"epsilon={epsilon} needs a noise multiplier of {sigma:.3g}; {loss}"
      " through that: give a larger epsilon."
    )


def epsilon_of(sigma: float, delta: float) -> float:
  """The inverse of `noise_multiplier`: ε ≥ 0 of one release, rounded up.

  >>> round(epsilon_of(4.2247, 1e-6), 4)
  1.0

  Args:
    sigma: σ > 0, as `noise_multiplier` gives it; or an InputError.
    delta: δ in (0, 1).

  Returns:
    ε ≥ 0; by the same theorem.
  """
  if sigma <= 0:
    raise InputError(f"noise_multiplier={sigma} must be positive.")
  return _epsilon(float(sigma), float(delta))


@functools.lru_cache(maxsize=1024)  # a ledger says few over and over
def printable(guarantee: float) -> str:
  """ε or δ in at most five digits, rounded up: what may be said of it.

  >>> printable(9.95840186), printable(0.1), printable(1.2345649e-5)
  ('9.9585', '0.1', '1.2346e-05')
  """
  if not math.isfinite(guarantee):
    return f"{guarantee:g}"
  rounding = decimal.Context(prec=5, rounding=decimal.ROUND_CEILING)
  # As it is written: 1e-5 is a little more than 1e-5 in binary.
  return f"{float(rounding.create_decimal(repr(float(guarantee)))):g}"


def compose(noise_multipliers: Iterable[float]) -> float:
  """The noise multiplier that many Gaussian releases amount to together.

      σ = (Σ σ_i⁻²)^(−1/2)

  Exact, for adaptively chosen releases too: each is μ_i-Gaussian DP with
  μ_i = 1/σ_i, and their composition is √(Σ μ_i²)-Gaussian DP.

  >>> compose([2.0, 2.0]) < 2 / 2**0.5 < compose([2.0, 2.0]) * (1 + 1e-12)
  True

  Of at least one σ_i > 0, or an InputError; rounded down.

  Source: Dong, Roth & Su, "Gaussian Differential Privacy", JRSS B 2022,
  corollary 3.3.
  """
  sigmas = list(noise_multipliers)
  if not sigmas:
    raise InputError("There is no release to compose.")
  if not all(sigma > 0 for sigma in sigmas):
    raise InputError(f"noise_multipliers={sigmas} must all be positive.")
  precision = math.fsum(sigma**-2 for sigma in sigmas)
  return precision**-0.5 * (1 - 1e-15)


# Plans, receipts and ledgers ask for the same few numbers again and again, at
# some milliseconds each. (Of Python's floats: NumPy's shorter ones are equal to
# them, but solved less exactly.)
@functools.cache
def _calibrated(epsilon: float, delta: float) -> float:
  # On its way the solver passes δ = 0, whose logarithm numpy warns of.
  with np.errstate(divide="ignore"):
    sigma = dp_accounting.get_sigma_gaussian(epsilon, delta)
  sigma *= 1 + _MARGIN
  while _delta(sigma, epsilon) > delta:
    sigma *= 1 + _MARGIN
  return sigma


@functools.cache
def _epsilon(sigma: float, delta: float) -> float:
  if _delta(sigma, 0.0) <= delta:
    return 0.0
  with mpmath.workdps(_DIGITS):
    # Newton's steps on log δ, which is concave: down from the tail's bound,
    # δ ≤ exp(−(ε − μ²/2)² / 2μ²) with μ = 1/σ. Of δ, −e^ε Φ(−1/2σ − σε) is
    # the derivative.
    mu = 1 / mpmath.mpf(sigma)
    root = mu**2 / 2 + mu * mpmath.sqrt(-2 * mpmath.log(delta))
    for _ in range(_MAX_STEPS):
      found = _delta(sigma, root)
      slope = mpmath.exp(root) * mpmath.ncdf(-mu / 2 - sigma * root)
      step = mpmath.log(found / delta) * found / slope
      root += step
      if abs(step) <= 1e-25 * root:
        break
  epsilon = float(root)
  while _delta(sigma, epsilon) > delta:
    epsilon = math.nextafter(epsilon, math.inf)
  return epsilon


def _delta(sigma: float, epsilon: float | mpmath.mpf) -> mpmath.mpf:
  """δ of one release: theorem 8 of Balle & Wang, as it stands there."""
  with mpmath.workdps(_DIGITS):
    half, shift = 1 / (2 * mpmath.mpf(sigma)), mpmath.mpf(sigma) * epsilon
    return mpmath.ncdf(half - shift) - mpmath.exp(epsilon) * mpmath.ncdf(
      -half - shift
    )
