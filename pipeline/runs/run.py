"""What a run of many heads is given, what it checks, and what it leaves behind.

DIR/results.csv    one row per head
DIR/results.json   the same, with what the whole run cost
DIR/config.json    everything that was asked for
DIR/accuracy.png   accuracy against epsilon (and accuracy.pdf), where there is
                   matplotlib
DIR/heads/ …       a head each

With a head in it that is NOT PRIVATE (a baseline, or seeded noise) all of these
files have mode 0600, and DIR and that head's folder 0700.

`oneshot-dp report DIR` adds a page for people.
"""

import dataclasses
import datetime
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.summary import public_metadata
from oneshot_dp.extract.duplicates.shared_rows import (
  count_shared_rows,
  count_shared_units,
)
from oneshot_dp.extract.storage.durable_files import keep_from_others
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.trainer import BaselineTrainer, TrainedHead
from oneshot_dp.pipeline.ledger.folder import (
  check_never_charged,
  default_ledger_dir,
  units_refused,
)
from oneshot_dp.pipeline.runs import output_dir, pictures
from oneshot_dp.pipeline.runs.evaluation import (
  EXACT_SCORES,
  Evaluation,
  check_readable,
)
from oneshot_dp.pipeline.runs.results import SweepRow, as_json, write_tables
from oneshot_dp.pipeline.saved_head.directory import (
  bytes_of,
  head_bytes,
  write_head,
)
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.training.record import UNRECORDED, Payments, Record
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_ledger,
  train_all,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """What every run of many heads is given.

  Attributes:
    evaluation: labelled rows; public, unless a sweep is told otherwise.
    num_draws: independent repetitions, each charged.
    baseline: also train without noise, NOT PRIVATE.
    hosts: that have a part of the private rows each.
  """

  train: FeatureCache
  evaluation: FeatureCache
  out: Path
  num_draws: int = 1
  baseline: bool = False
  ledger_dir: Path | None = None
  hosts: Hosts = ALONE

  @property
  def dataset(self) -> str:
    """The public name of the private data."""
    return self.train.info.dataset

  def check(self, *, labels_are_public: bool = True) -> None:
    """Refuses a place that is taken, and caches that do not fit each other.

    Where the evaluation labels are public, no ledger may say otherwise.
    """
    output_dir.check_absent(self.out)
    check_pair(self.train, self.evaluation, labels_are_public=labels_are_public)
    if labels_are_public:
      check_never_charged(self.evaluation, self.ledger_dir, EXACT_SCORES)

  def record(
    self,
    trainings: Sequence[Training],
    privacy: PrivacyConfig,
    private_eval: float | None = None,
  ) -> Payments:
    """What a stopped run goes on from; takes the disk that all of it needs."""
    here = output_dir.held(self.out)
    if here is None:
      return UNRECORDED
    parts = [(each.trainer, each.plan) for each in trainings]
    heads = sum(p.num_draws * len(p.epsilons) + 1 for _, p in parts)
    here.make_room(heads * head_bytes(self.train.info))
    ledger = cache_ledger(self.train, self.ledger_dir)
    seed, info = privacy.noise_seed, self.train.info
    also = {}
    if private_eval is not None:
      # Other rows of that data set are told by its ledger's entries.
      dataset = self.evaluation.info.dataset
      also = {"private_eval": private_eval, "evaluation": dataset}
    return Record.find(here.record, ledger, parts, seed, info, also)

  def trained(
    self,
    trainings: Sequence[Training],
    privacy: PrivacyConfig,
    baseline: BaselineTrainer,
    record: Payments,
  ) -> list[TrainedHead]:
    """Trains all, and the baseline where the run has one; see `train_all`."""
    # One pass that costs no budget: a damaged evaluation cache is found now.
    check_readable(self.evaluation)
    return train_all(
      self.train,
      trainings,
      privacy,
      ledger_dir=self.ledger_dir,
      baseline=baseline if self.baseline else None,
      record=record,
    )

  def circumstances(self) -> dict[str, str]:
    """When and where it runs, for whoever looks at the results later."""
    now = datetime.datetime.now(datetime.UTC)
    ledger_dir = self.ledger_dir or default_ledger_dir()
    return {
      "date": now.isoformat(timespec="seconds"),
      "cache": str(self.train.path.absolute()),
      "eval_cache": str(self.evaluation.path.absolute()),
      "ledger_dir": str(ledger_dir.absolute()),
    }

  def write(
    self,
    trained: Sequence[TrainedHead],
    rows: Sequence[SweepRow],
    *,
    cost: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    asked: Mapping[str, Any],
    plot: Callable[[Path], object] | None = None,
    trained_on: Sequence[FeatureCache] | None = None,
  ) -> None:
    """Writes all of it, or nothing.

    `rows` are of each head in turn, and more after them; `cost` is that of all
    private heads together, `evaluation` what was released to score them, and
    `asked` the options of the run, all JSON. `plot` draws into a directory, by
    default accuracy against epsilon; `trained_on` is the cache of each head,
    where they are not all of `train`.
    """

    def plot_accuracy(folder: Path) -> None:
      from oneshot_dp.pipeline.runs import accuracy_plot

      accuracy_plot.plot_accuracy(rows, self.dataset, folder)

    caches = trained_on or [self.train] * len(trained)
    config = {
      "train_cache": public_metadata(self.train),
      "eval_cache": public_metadata(self.evaluation),
      **asked,
      "num_draws": self.num_draws,
      "baseline": self.baseline,
    }
    with output_dir.whole_directory(self.out) as directory:
      folders = [directory / row.path for row in rows[: len(trained)]]
      for folder, head, cache in zip(folders, trained, caches, strict=True):
        write_head(folder, head, cache.info)
      write_tables(directory, rows, cost, evaluation)
      results = (directory / "results.json").read_bytes()
      config["results_sha256"] = hashlib.sha256(results).hexdigest()
      (directory / "config.json").write_text(as_json(config), "utf-8")
      pictures.draw(plot or plot_accuracy, directory)
      if not all(row.private for row in rows):
        keep_from_others(directory)
      # One for all: what other caches were trained on are the same images.
      ledger = cache_ledger(self.train, self.ledger_dir)
      ledger.publish(*map(bytes_of, folders))


