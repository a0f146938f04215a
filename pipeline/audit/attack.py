r"""Attacks on made-up rows: canaries in many runs, judged by all that leaves.

The adversary sees every noisy release and the published head. It knows the code
and all rows and coins but those of the canary that it guesses, so it knows what
the noise was wherever that canary has no part in it. Runs that are set apart
(pilots) teach it how the noise goes together: noise that entries, steps, runs
or canaries share hides nothing.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from oneshot_dp.linear_dp.accounting.plan import PrivacyStatement, ReleasePlan
from oneshot_dp.linear_dp.accounting.sampled import PoissonSampling
from oneshot_dp.linear_dp.audit import CanaryScoreAuditor
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import Released, Trainer
from oneshot_dp.pipeline.audit.canaries import Canaries
from oneshot_dp.pipeline.audit.observations import (
  Observation,
  faults_of_rounding,
  observe,
)

PILOT_SHARE = 4
"""One run in four teaches; the others are tested."""
_SAMPLES_PER_NUMBER = 4
"""With fewer, it is not learned what the releases of a run share."""
_RIDGE = 1e-6
"""Variance, in that of the claim, below which there is no noise."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Runs:
  """What many runs let out of each canary.

  Attributes:
    coins: which canaries were there.
    seen, response, parts: the `Observation` of each run.
    heads: weights of each canary's feature; None without a head.
    faults: of releases whose noise was not rounded.
  """

  claim: PrivacyStatement
  coins: Bool[np.ndarray, "runs m"]
  seen: Float[np.ndarray, "runs m F"]
  response: Float[np.ndarray, "runs m F"]
  parts: tuple[int, ...]
  heads: Float[np.ndarray, "runs m K"] | None = None
  faults: frozenset[str] = frozenset()

  @property
  def pilots(self) -> int:
    """Runs that teach, the first."""
    return len(self.coins) // PILOT_SHARE


def play(
  make: Callable[[Bool[np.ndarray, " m"]], Trainer],
  canaries: Canaries,
  plan: ReleasePlan,
  source: NoiseSource,
  coins: Bool[np.ndarray, "runs m"],
  on_run: Callable[[], object],
) -> Runs:
  """Trains heads of canaries that are there or not, by the coins of a run.

  `make` gives the way to train on rows with the canaries of a toss.
  """
  runs, heads, claims, faults = [], [], [], frozenset()
  for toss in coins:
    trainer = make(toss)
    trainer.read()
    released: list[Released] = []
    trained = list(
      trainer.release(plan, source, lambda *_: None, released.append)
    )
    runs.append(observe(released, canaries, toss))
    faults |= faults_of_rounding(released)
    kernel = np.asarray(trained[0].head.kernel, np.float64)
    heads.append(_scaled(kernel)[canaries.feature])
    claims.append(trained[0].statement)
    on_run()
  return Runs(
    claim=claims[0],
    coins=coins,
    seen=np.array([run.seen for run in runs]),
    response=np.array([run.response for run in runs]),
    parts=runs[0].parts,
    heads=np.array(heads),
    faults=faults,
  )


def _scaled(kernel: Float[np.ndarray, "d K"]) -> Float[np.ndarray, "d K"]:
  """Some heads do not publish their scale."""
  spread = float(kernel.std())
  return (kernel - kernel.mean(axis=1, keepdims=True)) / (spread or 1.0)


def scores_of_releases(
  runs: Runs, sampling: PoissonSampling | None
) -> Float[np.ndarray, "runs m"]:
  """The likelier that a canary was there, the higher; half-way is zero."""
  starts = np.cumsum([0, *runs.parts[:-1]])
  # What a release says nothing of is zero in every run.
  is_of = np.logical_or.reduceat((runs.seen != 0).any(axis=0), starts, axis=1)
  is_of = np.repeat(is_of, runs.parts, axis=1)
  seen = _without_what_is_known(runs)
  return _discriminant(runs, seen, runs.response, is_of, runs.parts, sampling)


def scores_of_heads(
  runs: Runs, label: Int[np.ndarray, " m"]
) -> Float[np.ndarray, "runs m"]:
  """The same, for who sees the published heads alone."""
  assert runs.heads is not None
  num_classes = runs.heads.shape[2]
  towards = np.eye(num_classes)[label] - 1 / num_classes
  response = np.broadcast_to(towards, runs.heads.shape)
  is_of, parts = np.ones(towards.shape, bool), (num_classes,)
  return _discriminant(runs, runs.heads, response, is_of, parts, None)


def log_likelihood(
  run: Observation, sampling: PoissonSampling | None
) -> Float[np.ndarray, " m"]:
  """The scores of one run, of noise as it is claimed."""
  as_claimed = np.eye(run.seen.shape[1])
  return _of_samples(run.seen, run.response, as_claimed, run.parts, sampling)


def least_noisy(runs: Runs, scores: Float[np.ndarray, "runs m"]) -> int:
  """The canary that pilots tell best."""
  coins, pilots = runs.coins[: runs.pilots], scores[: runs.pilots]
  ratios = np.zeros(scores.shape[1])
  for i, there in enumerate(coins.T):
    if 1 < there.sum() < len(there) - 1:
      present, absent = pilots[there, i], pilots[~there, i]
      spread = absent.std() + _RIDGE
      ratios[i] = (present.mean() - absent.mean()) / spread
  return int(np.argmax(ratios))


