"""`oneshot-dp budget set`."""

import dataclasses
import sys

from oneshot_dp.pipeline.commands.flags import BudgetCache, LedgerDir, Relation
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Cap what may ever be released from a cache's private data.

  All releases together are kept (max-epsilon, max-delta)-private, whatever the
  delta that each was stated at, and however each was chosen by those before it.
  A train or sweep that would go over is refused before anything is charged or
  any noise is drawn, and so are baselines and noise from a seed, which no
  epsilon covers. A later cap replaces this one; the ledger keeps both, and
  shows it when the cap was raised: that promises less than a cap that was set
  before anything was seen.

  Example: oneshot-dp budget set --cache caches/train --max-epsilon 8
  --max-delta 1e-5
  """

  cache: BudgetCache
  max_epsilon: float
  """Epsilon of everything together."""
  max_delta: float
  """Delta of everything together: the delta at which max-epsilon must hold."""
  sampling_delta: float | None = None
  """Part of max-delta for random batches (poisson samples). By default a
  tenth if the first release has some, or any has by now. Otherwise nothing,
  and they cost what full batches would."""
  neighboring_relation: Relation = "replace-special"
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Writes the cap into the ledger, and says what it changes."""
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.linear_dp.accounting.gaussian import printable
  from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
  from oneshot_dp.pipeline.commands.privacy.budget_report import left_under
  from oneshot_dp.pipeline.ledger.cap import Cap, cap_of
  from oneshot_dp.pipeline.ledger.spending import spending_of
  from oneshot_dp.pipeline.training.train_heads import RELATIONS, cache_ledger

  relation = RELATIONS[flags.neighboring_relation]
  cap = Cap(
    max_epsilon=flags.max_epsilon,
    max_delta=flags.max_delta,
    neighboring_relation=relation,
    sampling_delta=flags.sampling_delta,
  )
  ledger = cache_ledger(open_cache(flags.cache), flags.ledger_dir)
  before = ledger.set_cap(cap)
  entries = ledger.entries()
  cap = cap_of(entries) or cap
  spent = spending_of(entries, relation)
  if before and cap.is_looser_than(before):
    _warn(
      f"THE CAP WAS RAISED, from {before} to {cap}; the ledger keeps both. If"
      " results were seen before, the new cap is no proven guarantee: they may"
      " have led to it."
    )
  elif before is None and spent.choices:
    _warn(
      "the cap was set after the first release: if it was chosen by what that"
      " showed, it is no proven guarantee."
    )
  if spent.not_private:
    _warn(
      f"{spent.not_private} entries let out results that are {NOT_PRIVATE}; no"
      " cap covers those."
    )
  if not cap.allows(entries):
    _warn("more than this is spent already; nothing further will be released.")
  in_words, left = left_under(cap, entries)
  epsilon = cap.spent(entries)
  return Answer(
    text=f"cap: {cap}; epsilon {printable(epsilon)} is spent, {in_words}",
    facts={
      "ledger": ledger.path,
      "cap": cap,
      "cap_before": before,
      "spent": {
        "delta": cap.max_delta,
        "epsilon": {relation.name: epsilon},
        "not_private": spent.not_private,
      },
      "left": left,
    },
  )


def _warn(warning: str) -> None:
  print(f"warning: {warning}", file=sys.stderr)
