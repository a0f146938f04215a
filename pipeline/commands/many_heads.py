"""What commands that train share."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.commands.flags import PublicOptions
from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
from oneshot_dp.pipeline.runs.results import SweepRow
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.training.public_rows import (
  PublicRows,
  find_public_rows,
)
from oneshot_dp.pipeline.training.train_heads import cache_ledger


def stoppable(
  out: Path, ledger_dir: Path | None, *caches: FeatureCache
) -> contextlib.AbstractContextManager[None]:
  """Around a run that makes `out`: Ctrl-C says what it has charged."""
  ledgers = [cache_ledger(cache, ledger_dir) for cache in caches]
  return says_what_was_charged(*ledgers, out=out)


def public_rows_of(
  options: PublicOptions, cache: FeatureCache
) -> PublicRows | None:
  """The public rows that are to centre a cache, if any."""
  return find_public_rows(
    options.public_cache, cache, options.public_statistics
  )


def answer_of_run(
  out: Path,
  rows: Sequence[SweepRow],
  table: str,
  start: float,
  picture: str = "accuracy.png",
) -> Answer:
  """What a run of many heads says.

  Args:
    out: where it wrote them.
    rows: of its results.csv.
    table: the same for people.
    start: when it began (`time.monotonic`).
    picture: the one to look at first.
  """
  heads, seconds = len({row.path for row in rows}), time.monotonic() - start
  # Without matplotlib there is no picture.
  written = [name for name in ("results.csv", picture) if (out / name).exists()]
  return Answer(
    text=f"{table}\n{out}: {heads} heads in {seconds:.1f} s; see"
    f" {' and '.join(written)}",
    facts={
      "out": out,
      "seconds": seconds,
      "composed_epsilon": {str(r.delta): r.composed_epsilon for r in rows},
      "heads": rows,
    },
  )
