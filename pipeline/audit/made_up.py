r"""An empirical check of releases: attack them, and bound ε from below.

The rows are made up, and everything after them is what `train` runs. What the
audit shows, with the confidence that it states: a release is no more private
than the bound, or something that it rests on does not hold. What it cannot
show: that it is as private as claimed, that random bits are hard to predict, or
anything about rows that these canaries do not resemble.
"""

import math
import time

import numpy as np
from jaxtyping import Bool

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.audit import check_confidence
from oneshot_dp.linear_dp.evaluate import SecretHits
from oneshot_dp.linear_dp.heads.registry import head_kind, make_trainer
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.noisy_counts import CountPlan, release_accuracies
from oneshot_dp.linear_dp.trainer import Released, Trainer
from oneshot_dp.pipeline.audit import attack
from oneshot_dp.pipeline.audit.canaries import Canaries, canary_length
from oneshot_dp.pipeline.audit.observations import faults_of_rounding
from oneshot_dp.pipeline.audit.report import AuditReport, bounds_of_guesses

LEAST_RUNS = 8 * attack.PILOT_SHARE
_CANARIES = range(8, 10_001)
_MOST_COINS = 5_000_000
"""Runs times canaries: what is seen of more does not fit in memory."""
_NOISY_COUNTS = 8
_COUNTED = 1_000_000
_ROWS_TO_WHITEN = 128.0
"""How many a class needs, in σ, so that a whitened head whitens."""
_ADVERSARY = "sees all that leaves, and knows every row and coin but one"

NOISE, LEAST_NOISY, HEAD = (
  "noise of another size",
  "the same, of the least noisy canary",
  "the same, by the published heads",
)
_SHARES = {NOISE: 0.6, LEAST_NOISY: 0.1, HEAD: 0.1}
"""Share of what may go wrong (Bonferroni): the first measures finely, others
look for faults that are gross where they are at all."""
_SHARE_OF_GUESSES = _SHARE_OF_BATCHES = 0.1


def default_sizes(config: HeadConfig) -> tuple[int, int]:
  """Runs, and canaries in each, for some seconds of work, or half a minute."""
  match config.head:
    case "least-squares":
      return 200, 24
    case "whitened":
      return 40, 64
    case "multi-step":
      return 60, 64
  return 200, 256


def audit_plan(
  config: HeadConfig,
  epsilon: float,
  delta: float,
  relation: NeighboringRelation,
  rows: int,
) -> ReleasePlan:
  """What each run releases: a nested sweep of two, where heads share noise.

  All that such a sweep releases costs its largest epsilon, which is the claim.
  Of other heads it is one; nested sweeps of whitened heads are not attacked.
  """
  kind = head_kind(config.head)
  return ReleasePlan(
    epsilons=(epsilon, epsilon / 2) if kind.can_nest else (epsilon,),
    delta=delta,
    neighboring_relation=relation,
    order=kind.order(),
    sampling=kind.sampling(config, rows),
  )


def audit_head(
  config: HeadConfig,
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  runs: int,
  canaries: int,
  num_classes: int = 4,
  rows_per_unit: int = 1,
  max_rows_per_unit: int | None = None,
  confidence: float = 0.95,
  seed: int | None = None,
) -> AuditReport:
  """Attacks all that leaves when heads are trained on canaries.

  Nothing is charged to a ledger, as no private data is read.

  `plan` is that of `audit_plan`, for each of the runs; `rows_per_unit` are
  copies of a canary, which make up a privacy unit; `confidence` is that of all
  bounds together, and `seed` that of the coins.
  """
  start = time.monotonic()
  _check(runs, canaries, confidence)
  if canaries not in _CANARIES:
    raise InputError(
      f"canaries={canaries} must be {_CANARIES[0]} to {_CANARIES[-1]}."
    )
  if rows_per_unit < 1:
    raise InputError(
      f"rows_per_unit={rows_per_unit} must be at least 1: a unit has rows."
    )
  made = Canaries(
    number=canaries,
    num_classes=num_classes,
    length=canary_length(config),
    replaced=plan.neighboring_relation is NeighboringRelation.REPLACE_ONE,
    has_bias=config.train_bias,
    rows_per_unit=rows_per_unit,
  )
  zeros, (sigma, *_) = 0, plan.noise_multipliers.values()
  if config.head == "whitened" and rows_per_unit == 1:
    zeros = math.ceil(_ROWS_TO_WHITEN * sigma * num_classes)

  def make(coins: Bool[np.ndarray, " m"]) -> Trainer:
    rows = made.alone(
      coins, num_examples=zeros, max_rows_per_unit=max_rows_per_unit
    )
    return make_trainer(rows, [config])

  coins = _tossed(runs, canaries, seed)
  with step_bar("runs", "run", runs) as bar:
    played = attack.play(make, made, plan, source, coins, bar.update)
  scores = attack.scores_of_heads(played, made.label)
  of_heads = attack.auditor_of(played, scores)
  wrong = _SHARES[HEAD] * (1 - confidence)
  bound = of_heads.epsilon_of_noise(plan.delta, 1 - wrong, plan.sampling)
  return _report(played, plan, confidence, {HEAD: bound}, start)


