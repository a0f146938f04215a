"""What the commands that train do and answer."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.commands.training_arguments import (
  Compare,
  PublicOptions,
  Sweep,
  Train,
)
from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs.compare import run_compare
from oneshot_dp.pipeline.runs.results import (
  SweepRow,
  accuracy_table,
  comparison_table,
)
from oneshot_dp.pipeline.runs.sweep import run_sweep
from oneshot_dp.pipeline.saved_head.directory import write_head
from oneshot_dp.pipeline.saved_head.receipt import how_bounded
from oneshot_dp.pipeline.shell.answer import Answer
from oneshot_dp.pipeline.training.head_choice import choose_head
from oneshot_dp.pipeline.training.public_rows import (
  PublicRows,
  find_public_rows,
)
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  plan_heads,
  train_heads,
)


def train(command: Train) -> Answer:
  """Trains one head."""
  output_dir.check_absent(command.out)
  cache = open_cache(command.cache)
  config = choose_head(command.training, cache.info)
  plan = plan_heads(config, len(cache), (command.epsilon,), command.privacy)
  public = _public_rows(command.public, cache)
  with stoppable(command.out, command.ledger_dir, cache):
    (trained,) = train_heads(
      cache,
      plan,
      config,
      command.privacy,
      max_rows_per_unit=command.max_rows_per_unit,
      public=public,
      ledger_dir=command.ledger_dir,
    )
    with output_dir.whole_directory(command.out) as directory:
      receipt = write_head(directory, trained, cache.info)
  privacy, mechanism = receipt["privacy"], receipt["mechanism"]
  text = (
    f"{command.out}: epsilon = {printable(privacy['epsilon'])} at delta ="
    f" {printable(privacy['delta'])} ({privacy['neighboring_relation']}), noise"
    f" multiplier {privacy['noise_multiplier']:.4f}, noise from"
    f" {privacy['noise_source']}"
  )
  if cache.info.has_units:
    bound = how_bounded(mechanism["clipped"], mechanism["rows_per_unit"])
    text += f"\nprivacy unit: {cache.info.privacy_unit}; of its rows, {bound}"
  return Answer(text=text, facts={"out": command.out, "receipt": receipt})


def sweep(command: Sweep) -> Answer:
  """Trains heads for many epsilons."""
  start = time.monotonic()
  cache = open_cache(command.cache)
  evaluation = open_cache(command.eval_cache)
  config = choose_head(command.training, cache.info)
  with stoppable(command.out, command.ledger_dir, cache, evaluation):
    rows = run_sweep(
      cache,
      evaluation,
      command.out,
      command.epsilons,
      command.privacy,
      config,
      max_rows_per_unit=command.max_rows_per_unit,
      public=_public_rows(command.public, cache),
      num_draws=command.num_draws,
      order=command.release,
      baseline=command.baseline,
      ledger_dir=command.ledger_dir,
      private_eval=command.private_eval,
    )
  return answer_of_run(command.out, rows, accuracy_table(rows), start)


def compare(command: Compare) -> Answer:
  """Trains heads of every kind."""
  start = time.monotonic()
  cache = open_cache(command.cache)
  evaluation = open_cache(command.eval_cache)
  with stoppable(command.out, command.ledger_dir, cache):
    rows = run_compare(
      cache,
      evaluation,
      command.out,
      command.epsilons,
      command.privacy,
      methods=command.heads,
      public=_public_rows(command.public, cache),
      num_draws=command.num_draws,
      baseline=command.baseline,
      ledger_dir=command.ledger_dir,
    )
  return answer_of_run(command.out, rows, comparison_table(rows), start)


def stoppable(
  out: Path, ledger_dir: Path | None, *caches: FeatureCache
) -> contextlib.AbstractContextManager[None]:
  """Around a run that makes `out`: Ctrl-C says what it has charged."""
  ledgers = [cache_ledger(cache, ledger_dir) for cache in caches]
  return says_what_was_charged(*ledgers, out=out)


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
  facts: dict[str, Any] = {
    "out": out,
    "seconds": seconds,
    "composed_epsilon": {str(r.delta): r.composed_epsilon for r in rows},
    "heads": rows,
  }
  # Without matplotlib there is no picture.
  written = [name for name in ("results.csv", picture) if (out / name).exists()]
  return Answer(
    text=f"{table}\n{out}: {heads} heads in {seconds:.1f} s; see"
    f" {' and '.join(written)}",
    facts=facts,
  )


def _public_rows(
  options: PublicOptions, cache: FeatureCache
) -> PublicRows | None:
  return find_public_rows(
    options.public_cache, cache, options.public_statistics
  )
