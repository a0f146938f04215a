"""`oneshot-dp sweep`."""

import dataclasses

from oneshot_dp.configs.head_config import ReleaseOrder
from oneshot_dp.pipeline.commands.flags import HeadFlags, OnHosts, RunFlags
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(HeadFlags, RunFlags):
  """Train heads for many epsilons from one cache, and score them.

  By default the paper's single step (lamb). One line says what it costs, and
  what --head auto would.

  Writes results.csv, results.json, accuracy.png and every head with its
  receipt. Nested releases (the default of one-step heads and least squares;
  --release nested for auto) together cost the largest epsilon, once per draw;
  independent ones compose. The labels of the
  evaluation cache are treated as public, unless --private-eval is given.

  Example: oneshot-dp sweep --cache caches/train --eval-cache caches/test
  --epsilons 0.25 0.5 1 2 4 8 --delta 1e-5 --out results
  """

  epsilons: tuple[float, ...]
  """Privacy budgets, one head each."""
  release: ReleaseOrder | None = None
  """Whether smaller epsilons reuse the noise of larger ones. Default: nested
  where the head is of one step or least squares, independent otherwise. Nested
  heads of auto go on from those of smaller epsilons."""
  private_eval: float | None = None
  """Privacy budget of all accuracies together: the labels of the evaluation
  cache are private, and noisy counts are published. Charged at delta to the
  ledger of its data set, which is the ledger of the training too where both
  are splits of one data set."""
  hosts: OnHosts = None


def run(flags: Flags) -> Answer:
  """Trains and scores them."""
  from oneshot_dp.pipeline.commands.many_heads import answer_of_run
  from oneshot_dp.pipeline.runs.results import accuracy_table
  from oneshot_dp.pipeline.runs.sweep import run_sweep
  from oneshot_dp.pipeline.training.public_rows import find_public_rows

  return answer_of_run(
    flags,
    lambda run: run_sweep(
      run,
      flags.epsilons,
      flags.privacy,
      flags.training,
      max_rows_per_unit=flags.max_rows_per_unit,
      public=find_public_rows(
        run.train, **vars(flags.public), ledger_dir=run.ledger_dir
      ),
      order=flags.release,
      private_eval=flags.private_eval,
    ),
    accuracy_table,
  )
