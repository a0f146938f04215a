"""`oneshot-dp compare`."""

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import (
  HeadConfig,
  HeadName,
  PrivacyConfig,
  called,
)
from oneshot_dp.pipeline.commands.flags import OnHosts, PublicOptions, RunFlags
from oneshot_dp.pipeline.shell.answer import Answer

if TYPE_CHECKING:
  from oneshot_dp.linear_dp.rows.hosts import Hosts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
  """Train every kind of head for many epsilons, and score them side by side.

  Writes one results.csv, results.json and accuracy.png, and every head with its
  receipt. Heads of one step (lamb, adam, momentum) are made of the same nested
  releases and together cost the largest epsilon, once per draw; so do those of
  least squares, with releases of their own; auto and multi-step heads have
  noise of their own each. All of it composes, is charged, or refused by a cap,
  before any noise is drawn, and the table says what it comes to. All heads have
  their default settings. The labels of the evaluation cache are treated as
  public.

  With --choose there is no evaluation cache: all heads together get one
  epsilon, are scored by noisy counts on about a tenth of the private rows, held
  out by each row's own content (all rows of a unit by its id), and the best is
  written, as `train` writes one.
  The choice is part of that epsilon, and the receipt says what was looked at.

  Example: oneshot-dp compare --cache caches/train --eval-cache caches/test
  --epsilons 0.5 2 8 --delta 1e-5 --out comparison

  Example: oneshot-dp compare --choose --heads lamb least-squares auto
  --cache caches/train --epsilons 2 --delta 1e-5 --out heads/best
  """

  epsilons: tuple[float, ...]
  """Privacy budgets, one head of each kind for each."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  heads: tuple[HeadName, ...] | None = None
  """What to compare; default: all that the cache allows."""
  public: OmitArgPrefixes[PublicOptions]
  eval_cache: Path | None = None  # pyrefly: ignore[bad-override]
  """The labelled cache that heads are scored on; not with --choose."""
  choose: FlagCreatePairsOff[bool] = False
  """Write the best head alone, chosen by private rows within its epsilon."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also fit a logistic regression without noise, which private heads may
  surpass: NOT PRIVATE."""
  hosts: OnHosts = None


def run(flags: Flags) -> Answer:
  """Trains and scores them."""
  if flags.choose:
    from oneshot_dp.pipeline.training.hosts import on_hosts

    return on_hosts(flags, functools.partial(_choose, flags))
  if flags.eval_cache is None:
    raise InputError(
      "compare needs --eval-cache, with public labels to score by, or --choose,"
      " which scores by private ones and pays for it."
    )
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


def _choose(flags: Flags, hosts: "Hosts") -> Answer:
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.linear_dp.accounting.gaussian import printable
  from oneshot_dp.pipeline.commands.heads.train import deliver
  from oneshot_dp.pipeline.runs import output_dir
  from oneshot_dp.pipeline.runs.compare import choosable
  from oneshot_dp.pipeline.training.public_rows import (
    choosing_trainer,
    find_public_rows,
  )
  from oneshot_dp.pipeline.training.train_heads import Training, make_plan

  if len(flags.epsilons) != 1 or flags.num_draws != 1 or flags.baseline:
    raise InputError(
      "--choose writes one head: give one epsilon, without --num-draws or"
      " --baseline."
    )
  if flags.eval_cache is not None:
    raise InputError(
      "--choose scores by held-out private rows, not by --eval-cache: leave one"
      " of them out, and score what was chosen with `oneshot-dp evaluate`."
    )
  output_dir.check_absent(flags.out)
  cache = open_cache(flags.cache)
  public = find_public_rows(
    cache, **vars(flags.public), ledger_dir=flags.ledger_dir
  )
  methods = choosable(flags.heads)
  trainer = choosing_trainer(
    cache, [HeadConfig(head=m) for m in methods], public, hosts
  )
  plan = make_plan(flags.epsilons, flags.privacy, order="independent")
  note = (
    f"choosing among {', '.join(map(called, methods))}, within epsilon"
    f" {printable(plan.composed_epsilon)} for all of it"
  )
  # Keys decide who is held out: one row is in heads or in counts, not in both.
  training = Training(
    trainer=trainer,
    plan=plan,
    facts={"keys_digest": cache.keys_digest},
    note=note,
  )
  made = deliver(cache, training, flags.privacy, flags.out, flags.ledger_dir)
  chosen = made.facts["receipt"]["training"]["head"]
  return dataclasses.replace(
    made, text=f"{made.text}\nchosen: {called(chosen)}"
  )