def check_pair(
  train: FeatureCache,
  evaluation: FeatureCache,
  *,
  labels_are_public: bool = True,
) -> None:
  """Refuses to score heads on rows of another kind, or on those trained on.

  And, with public labels, on other rows of units that are trained on.
  """
  FeatureSpace.of_cache(train.path, train.info).check_evaluates_on(
    FeatureSpace.of_cache(evaluation.path, evaluation.info)
  )
  if shared := count_shared_rows(evaluation, train):
    raise InputError(
      f"{shared} of the {len(evaluation)} rows of {evaluation.path} are rows"
      f" of {train.path}, whatever they are called: accuracy on training rows"
      " is an exact statistic of private labels; give a cache of other images,"
      " or leave these out."
    )
  if not (labels_are_public and evaluation.info.has_units):
    return
  if shared := count_shared_units(evaluation, train):
    raise units_refused(shared, evaluation, train.path)


def rows_of(
  trained: Sequence[TrainedHead],
  scored: Evaluation,
  train: FeatureCache,
  *,
  composed: Mapping[float, float],
  prefixes: Iterable[str] = itertools.repeat(""),
) -> list[SweepRow]:
  """The lines of results.csv about heads.

  `composed` is δ → ε of all private heads of the run together; `prefixes` tell
  the names of heads' directories from their neighbours'.
  """
  rows = []
  for head, score, start in zip(trained, scored.scores, prefixes, strict=False):
    statement = head.statement
    if math.isfinite(statement.epsilon):
      # All digits: two epsilons that look alike are two heads.
      epsilon = str(statement.epsilon).removesuffix(".0")
      name = f"{start}epsilon-{epsilon}-draw-{head.draw}"
    else:
      name = f"{start or 'baseline-'}NOT-PRIVATE"
    rows.append(
      SweepRow(
        epsilon=statement.epsilon,
        delta=statement.delta,
        draw=head.draw,
        head=head.settings["head"],
        noise_multiplier=statement.noise_multiplier,
        top1=score.top1,
        top5=score.top5,
        balanced=score.balanced,
        recall=score.recall,
        composed_epsilon=composed[statement.delta],
        num_examples=train.info.public_num_examples,
        num_eval_examples=score.num_examples,
        evaluation=scored.description,
        release=head.plan.order,
        noise_source=statement.noise_source,
        private=statement.is_private,
        path=f"heads/{name}",
      )
    )
  return rows
