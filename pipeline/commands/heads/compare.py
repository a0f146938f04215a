"""`oneshot-dp compare`."""

import dataclasses
import time

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.head_config import MethodName, PrivacyConfig
from oneshot_dp.pipeline.commands.flags import (
  LedgerDir,
  NumDraws,
  PublicEvalCache,
  PublicOptions,
  ResultsDir,
  TrainCache,
)
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Train every kind of head for many epsilons, and score them side by side.

  Writes one results.csv, results.json and accuracy.png, and every head with its
  receipt. Heads of one step (lamb, adam, momentum) are made of the same nested
  releases and together cost the largest epsilon, once per draw; so do those of
  least squares, with releases of their own; whitened and multi-step heads have
  noise of their own each. All of it composes, is charged, or refused by a cap,
  before any noise is drawn, and the table says what it comes to. All heads have
  their default settings. The labels of the evaluation cache are treated as
  public.

  Example: oneshot-dp compare --cache caches/train --eval-cache caches/test
  --epsilons 0.5 2 8 --delta 1e-5 --out comparison
  """

  cache: TrainCache
  eval_cache: PublicEvalCache
  epsilons: tuple[float, ...]
  """Privacy budgets, one head of each kind for each."""
  out: ResultsDir
  privacy: OmitArgPrefixes[PrivacyConfig]
  heads: tuple[MethodName, ...] | None = None
  """What to compare; default: all that the cache allows."""
  public: OmitArgPrefixes[PublicOptions]
  num_draws: NumDraws = 1
  baseline: FlagCreatePairsOff[bool] = False
  """Also fit a logistic regression without noise, as the ceiling: NOT
  PRIVATE."""
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Trains and scores them."""
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.pipeline.commands.many_heads import (
    answer_of_run,
    public_rows_of,
    stoppable,
  )
  from oneshot_dp.pipeline.runs.compare import run_compare
  from oneshot_dp.pipeline.runs.results import comparison_table
  from oneshot_dp.pipeline.runs.run import Run

  start = time.monotonic()
  cache, evaluation = open_cache(flags.cache), open_cache(flags.eval_cache)
  with stoppable(flags.out, flags.ledger_dir, cache):
    rows = run_compare(
      Run(
        train=cache,
        evaluation=evaluation,
        out=flags.out,
        num_draws=flags.num_draws,
        baseline=flags.baseline,
        ledger_dir=flags.ledger_dir,
      ),
      flags.epsilons,
      flags.privacy,
      methods=flags.heads,
      public=public_rows_of(flags.public, cache),
    )
  return answer_of_run(flags.out, rows, comparison_table(rows), start)
