"""`oneshot-dp compare`."""

import dataclasses

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.head_config import MethodName, PrivacyConfig
from oneshot_dp.pipeline.commands.flags import PublicOptions, RunFlags
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
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

  epsilons: tuple[float, ...]
  """Privacy budgets, one head of each kind for each."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  heads: tuple[MethodName, ...] | None = None
  """What to compare; default: all that the cache allows."""
  public: OmitArgPrefixes[PublicOptions]
  baseline: FlagCreatePairsOff[bool] = False
  """Also fit a logistic regression without noise, as the ceiling: NOT
  PRIVATE."""


def run(flags: Flags) -> Answer:
  """Trains and scores them."""
  from oneshot_dp.pipeline.commands.many_heads import answer_of_run
  from oneshot_dp.pipeline.runs.compare import run_compare
  from oneshot_dp.pipeline.runs.results import comparison_table
  from oneshot_dp.pipeline.training.public_rows import find_public_rows

  return answer_of_run(
    flags,
    lambda run: run_compare(
      run,
      flags.epsilons,
      flags.privacy,
      methods=flags.heads,
      public=find_public_rows(
        run.train, **vars(flags.public), ledger_dir=run.ledger_dir
      ),
    ),
    comparison_table,
  )
