r"""An audit of a real run: canaries among the real rows, in one training.

Each canary is in or out by a fair private coin. The head that was asked for is
trained once on the real rows with these, charged like any release, and scores
are made of what it releases: no more than the charge pays for leaves with the
bounds. The adversary sees all noisy releases and knows neither the real rows
nor the coins. As no real row has a canary's feature, it is as strong as one who
knows them all, but for what whitening mixes.

The head is thrown away. It counts n + m rows and has features that no image
has; the guarantee of a real row is that of the plan, as canaries are rows that
do not depend on the data, and units of their own.
"""

from pathlib import Path

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.linear_dp.audit import CanaryScoreAuditor, check_confidence
from oneshot_dp.linear_dp.heads.registry import make_trainer
from oneshot_dp.linear_dp.trainer import Released
from oneshot_dp.pipeline.audit.attack import log_likelihood
from oneshot_dp.pipeline.audit.canaries import Canaries, canary_length
from oneshot_dp.pipeline.audit.observations import faults_of_rounding, observe
from oneshot_dp.pipeline.audit.report import AuditReport, bounds_of_guesses
from oneshot_dp.pipeline.training.cache_rows import cache_rows
from oneshot_dp.pipeline.training.public_rows import PublicRows
from oneshot_dp.pipeline.training.train_heads import Training, train_all

CANARIES = range(100, 1_000_001)
"""Fewer prove nothing; more take too long to be guessed."""
_ADVERSARY = (
  "sees all noisy releases of this one run, and knows neither rows nor coins"
)
NOISE = "noise of another size"
_SHARE_OF_NOISE = 0.5
"""Share of what may go wrong (Bonferroni)."""


def make_canaries(
  config: HeadConfig,
  cache: FeatureCache,
  relation: NeighboringRelation,
  number: int | None,
  max_rows_per_unit: int | None = None,
) -> Canaries:
  """Canaries for a head of the rows of a cache.

  By default 10,000 for a head of one step, 1,000 for others; InputError: fewer
  than prove anything, or too many.
  """
  if number is None:  # one step has room for one in each class and feature
    number = 10_000 if config.is_one_step else 1_000
  if number not in CANARIES:
    raise InputError(
      f"canaries={number} must be {CANARIES[0]} to {CANARIES[-1]}."
    )
  classes = cache.info.num_classes
  # At the paper's bias, a row of one class hardly shows in another.
  shares = config.is_one_step and config.initial_bias + np.log(classes) < -5
  return Canaries(
    number=number,
    num_classes=classes,
    length=canary_length(config),
    sharing=classes if shares else 1,
    replaced=relation is NeighboringRelation.REPLACE_ONE,
    rows_per_unit=max_rows_per_unit or 1,
    feature_dim=cache.info.feature_dim,
  )


def audit_run(
  cache: FeatureCache,
  plan: ReleasePlan,
  config: HeadConfig,
  privacy: PrivacyConfig,
  canaries: Canaries,
  *,
  max_rows_per_unit: int | None = None,
  public: PublicRows | None = None,
  ledger_dir: Path | None,
  confidence: float,
) -> AuditReport:
  """Trains one head on the rows of a cache and canaries, and bounds its ε.

  `plan` is of one ε and n + m rows; a seed of the noise is that of the coins
  too; canaries are put behind the map of public rows; `confidence` is of all
  bounds together.

  Raises:
    InputError: what was asked makes no sense for this cache, or would break the
      cap of its data set; nothing is charged then.
  """
  check_confidence(confidence)
  coins = np.random.default_rng(privacy.noise_seed)
  tossed = coins.integers(0, 2, canaries.number).astype(bool)
  real = cache_rows(cache, max_rows_per_unit)
  rows = canaries.among(public.mapped(real) if public else real, tossed)
  released: list[Released] = []
  training = Training(
    trainer=make_trainer(rows, [config], step_bar),
    plan=plan,
    on_release=released.append,
    facts={"audit_canaries": canaries.number},
  )
  (trained,) = train_all(cache, [training], privacy, ledger_dir=ledger_dir)
  scores = log_likelihood(observe(released, canaries, None), plan.sampling)
  auditor = CanaryScoreAuditor(absent=scores[~tossed], present=scores[tossed])
  return AuditReport(
    claim=trained.statement,
    lower_bounds=bounds_of_run(auditor, plan, confidence),
    runs=1,
    canaries=canaries.number,
    confidence=confidence,
    adversary=_ADVERSARY,
    faults=tuple(sorted(faults_of_rounding(released))),
  )


def bounds_of_run(
  auditor: CanaryScoreAuditor, plan: ReleasePlan, confidence: float
) -> dict[str, float]:
  """What the scores of one run prove, all true together."""
  wrong = _SHARE_OF_NOISE * (1 - confidence)
  noise = auditor.epsilon_of_noise(plan.delta, 1 - wrong, plan.sampling)
  rest = (1 - _SHARE_OF_NOISE) * (1 - confidence)
  return {NOISE: noise} | bounds_of_guesses(auditor, plan, rest)
