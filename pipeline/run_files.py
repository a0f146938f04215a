"""What a run of many heads leaves behind: tables, pictures, heads.

DIR/results.csv    one row per head
DIR/results.json   the same, with what the whole run cost
DIR/config.json    everything that was asked for
DIR/accuracy.png   accuracy against epsilon (and accuracy.pdf)
DIR/heads/ …       a head each
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.cache_reader import FeatureCache
from extract.cache_summary import public_metadata
from linear_dp.evaluate import Accuracy
from pipeline import output_dir, report
from pipeline.evaluation import Evaluation
from pipeline.head_directory import write_head
from pipeline.results import SweepRow, as_json, write_tables
from pipeline.trainer import TrainedHead


def write_run(
  out: Path,
  train: FeatureCache,
  evaluation: FeatureCache,
  trained: Sequence[TrainedHead],
  scored: Evaluation,
  *,
  cost: Mapping[str, Any],
  asked: Mapping[str, Any],
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
    name_methods: a head's directory is called after its method too.

  Returns:
    The rows of results.csv.

  Raises:
    RunError: the disk is full or the place is not writable.
  """
  rows = [
    _row(head, score, train, scored.description, cost, name_methods)
    for head, score in zip(trained, scored.scores, strict=True)
  ]
  with output_dir.whole_directory(out) as directory:
    for head, row in zip(trained, rows, strict=True):
      write_head(directory / row.path, head, train.info)
    write_tables(directory, rows, cost, scored.statement)
    (directory / "config.json").write_text(
      as_json(
        {
          "train_cache": public_metadata(train),
          "eval_cache": public_metadata(evaluation),
          **asked,
        }
      )
    )
    report.plot_accuracy(rows, train.info.dataset, directory)
  return rows


def _row(
  trained: TrainedHead,
  score: Accuracy,
  train: FeatureCache,
  evaluation: str,
  cost: Mapping[str, Any],
  name_methods: bool,
) -> SweepRow:
  statement, method = trained.statement, trained.settings["head"]
  if math.isfinite(statement.epsilon):
    # All digits: two epsilons that look alike are two heads.
    epsilon = str(statement.epsilon).removesuffix(".0")
    name = f"epsilon-{epsilon}-seed-{trained.draw}"
    name = f"{method}-{name}" if name_methods else name
  else:
    name = f"{method if name_methods else 'baseline'}-NOT-PRIVATE"
  return SweepRow(
    epsilon=statement.epsilon,
    delta=statement.delta,
    seed=trained.draw,
    head=method,
    noise_multiplier=statement.noise_multiplier,
    top1=score.top1,
    top5=score.top5,
    composed_epsilon=cost["composed_epsilon"],
    num_examples=len(train),
    num_eval_examples=score.num_examples,
    evaluation=evaluation,
    release=trained.plan.order,
    noise_source=statement.noise_source,
    private=statement.is_private,
    path=f"heads/{name}",
  )
