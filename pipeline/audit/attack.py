r"""The attack: what one training releases, a score for each canary, and faults.

The adversary sees every release, knows the code, the claim, and the coins of
all canaries but the one that is guessed. The score of canary i compares what a
release has along its probe b_i with what it would have without the canary,

    s_i = Σ_r (⟨V_r − Σ_{j≠i} c_j a_jr, b_ir⟩ − ⟨a_ir, b_ir⟩/2) / σ_r²

where V_r is release r, of noise multiplier σ_r, a_ir what canary i adds to it,
and c_j ∈ {0, 1} the coins. A score above 0 is the guess that the canary is
there. See `bounds` for what right guesses prove.

A blind adversary knows no coin: it takes half of every other canary off.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import stats

from oneshot_dp.configs.head_config import HeadName, HeadOptions
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.linear_dp.heads.registry import HEADS
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.quantize import ROW_NORM
from oneshot_dp.linear_dp.statistics import RowStatistic
from oneshot_dp.pipeline.audit.canaries import (
  Canaries,
  CanaryRows,
  Coins,
  Contribution,
  Probes,
)

# Patterns in noise: what happens by chance less often than this, or is off by
# so many standard deviations, and of at least so many numbers.
_CHANCE = 1e-7
_DEVIATIONS = 5.5
_MIN_NUMBERS = 100
_CLASSES_AT_ONCE = 256

Scores = Float64[np.ndarray, " m"]


class Claim(NamedTuple):
  """The claim that is attacked: a kind of head, and its (ε, δ)."""

  head: HeadName
  epsilon: float
  delta: float
  balanced: bool = False


class ObservedRelease(NamedTuple):
  """A release as the adversary sees it.

  Attributes:
    name: of the release.
    value: V_r, in units of a row of norm 1 and a unit's weight, [q, p].
    noise_multiplier: σ_r.
    added: what each canary adds to it if it is there.
    probes: along which scores look; None if the release has fewer numbers than
      there are canaries.
  """

  name: str
  value: Float64[np.ndarray, "q p"]
  noise_multiplier: float
  added: Contribution
  probes: Probes | None


class _ObservedSums(PrivateSums):
  """The Gaussian mechanism, with somebody who watches every release."""

  def __init__(self, mu_squared_budget: float):
    super().__init__(NoiseSource(), mu_squared_budget)
    self.observed: list[ObservedRelease] = []

  def release(
    self,
    name: str,
    rows: Any,  # `CanaryRows`, of which heads know no more than `Rows`
    statistic: RowStatistic,
    *,
    mu_squared: float,
    public: tuple[Any, ...] = (),
    cache: bool = True,
  ) -> tuple[Float64[np.ndarray, "q p"], float]:
    """Releases a noisy sum as `PrivateSums.release` does, and notes it."""
    value, noise_multiplier = super().release(
      name, rows, statistic, mu_squared=mu_squared, public=public, cache=cache
    )
    added = rows.contribution(statistic, public)
    probes = rows.probes(statistic, added)
    self.observed.append(
      ObservedRelease(name, value, noise_multiplier, added, probes)
    )
    return value, noise_multiplier


def sample_canaries(
  canaries: Canaries, head: HeadName
) -> tuple[CanaryRows, Coins]:
  """Tosses the coins, and makes the rows that the head is trained on.

  Args:
    canaries: which there are, and perhaps the real rows among which they lie.
    head: the kind of head, which decides how rows are prepared.

  Returns:
    The rows, of which none was read yet, and the coins [m]: whether each
    canary is there.
  """
  # Coins have to be fair, and independent of the noise; they need not be
  # secret.
  coins = np.random.default_rng().random(canaries.count) < 0.5
  rows = HEADS[head].prepare_rows(canaries.with_coins(coins))
  # Real rows may lie anywhere among their own features, which canaries do not
  # have.
  real_space = None
  if canaries.real is not None:
    real_space = np.eye(rows.feature_dim, canaries.real.feature_dim)
  canary_rows = CanaryRows.of(
    rows,
    canaries=canaries,
    alone=HEADS[head].prepare_rows(canaries.alone()),
    real_space=real_space,
  )
  return canary_rows, coins


def observe_training(rows: CanaryRows, claim: Claim) -> list[ObservedRelease]:
  """Trains one head, and returns all that it releases.

  Formal guarantees: those of `train`, whatever the coins, with n the number of
  real rows and canaries. Of real rows it is to be charged before.

  Args:
    rows: from `sample_canaries`, for the same kind of head.
    claim: the head, and the (ε, δ) that its noise is drawn for.

  Returns:
    The releases in the order in which they were made, each with what every
    canary would add to it.

  Raises:
    InputError: (ε, δ) is not a guarantee, or something is wrong with a row.
  """
  # The code under attack is the product's own: the head's function, its rows,
  # and the mechanism, which is only watched.
  budget = mu_squared_from_epsilon(claim.epsilon, claim.delta)
  sums = _ObservedSums(budget)
  options = HeadOptions(balanced=claim.balanced)
  HEADS[claim.head].make(
    sums,
    rows,
    new_mu_squared=budget,
    spent_mu_squared=0.0,
    state=None,
    options=options,
  )
  return sums.observed


def score_canaries(
  observed: Sequence[ObservedRelease], others: Float64[np.ndarray, " m"]
) -> Scores:
  """The score of each canary, s_i.

  Args:
    observed: the releases of one training; those without probes are left out.
    others: how much of each canary is taken off when another is scored: its
      coin (0 or 1), or one half where the coins are not known.

  Returns:
    [m] numbers; above 0 is the guess that the canary is there.
  """
  # Releases are weighed by their precision, so that those of much noise do not
  # drown those of little.
  scores = np.zeros(len(others))
  for release in observed:
    probes = release.probes
    if probes is None:
      continue
    rest = release.value - release.added.total(others)
    # The canary's own part was taken off with the others': it is put back.
    own = others * probes.strength
    score = probes.coordinates(rest) + own - probes.strength / 2
    scores += score / release.noise_multiplier**2
  return scores


def find_faults(
  observed: Sequence[ObservedRelease], coins: Coins, unit_weight: int
) -> list[str]:
  """Looks for patterns in the noise, where all rows and so the noise are known.

  Noise with a pattern may hide less than independent noise of its size.

  Args:
    observed: the releases of one training without real rows.
    coins: of the canaries.
    unit_weight: W, of which a release is a multiple of 1/(W·R).

  Returns:
    What is wrong, in words.
  """
  faults = []
  earlier: list[tuple[str, np.ndarray]] = []
  for release in observed:
    # Of synthetic rows all is known, so what is left after the exact sum is the
    # noise itself, in units of what is claimed for it.
    exact = release.added.total(coins.astype(np.float64))
    noise = (release.value - exact) / release.noise_multiplier
    if not _is_on_grid(release.value * (unit_weight * ROW_NORM)):
      faults.append(f"{release.name}: noise is not rounded to integers")
    sd = float(np.sqrt(np.square(noise).mean()))
    chance = stats.chi2.cdf(sd**2 * noise.size, noise.size)
    if noise.size >= _MIN_NUMBERS and not _CHANCE < chance < 1 - _CHANCE:
      faults.append(f"{release.name}: noise is {sd:.3g} times what is claimed")
    # Two noisy sums with the same noise have a difference without any.
    if _any_rows_are_alike(noise.reshape(len(noise), -1)):
      faults.append(f"{release.name}: classes share noise")
    # With all releases before: noise that comes again much later, as from a
    # generator that begins anew, hides no more.
    for name, earlier_noise in earlier:
      if _are_alike(earlier_noise, noise.ravel()):
        faults.append(f"{release.name}: shares noise with an earlier {name}")
    earlier.append((release.name, noise.ravel()))
  return faults


def _is_on_grid(steps: np.ndarray) -> bool:
  """Whether all numbers are integers, as far as float64 can tell."""
  error = np.abs(steps - np.rint(steps)).max()
  return bool(error <= np.abs(steps).max() * 2.0**-50)


def _any_rows_are_alike(noise: Float64[np.ndarray, "k n"]) -> bool:
  """Whether the noise of any two classes is correlated."""
  k, count = noise.shape
  if k < 2 or count < _MIN_NUMBERS:
    return False
  # Of many pairs some are correlated by chance: so all together have the
  # chance that one fault may have.
  num_pairs = k * (k - 1) / 2
  deviations = float(stats.norm.isf(_CHANCE / (2 * num_pairs)))
  norms = np.sqrt(np.square(noise).sum(axis=1))
  for start in range(0, k, _CLASSES_AT_ONCE):
    rows = slice(start, start + _CLASSES_AT_ONCE)
    products = np.abs(noise[rows] @ noise.T)
    limits = deviations * np.outer(norms[rows], norms) / np.sqrt(count)
    # Every row is like itself; and pairs need to be looked at in one order.
    if (np.triu(products > limits, start + 1)).any():
      return True
  return False


def _are_alike(one: np.ndarray, other: np.ndarray) -> bool:
  """Whether the numbers that both begin with are correlated."""
  count = min(len(one), len(other))
  if count < _MIN_NUMBERS:
    return False
  a = one[:count]
  b = other[:count]
  limit = _DEVIATIONS * float(np.sqrt(a @ a * (b @ b) / count))
  return bool(abs(a @ b) > limit)
