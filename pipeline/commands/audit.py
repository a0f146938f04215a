"""`oneshot-dp audit`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f

if TYPE_CHECKING:
  from oneshot_dp.pipeline.audit import Bounds, Claim


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Attack heads: guess what they were trained on, and bound their epsilon.

  Canaries are rows that are in the data by the toss of a coin; right guesses
  bound epsilon from below. Alone, they take ten runs without a charge; with
  --cache they go among its rows in one run, which is charged. Exit status 1 if
  epsilon is more than was claimed.

  Example: oneshot-dp audit --epsilon 1 --delta 1e-6 --cache caches/train
  """

  epsilon: Annotated[float, f.flag("The claim to test.", "E")]
  delta: f.Delta
  head: f.HeadKind = "auto"
  balanced: Annotated[f.Switch, f.flag("As for train.")] = False
  cache: Annotated[
    Path | None, f.flag("Private rows to attack; charged.", "CACHE")
  ] = None
  rows: f.Rows = ""
  ledger: f.LedgerFile = None
  canaries: Annotated[
    int | None, f.flag("Canaries in a run; else thousands.", "N")
  ] = None
  weak_privacy: f.WeakPrivacy = False


def run(flags: Flags) -> Answer:
  """Attacks."""
  from oneshot_dp.linear_dp.accounting import check_budget
  from oneshot_dp.pipeline import audit

  claim = audit.Claim(flags.head, flags.epsilon, flags.delta, flags.balanced)
  if flags.canaries is not None and not 100 <= flags.canaries <= 20_000:
    raise InputError(f"--canaries {flags.canaries}: give 100 to 20000.")
  if flags.cache is not None:
    bounds, where = _among_real_rows(flags, flags.cache, claim)
    return answer_of(claim, bounds, (), where)
  insisted = flags.weak_privacy
  check_budget(
    flags.epsilon, flags.delta, allow_weak_privacy=insisted, flag="--epsilon"
  )
  if flags.rows or flags.ledger:
    raise InputError("--rows and --ledger go with --cache: give it, too.")
  if flags.balanced and flags.head != "auto":
    raise InputError("--balanced goes with --head auto: leave it out.")
  count = flags.canaries or 2000
  canaries = audit.Canaries(count=count, dim=128, num_classes=2)
  found = audit.audit_made_up(claim, canaries)
  return answer_of(claim, *found, f"10 runs of {count:,} canaries")


def _among_real_rows(
  flags: Flags, path: Path, claim: "Claim"
) -> tuple["Bounds", str]:
  """One run, charged before; what can fail is tried before that."""
  import msgspec

  from oneshot_dp.linear_dp.distributed.hosts import ALONE
  from oneshot_dp.linear_dp.memory import memory_needed
  from oneshot_dp.pipeline import audit
  from oneshot_dp.pipeline.commands import train
  from oneshot_dp.pipeline.runs.evaluation import data_of
  from oneshot_dp.pipeline.runs.plan import Plan, check_memory

  given, out = vars(flags).copy(), path.resolve() / "audit"
  del given["canaries"]
  plan = Plan(train.Flags(out=out, **given), ALONE)
  cache, head, k = plan.train, claim.head, plan.train.info.num_classes
  if k < 2:
    raise InputError(
      f"{cache.name} has one class: give a cache of two or more."
    )
  dim = 512 if head == "auto" else 2048
  best = max(1000, int(k * dim / plan.mu2))  # more hide one another
  m, d = flags.canaries or min(20_000, best), cache.info.feature_dim + dim
  shard = min(cache.info.shard_rows, cache.info.source_num_examples)
  needs = memory_needed(
    head,
    n=cache.n + m,
    feature_dim=d,
    num_classes=k,
    privacy_unit=cache.info.unit,
    shard_rows=shard,
  )
  what = f"{m:,} canaries of {d:,} numbers among {cache.n:,} rows"
  check_memory(what, needs + m * (64 * d + 256 * k), "give fewer --canaries")
  canaries = audit.Canaries(
    count=m, dim=dim, num_classes=k, real=data_of(cache)
  )
  plan.rows.clear()  # of `auto`, kept in memory
  rows, coins = audit.tossed(canaries, head)
  (charge,) = plan.bills[0].charges
  charge = msgspec.structs.replace(
    charge, description=f"audit of {charge.description}"
  )
  bill = dataclasses.replace(plan.bills[0], charges=(charge,))
  rows.validate()
  said = f"{charge.description}: {bill.dataset!r} pays, by {plan.ledger.path}"
  print(*plan.notes, said, sep="\n", file=sys.stderr)
  asked = {"audit": claim, "canaries": m, "digest": cache.private_digest}
  ids = plan.ledger.charge([bill], out, asked)
  seen = audit.attacked(rows, claim)
  plan.ledger.deliver(ids, {})  # before anybody sees it: it is shown once
  scores = audit.scores_of(seen, coins * 0.0 + 0.5)
  bounds = audit.bounds_of(scores, scores, coins, flags.delta)
  return bounds, f"one run of {m:,} canaries among {cache.n:,} rows"


def answer_of(
  claim: "Claim", bounds: "Bounds", faults: Sequence[str], where: str
) -> Answer:
  """What was proved of a claim; a failure if it does not hold."""
  head, epsilon = claim.head, claim.epsilon
  if (worst := max(bounds.gaussian, bounds.blind)) > epsilon:
    faults = (*faults, f"epsilon is at least {worst:.4g}, not {epsilon:g}")
  share = bounds.gaussian / epsilon
  text = (
    f"claim        {head}, epsilon {epsilon:g} at delta {claim.delta:g}\n"
    f"lower bound  {bounds.gaussian:.4f}, {share:.2f} of it, 95 % sure\n"
    f"             {bounds.blind:.4f} by guesses that know no coin\n"
    f"attack       {where}; area under the ROC curve {bounds.auroc:.4f}"
  )
  facts = claim._asdict() | {"where": where, **bounds._asdict()}
  failure = RunError(f"epsilon {epsilon:g} of {head} does not hold.")
  return Answer(
    text=text,
    facts=facts | {"ok": not faults, "faults": list(faults)},
    faults=tuple(faults),
    failure=failure if faults else None,
  )
