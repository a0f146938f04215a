"""What commands that train share."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.pipeline.commands.flags import RunFlags
from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.runs.run import Run
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.training.hosts import on_hosts
from oneshot_dp.pipeline.training.train_heads import cache_ledger


def answer_of_run(
  flags: RunFlags,
  train_and_score: Callable[[Run], Sequence[SweepRow]],
  table: Callable[[Any], str],
  picture: str = "accuracy.png",
) -> Answer:
  """Opens the caches, does the run, and says what came of it.

  `train_and_score` returns the rows of results.csv, of which `table` is for
  people; `picture` is the one to look at first.
  """

  def answer(hosts: Hosts) -> Answer:
    start, out = time.monotonic(), flags.out
    run = Run(
      train=open_cache(flags.cache),
      evaluation=open_cache(flags.eval_cache),
      out=out,
      num_draws=flags.num_draws,
      baseline=flags.baseline,
      ledger_dir=flags.ledger_dir,
      hosts=hosts,
    )
    caches = run.train, run.evaluation
    charged = [cache_ledger(cache, flags.ledger_dir) for cache in caches]
    with (
      says_what_was_charged(*charged, out=out),
      output_dir.reserved(out, goes_on=True),
    ):
      rows = train_and_score(run)
    heads, seconds = len({row.path for row in rows}), time.monotonic() - start
    # Without matplotlib there is no picture.
    written = [n for n in ("results.csv", picture) if (out / n).exists()]
    return Answer(
      text=f"{table(rows)}\n{out}: {heads} heads in {seconds:.1f} s; see"
      f" {' and '.join(written)}",
      facts={
        "out": out,
        "seconds": seconds,
        "composed_epsilon": {str(r.delta): r.composed_epsilon for r in rows},
        "heads": rows,
      },
    )

  return on_hosts(flags, answer) if hasattr(flags, "hosts") else answer(ALONE)
