"""`oneshot-dp sweep`."""

import dataclasses
import time
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, arg

from oneshot_dp.configs.head_config import (
  HeadConfig,
  PrivacyConfig,
  ReleaseOrder,
)
from oneshot_dp.pipeline.commands.flags import (
  EvalCache,
  LedgerDir,
  MaxRowsPerUnit,
  NumDraws,
  PublicOptions,
  ResultsDir,
  TrainCache,
)
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Train heads for many epsilons from one cache, and score them.

  Writes results.csv, results.json, accuracy.png and every head with its
  receipt. Nested releases (the default of one-step heads) together cost the
  largest epsilon, once per draw; independent ones compose. The labels of the
  evaluation cache are treated as public, unless --private-eval is given.

  Example: oneshot-dp sweep --cache caches/train --eval-cache caches/test
  --epsilons 0.25 0.5 1 2 4 8 --delta 1e-5 --out results
  """

  cache: TrainCache
  eval_cache: EvalCache
  epsilons: tuple[float, ...]
  """Privacy budgets, one head each."""
  out: ResultsDir
  privacy: OmitArgPrefixes[PrivacyConfig]
  max_rows_per_unit: MaxRowsPerUnit = None
  num_draws: NumDraws = 1
  release: ReleaseOrder | None = None
  """Whether smaller epsilons reuse the noise of larger ones. Default: nested
  where the head is of one step, independent otherwise."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also train a head without noise (epsilon = infinity): NOT PRIVATE."""
  private_eval: float | None = None
  """Privacy budget of all accuracies together: the labels of the evaluation
  cache are private, and noisy counts are published. Charged at delta to the
  ledger of its data set, which is the ledger of the training too where both
  are splits of one data set."""
  training: Annotated[HeadConfig, arg(name="")]
  public: OmitArgPrefixes[PublicOptions]
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Trains and scores them."""
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.pipeline.commands.many_heads import (
    answer_of_run,
    public_rows_of,
    stoppable,
  )
  from oneshot_dp.pipeline.runs.results import accuracy_table
  from oneshot_dp.pipeline.runs.run import Run
  from oneshot_dp.pipeline.runs.sweep import run_sweep
  from oneshot_dp.pipeline.training.head_choice import choose_head

  start = time.monotonic()
  cache, evaluation = open_cache(flags.cache), open_cache(flags.eval_cache)
  config = choose_head(flags.training, cache.info)
  with stoppable(flags.out, flags.ledger_dir, cache, evaluation):
    rows = run_sweep(
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
      config,
      max_rows_per_unit=flags.max_rows_per_unit,
      public=public_rows_of(flags.public, cache),
      order=flags.release,
      private_eval=flags.private_eval,
    )
  return answer_of_run(flags.out, rows, accuracy_table(rows), start)
