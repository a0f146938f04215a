"""`oneshot-dp budget`."""

import dataclasses

from oneshot_dp.pipeline.commands.flags import BudgetCache, LedgerDir
from oneshot_dp.pipeline.shell.answer import Answer

USES_JAX = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """List the releases made from a cache's private data and what they add up to.

  One line for each, then an odometer's reading: the epsilon of the least cap
  that would have let all of this out. It is a guarantee only where such a cap
  was set before the first release. Then what is left of the cap, if there is
  one: see oneshot-dp budget set --help.

  Example: oneshot-dp budget --cache caches/train
  """

  cache: BudgetCache
  delta: float | None = None
  """Delta of the reading; default: the cap's, or else the smallest that was
  used."""
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Reads the ledger."""
  from oneshot_dp.pipeline.commands.privacy.budget_report import budget_report

  return budget_report(flags.cache, flags.delta, flags.ledger_dir)