def audit_counts(
  plan: ReleasePlan,
  source: NoiseSource,
  *,
  runs: int,
  confidence: float = 0.95,
  seed: int | None = None,
) -> AuditReport:
  """Attacks the noisy counts of a private evaluation of several heads.

  The canary is a row that all heads are right about, at once and among five;
  `plan` is of one ε.
  """
  start = time.monotonic()
  _check(runs, 1, confidence)
  (epsilon,) = plan.epsilons
  counts = CountPlan(
    epsilon=epsilon,
    delta=plan.delta,
    neighboring_relation=plan.neighboring_relation,
  )
  coins = _tossed(runs, 1, seed)
  seen, claims = [], []
  with step_bar("runs", "run", runs) as bar:
    for coin in coins[:, 0]:
      hits = np.full((2, _NOISY_COUNTS), _COUNTED // 2 + int(coin))
      secret = SecretHits(
        num_examples=_COUNTED, num_classes=10, secret_hits=hits
      )
      noisy = release_accuracies(secret, counts, source, charge=lambda *_: None)
      shares = [(each.top1, each.top5) for each in noisy.accuracies]
      seen.append(np.ravel(shares) * _COUNTED)
      claims.append(noisy.statement)
      bar.update()
  unit = counts.noise_multiplier * math.sqrt(2 * _NOISY_COUNTS)
  found = np.array(seen)[:, None]
  released = Released(
    name="counts", value=found, noise_multiplier=unit, grid_step=1.0
  )
  played = attack.Runs(
    claim=claims[0],
    coins=coins,
    seen=(found - _COUNTED // 2) / unit,
    response=np.full(found.shape, 1 / unit),
    parts=(found.shape[2],),
    faults=faults_of_rounding([released]),
  )
  return _report(played, plan, confidence, {}, start)


def _check(runs: int, canaries: int, confidence: float) -> None:
  check_confidence(confidence)
  if runs < LEAST_RUNS:
    raise InputError(
      f"runs={runs} are too few to learn anything of the noise: give at least"
      f" {LEAST_RUNS}."
    )
  if runs * canaries > _MOST_COINS:
    raise InputError(
      f"runs={runs} of {canaries} canaries are more than memory holds: give at"
      f" most {_MOST_COINS // canaries}."
    )


def _tossed(
  runs: int, canaries: int, seed: int | None
) -> Bool[np.ndarray, "runs m"]:
  tossed = np.random.default_rng(seed).integers(0, 2, (runs, canaries))
  return tossed.astype(bool)


def _report(
  played: attack.Runs,
  plan: ReleasePlan,
  confidence: float,
  bounds: dict[str, float],
  start: float,
) -> AuditReport:
  sampling, may_fail = plan.sampling, 1 - confidence
  scores = attack.scores_of_releases(played, sampling)
  every = attack.auditor_of(played, scores)
  quiet = attack.least_noisy(played, scores)
  one = attack.auditor_of(played, scores, quiet)
  bounds = {
    name: auditor.epsilon_of_noise(
      plan.delta, 1 - _SHARES[name] * may_fail, sampling
    )
    for name, auditor in ((NOISE, every), (LEAST_NOISY, one))
  } | bounds
  bounds |= bounds_of_guesses(every, plan, _SHARE_OF_GUESSES * may_fail)
  faults = set(played.faults)
  if sampling is not None:
    likely = attack.evenness_of_batches(played, sampling)
    if likely < _SHARE_OF_BATCHES * may_fail:
      faults.add("batches vary less in size than random ones")
  runs, canaries = played.coins.shape
  return AuditReport(
    claim=played.claim,
    lower_bounds=bounds,
    runs=runs,
    canaries=canaries,
    confidence=confidence,
    adversary=_ADVERSARY,
    faults=tuple(sorted(faults)),
    seconds=time.monotonic() - start,
  )
