"""What a run of many heads leaves behind: tables, pictures, heads.

DIR/results.csv    one row per head
DIR/results.json   the same, with what the whole run cost
DIR/config.json    everything that was asked for
DIR/accuracy.png   accuracy against epsilon (and accuracy.pdf), where there is
                   matplotlib
DIR/heads/ …       a head each

`oneshot-dp report DIR` adds a page for people.
"""

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.summary import public_metadata
from oneshot_dp.linear_dp.evaluate import Accuracy
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.ledger.ledger import default_ledger_dir
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs import pictures as plots
from oneshot_dp.pipeline.runs.evaluation import Evaluation
from oneshot_dp.pipeline.runs.results import SweepRow, as_json, write_tables
from oneshot_dp.pipeline.saved_head.directory import write_head


def write_run(
  out: Path,
  train: FeatureCache,
  evaluation: FeatureCache,
  trained: Sequence[TrainedHead],
  scored: Evaluation,
  *,
  cost: Mapping[str, Any],
  asked: Mapping[str, Any],
  ledger_dir: Path | None = None,
  name_methods: bool = False,
) -> list[SweepRow]:
  """Writes all of it, or nothing.

  Args:
    out: a directory that is not there yet.
    train: the private rows.
    evaluation: the rows that the heads were scored on.
    trained: the heads.
    scored: their accuracies.
    cost: of all private heads together: "composed_epsilon" and whatever else
      results.json is to say of it.
    asked: the options of the run.
    ledger_dir: where it was charged; None is the default place.
    name_methods: a head's directory is called after its method too.

  Returns:
    The rows of results.csv.

  Raises:
    RunError: the disk is full or the place is not writable.
  """
  rows = [
    row_of(
      head,
      score,
      train,
      scored.description,
      composed_epsilon=cost["composed_epsilon"],
      prefix=f"{head.settings['head']}-" if name_methods else "",
    )
    for head, score in zip(trained, scored.scores, strict=True)
  ]
  with output_dir.whole_directory(out) as directory:
    for head, row in zip(trained, rows, strict=True):
      write_head(directory / row.path, head, train.info)
    write_tables(directory, rows, cost, scored.statement)
    write_config(
      directory,
      train,
      evaluation,
      {"run": _circumstances(train, evaluation, ledger_dir), **asked},
    )
    plots.plot_accuracy(rows, train.info.dataset, directory)
  return rows


def write_config(
  directory: Path,
  train: FeatureCache,
  evaluation: FeatureCache,
  asked: Mapping[str, Any],
) -> None:
  """Writes config.json: what was asked for, and of which caches."""
  config = {
    "train_cache": public_metadata(train),
    "eval_cache": public_metadata(evaluation),
    **asked,
  }
  (directory / "config.json").write_text(as_json(config))


def _circumstances(
  train: FeatureCache, evaluation: FeatureCache, ledger_dir: Path | None
) -> dict[str, str]:
  """When and where it ran, for whoever looks at the results later."""
  now = datetime.datetime.now(datetime.UTC)
  return {
    "date": now.isoformat(timespec="seconds"),
    "cache": str(train.path.absolute()),
    "eval_cache": str(evaluation.path.absolute()),
    "ledger_dir": str((ledger_dir or default_ledger_dir()).absolute()),
  }


def row_of(
  trained: TrainedHead,
  score: Accuracy,
  train: FeatureCache,
  evaluation: str,
  *,
  composed_epsilon: float,
  prefix: str,
) -> SweepRow:
  """The line of results.csv about a head.

  Args:
    trained: the head.
    score: its accuracies.
    train: the private rows.
    evaluation: what the accuracies are, in words.
    composed_epsilon: of all private heads of the run, at the head's delta.
    prefix: of the name of its directory, to tell it from its neighbours.
  """
  statement, method = trained.statement, trained.settings["head"]
  if math.isfinite(statement.epsilon):
    # All digits: two epsilons that look alike are two heads.
    epsilon = str(statement.epsilon).removesuffix(".0")
    name = f"{prefix}epsilon-{epsilon}-draw-{trained.draw}"
  else:
    name = f"{prefix or 'baseline-'}NOT-PRIVATE"
  return SweepRow(
    epsilon=statement.epsilon,
    delta=statement.delta,
    draw=trained.draw,
    head=method,
    noise_multiplier=statement.noise_multiplier,
    top1=score.top1,
    top5=score.top5,
    composed_epsilon=composed_epsilon,
    num_examples=len(train),
    num_eval_examples=score.num_examples,
    evaluation=evaluation,
    release=trained.plan.order,
    noise_source=statement.noise_source,
    private=statement.is_private,
    path=f"heads/{name}",
  )