def auditor_of(
  runs: Runs, scores: Float[np.ndarray, "runs m"], canary: int | None = None
) -> CanaryScoreAuditor:
  """The scores of the runs that are tested; of one canary, or of all."""
  which = slice(None) if canary is None else slice(canary, canary + 1)
  tested = scores[runs.pilots :, which]
  is_there = runs.coins[runs.pilots :, which]
  return CanaryScoreAuditor(absent=tested[~is_there], present=tested[is_there])


def evenness_of_batches(runs: Runs, sampling: PoissonSampling) -> float:
  """p-value of random batches coming in sizes that vary so little.

  Of all canaries that are there, how many each step took: a binomial number
  with the noise of the release. Batches of one size do not vary, and what they
  cost is not what Poisson samples cost.
  """
  q = sampling.probability
  starts = np.cumsum([0, *runs.parts[:-1]])
  power = np.add.reduceat(runs.response**2, starts, axis=2)
  along = np.add.reduceat(runs.seen * runs.response, starts, axis=2)
  here = runs.coins[..., None] & (power > 0)
  taken = np.divide(along, power, out=np.zeros_like(power), where=here)
  noise = np.divide(1.0, power, out=np.zeros_like(power), where=here)
  count = here.sum(axis=1)
  variance = count * q * (1 - q) + noise.sum(axis=1)
  squares = (taken.sum(axis=1) - q * count) ** 2 / np.maximum(variance, _RIDGE)
  return float(stats.chi2.cdf(squares.sum(), squares.size))


def _without_what_is_known(runs: Runs) -> Float[np.ndarray, "runs m F"]:
  """Less what noise elsewhere tells of the noise here, as pilots show it.

  Elsewhere is where the same canary was not there in pilots, and other canaries
  that were not there in the same run.
  """
  seen, pilots = runs.seen, runs.pilots
  out = ~runs.coins[..., None]
  of_pilots = np.where(out, seen, 0.0)[:pilots]
  total, count = of_pilots.sum(axis=0), out[:pilots].sum(axis=0)
  again = np.broadcast_to(total / np.maximum(count, 1), seen.shape).copy()
  # A pilot is not told of itself.
  left = np.maximum(count - out[:pilots], 1)
  again[:pilots] = (total - of_pilots) / left
  seen = seen - _slope(seen, again, out, pilots) * again
  alone = np.where(out, seen, 0.0)
  others = alone.sum(axis=1, keepdims=True) - alone
  beside = others / np.maximum(out.sum(axis=1, keepdims=True) - out, 1)
  return seen - _slope(seen, beside, out, pilots) * beside


def _slope(
  seen: np.ndarray, known: np.ndarray, out: np.ndarray, pilots: int
) -> Float[np.ndarray, " F"]:
  """Least squares over pilots without the canary."""
  known = np.where(out, known, 0.0)[:pilots]
  products = (seen[:pilots] * known).sum(axis=(0, 1))
  return products / np.maximum((known**2).sum(axis=(0, 1)), _RIDGE)


def _discriminant(
  runs: Runs,
  seen: Float[np.ndarray, "runs m F"],
  response: Float[np.ndarray, "runs m F"],
  is_of: Bool[np.ndarray, "m F"],
  parts: Sequence[int],
  sampling: PoissonSampling | None,
) -> Float[np.ndarray, "runs m"]:
  """Fisher's discriminant: the response, divided by the noise of pilots."""
  pilots = runs.pilots
  there = runs.coins[:pilots]
  noise = np.where(is_of, seen[:pilots], 0.0)[~there]
  counted = np.broadcast_to(is_of, seen.shape)[:pilots][~there].sum(axis=0)
  noise = noise / np.sqrt(np.maximum(counted, 1))
  covariance = noise.T @ noise + _RIDGE * np.eye(noise.shape[1])
  few = len(noise) < _SAMPLES_PER_NUMBER * len(covariance)
  if sampling is not None or few:
    return _of_samples(seen, response, covariance, parts, sampling)
  towards = response @ np.linalg.inv(covariance)
  along, power = (towards * seen).sum(axis=2), (towards * response).sum(axis=2)
  moved = along[:pilots][there].sum() / power[:pilots][there].sum()
  return along - moved / 2 * power


def _of_samples(
  seen: Float[np.ndarray, "*axes F"],
  response: Float[np.ndarray, "*axes F"],
  covariance: Float[np.ndarray, "F F"],
  parts: Sequence[int],
  sampling: PoissonSampling | None,
) -> Float[np.ndarray, "*axes"]:
  """Log-likelihood ratio, where each step may have left the canary out."""
  q = 1.0 if sampling is None else sampling.probability
  score, start = np.zeros(seen.shape[:-1]), 0
  for part in parts:
    here = slice(start, start + part)
    start += part
    towards = response[..., here] @ np.linalg.inv(covariance[here, here])
    ratio = (towards * (seen - response / 2)[..., here]).sum(axis=-1)
    score += np.logaddexp(np.log1p(-q), np.log(q) + ratio) if q < 1 else ratio
  return score
