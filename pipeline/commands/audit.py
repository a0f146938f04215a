"""`oneshot-dp audit`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  BALANCED,
  DELTA,
  HEAD_KIND,
  LEDGER,
  ROWS,
  WEAK_PRIVACY,
  CommandFlags,
  Flag,
)
from oneshot_dp.pipeline.requests import AuditRequest, TrainRequest

if TYPE_CHECKING:
  from oneshot_dp.pipeline.audit.attack import Claim
  from oneshot_dp.pipeline.audit.bounds import Bounds
  from oneshot_dp.pipeline.audit.canaries import Canaries
  from oneshot_dp.pipeline.runs.plan import Plan

_MIN_CANARIES = 100
_MAX_CANARIES = 20_000
_CANARIES_WITHOUT_CACHE = 2_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Attack heads: guess what they were trained on, and bound their epsilon.

  Canaries are rows that are in the data by the toss of a coin; right guesses of
  the coins bound epsilon from below. Without --cache they go into ten runs on
  synthetic rows, which are not charged. That takes some minutes; after the
  first run it says how many are left, and fewer --canaries take less time, but
  prove less. With --cache they go among its rows in one run, which is charged.
  Exit status 1 if epsilon is more than was claimed.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp audit --epsilon 1 --delta 1e-6",
    "oneshot-dp audit --epsilon 1 --delta 1e-6 --cache caches/train",
  )

  epsilon: float = Flag(
    parse=float, form="EPSILON", help="Claimed epsilon, which is attacked."
  ).required()
  delta: float = DELTA.required()
  head: HeadName = HEAD_KIND.default("auto")
  balanced: bool = BALANCED.off()
  cache: Path | None = Flag(
    parse=parse_place,
    form="CACHE",
    help="Private rows among which the canaries go; they are charged (default:"
    " synthetic rows).",
  ).default(None)
  rows: str = ROWS.default("")
  ledger: Path | None = LEDGER.default(None)
  canaries: int | None = Flag(
    parse=int,
    form="N",
    help=f"Canaries per run, {_MIN_CANARIES} to {_MAX_CANARIES} (default:"
    f" {_CANARIES_WITHOUT_CACHE}, or as many as a cache's budget can tell"
    " apart).",
  ).default(None)
  weak_privacy: bool = WEAK_PRIVACY.off()

  def request(self) -> AuditRequest:
    """Returns what is asked of the audit."""
    return AuditRequest(
      head=self.head,
      epsilon=self.epsilon,
      delta=self.delta,
      balanced=self.balanced,
      cache=self.cache,
      part=Part.parse(self.rows),
      ledger=self.ledger,
      canaries=self.canaries,
      allow_weak_privacy=self.weak_privacy,
    )


def run(flags: Flags) -> Answer:
  """Attacks the claim, on synthetic rows or among those of a cache."""
  request = flags.request()
  if request.canaries is not None and not (
    _MIN_CANARIES <= request.canaries <= _MAX_CANARIES
  ):
    raise InputError(
      f"--canaries {request.canaries}: give {_MIN_CANARIES} to {_MAX_CANARIES}."
    )
  if request.cache is None:
    return _attack_synthetic_rows(request)
  return _attack_real_rows(request, request.cache)


def _claim_of(request: AuditRequest) -> "Claim":
  from oneshot_dp.pipeline.audit.attack import Claim

  return Claim(request.head, request.epsilon, request.delta, request.balanced)


def _attack_synthetic_rows(request: AuditRequest) -> Answer:
  """Attacks several runs on canaries alone: no private row, and no charge."""
  from oneshot_dp.linear_dp.accounting import check_budget
  from oneshot_dp.pipeline.audit.runs import (
    SYNTHETIC_RUNS,
    audit_synthetic,
    synthetic_canaries,
  )

  # Flags that would be ignored are refused: who gives --ledger expects a
  # charge.
  check_budget(
    request.epsilon,
    request.delta,
    allow_weak_privacy=request.allow_weak_privacy,
    flag="--epsilon",
  )
  if not request.part.is_whole or request.ledger is not None:
    raise InputError("--rows and --ledger go with --cache: give it, too.")
  if request.balanced and request.head != "auto":
    raise InputError("--balanced goes with --head auto: leave it out.")
  claim = _claim_of(request)
  canaries = synthetic_canaries(request.canaries or _CANARIES_WITHOUT_CACHE)
  bounds, faults = audit_synthetic(claim, canaries)
  where = f"{SYNTHETIC_RUNS} runs of {canaries.count:,} canaries"
  return answer_of(claim, bounds, faults, where)


def _plan_of(request: AuditRequest, cache: Path) -> "Plan":
  """Opens, checks and prices the training run that is attacked."""
  from oneshot_dp.linear_dp.distributed.hosts import ALONE
  from oneshot_dp.pipeline.runs.plan import build_plan

  return build_plan(
    TrainRequest(
      cache=cache,
      part=request.part,
      heads=(request.head,),
      epsilons=(request.epsilon,),
      delta=request.delta,
      out=cache.resolve() / "audit",  # names the run in the ledger
      balanced=request.balanced,
      ledger=request.ledger,
      allow_weak_privacy=request.allow_weak_privacy,
    ),
    ALONE,
  )


def _attack_real_rows(request: AuditRequest, path: Path) -> Answer:
  """Attacks one run among real rows, charged before.

  What can fail is tried before the charge.
  """
  import msgspec

  from oneshot_dp.pipeline.audit import attack, runs
  from oneshot_dp.pipeline.runs.cache_roles import data_of
  from oneshot_dp.pipeline.runs.costs import costs_of, describe_cost

  plan = _plan_of(request, path)
  cache = plan.train.cache
  claim = _claim_of(request)
  canaries = runs.canaries_among(
    data_of(cache), float(plan.mu_squared), request.canaries
  )
  _check_memory_of_canaries(plan, request.head, canaries)

  # The run costs what a training run at this ε costs, and is charged in its
  # place, under a description that says what it was for.
  (request_of_rows,) = plan.charge_requests
  (charge,) = request_of_rows.charges
  charge = msgspec.structs.replace(
    charge, description=f"audit of {charge.description}"
  )
  charge_request = dataclasses.replace(request_of_rows, charges=(charge,))
  ledger = plan.ledger
  notes = plan.notes
  out = plan.request.out
  # The rows of `auto` stay in memory; here they are read again with canaries.
  del plan
  rows, coins = attack.sample_canaries(canaries, request.head)
  rows.validate()
  for note in notes:
    print(note, file=sys.stderr)

  # An audit that was killed before its answer was noted is found by this, and
  # is not charged again. Coins and noise are drawn anew.
  identity = {
    "audit": claim,
    "canaries": canaries.count,
    "digest": cache.private_digest,
  }
  charge_ids = ledger.charge([charge_request], out, identity)
  (cost,) = costs_of(
    [charge_request], ledger.entries(), charge_ids, request.delta
  )
  print(
    f"{charge.description}: {describe_cost(cost, 'is charged')}, in"
    f" {ledger.path}",
    file=sys.stderr,
  )
  observed = attack.observe_training(rows, claim)
  # Noted before anybody sees it: the charge pays for one answer.
  ledger.deliver(charge_ids, {})
  bounds = runs.bounds_among_real_rows(observed, coins, request.delta)
  return answer_of(
    claim,
    bounds,
    (),
    f"one run of {canaries.count:,} canaries among {cache.n:,} rows",
  )


def _check_memory_of_canaries(
  plan: "Plan", head: HeadName, canaries: "Canaries"
) -> None:
  """Refuses canaries that this machine has no memory for."""
  from oneshot_dp.pipeline.runs.resources import check_memory, memory_needed

  # Canaries have features of their own beside those of the rows, which make
  # every row wider.
  info = plan.train.cache.info
  feature_dim = info.feature_dim + canaries.dim
  needs = memory_needed(
    head,
    n=plan.train.cache.n + canaries.count,
    feature_dim=feature_dim,
    num_classes=info.num_classes,
    privacy_unit=info.unit,
    shard_rows=min(info.shard_rows, info.source_num_examples),
  )
  needs += canaries.count * (64 * feature_dim + 256 * info.num_classes)
  check_memory(
    f"{canaries.count:,} canaries of {feature_dim:,} numbers among"
    f" {plan.train.cache.n:,} rows",
    needs,
    "give fewer --canaries",
  )


def answer_of(
  claim: "Claim", bounds: "Bounds", faults: Sequence[str], where: str
) -> Answer:
  """States what was proved about a claim; a failure if it does not hold.

  Args:
    claim: what was attacked.
    bounds: lower bounds of its ε.
    faults: what else was found wrong.
    where: what was attacked, in words.
  """
  # Each of the two bounds is above the true ε in 2.5 % of audits at most, so
  # the larger one in 5 %.
  all_faults = list(faults)
  worst = max(bounds.gaussian, bounds.blind)
  if worst > claim.epsilon:
    all_faults.append(
      f"epsilon is at least {worst:.4g}, not {claim.epsilon:g}, at 95 %"
      " confidence: of sound heads, up to one audit in twenty says so. A second"
      " audit that says it again leaves little doubt"
    )
  # A fault is a failure even if the bounds are below the claim: noise with a
  # pattern is not the noise that was claimed.
  failure = None
  if all_faults:
    failure = RunError(
      f"epsilon {claim.epsilon:g} of {claim.head} does not hold."
    )
  share = 100 * bounds.gaussian / claim.epsilon
  lines = [
    f"claim        {claim.head}, epsilon {claim.epsilon:g} at delta"
    f" {claim.delta:g}",
    f"lower bound  {bounds.gaussian:.4f}, {share:.0f} % of the claim, at 95 %"
    " confidence",
    f"             {bounds.blind:.4f} as a control: guesses independent of the"
    " data",
    f"attack       {where}; area under the ROC curve {bounds.auroc:.4f}",
  ]
  facts = {
    **claim._asdict(),
    "where": where,
    **bounds._asdict(),
    "ok": not all_faults,
    "faults": all_faults,
  }
  return Answer(
    text="\n".join(lines),
    facts=facts,
    faults=tuple(all_faults),
    failure=failure,
  )
