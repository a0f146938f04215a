"""The paper's ablations on a cache: one thing at a time, private and not.

DIR/results.csv    one row per head: axis, setting, and the columns of a sweep
DIR/results.json   the same, with what the whole run cost
DIR/config.json    everything that was asked for
DIR/ablation.png   accuracy of every setting (and ablation.pdf)
DIR/heads/ …       a head each

In the manner of table 4 and figure 2 of Mehta et al., TMLR 2023.
"""

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.summary import public_metadata
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan, composed_epsilon
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.paper.ablation_cells import Cell, Choices, cells
from oneshot_dp.pipeline.paper.ablation_rows import (
  as_in_the_paper,
  evaluations_of,
  rows_of,
)
from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.runs import output_dir
from oneshot_dp.pipeline.runs.evaluation import (
  check_readable,
)
from oneshot_dp.pipeline.runs.pictures import plot_ablation
from oneshot_dp.pipeline.runs.results import cost_of, write_tables
from oneshot_dp.pipeline.runs.run_files import write_config
from oneshot_dp.pipeline.saved_head.directory import write_head
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.training.train_heads import (
  cache_ledger,
  cache_trainer,
  plan_heads,
  train_heads,
)


def run_ablation(
  caches: Sequence[tuple[FeatureCache, FeatureCache]],
  out: Path,
  epsilon: float,
  privacy: PrivacyConfig,
  choices: Choices,
  *,
  num_draws: int = 1,
  baseline: bool = False,
  ledger_dir: Path | None = None,
) -> list[AblationRow]:
  """Trains, evaluates and writes an ablation.

  Every line is a release of its own, which compose. All of them are checked
  against the cap together, before anything is charged; each is charged before
  its noise is drawn.

  Args:
    caches: training and evaluation rows; more than one are the same images at
      other resolutions.
    out: a directory that is not there yet.
    epsilon: of every head.
    privacy: delta, neighbours and noise source.
    choices: what to try.
    num_draws: independent repetitions, each charged.
    baseline: add every head without noise, NOT PRIVATE.
    ledger_dir: None is the default place.

  Returns:
    The rows of results.csv.

  Raises:
    InputError: caches that do not fit each other, a bad request, or one that
      would break the cap; nothing is charged then.
    KeyboardInterrupt: it was stopped; what was finished before is written.
  """
  output_dir.check_absent(out)
  for train, evaluation in caches:
    FeatureSpace.of_cache(train.path, train.info).check_evaluates_on(
      FeatureSpace.of_cache(evaluation.path, evaluation.info)
    )
  _check_same_images([train for train, _ in caches])
  tried = cells(choices, _names([train for train, _ in caches]))
  plans, nominal = [], []
  for cell in tried:
    train = caches[cell.cache][0]
    cache_trainer(train, [cell.head])  # what it refuses
    plans.append(
      plan_heads(
        cell.head, len(train), (epsilon,), privacy, num_draws=num_draws
      )
    )
    nominal.append(as_in_the_paper(cell.head, plans[-1], len(train)))
  first = caches[0][0]
  source, unit = NoiseSource(privacy.noise_seed), first.info.privacy_unit
  charges = [Charge.of_plan(plan, source, privacy_unit=unit) for plan in plans]
  if baseline:
    charges.append(Charge.of_baseline())
  cache_ledger(first, ledger_dir).check(*charges)
  # Passes that cost no budget: a damaged cache is found now.
  for cache in itertools.chain.from_iterable(caches):
    check_readable(cache)
  trained: list[list[TrainedHead]] = []
  with (
    step_bar("ablation", "setting", len(tried)) as bar,
    _till_stopped(trained),
  ):
    for cell, plan in zip(tried, plans, strict=True):
      trained.append(
        train_heads(
          caches[cell.cache][0],
          plan,
          cell.head,
          privacy,
          ledger_dir=ledger_dir,
          baseline=baseline,
          aloud=cell is tried[0],  # all of them are charged to one ledger
        )
      )
      bar.update()
  wanted, done = len(tried), len(trained)
  tried, plans, nominal = tried[:done], plans[:done], nominal[:done]
  together = composed_epsilon(plans)
  evaluations = evaluations_of(tried, trained, [e for _, e in caches])
  rows = [
    row
    for cell, of_cell, scored, epsilon_if_poisson in zip(
      tried, trained, evaluations, nominal, strict=True
    )
    for row in rows_of(
      cell, of_cell, scored, caches[cell.cache][0], together, epsilon_if_poisson
    )
  ]
  heads = [head for of_cell in trained for head in of_cell]
  with output_dir.whole_directory(out) as directory:
    for row, head in zip(rows, heads, strict=True):
      write_head(directory / row.path, head, caches[row.cache][0].info)
    write_tables(
      directory,
      rows,
      {
        "composed_epsilon": together,
        "settings_asked": wanted,
        "settings_finished": done,  # fewer, if it was stopped
        "releases": [_cost(c, p) for c, p in zip(tried, plans, strict=True)],
      },
      {"labels": "public", "mechanism": rows[0].evaluation},
    )
    write_config(
      directory,
      *caches[0],
      {
        "other_caches": [public_metadata(train) for train, _ in caches[1:]],
        "epsilon": epsilon,
        "privacy": dataclasses.asdict(privacy),
        "choices": dataclasses.asdict(choices),
        "num_draws": num_draws,
        "baseline": baseline,
      },
    )
    plot_ablation(rows, first.info.dataset, directory)
  if done < wanted:
    raise KeyboardInterrupt(
      f"{done} of {wanted} settings were finished, and are in {out}"
    )
  return rows


@contextlib.contextmanager
def _till_stopped(trained: Sequence[object]) -> Iterator[None]:
  """Ctrl-C ends the block; heads that are finished were paid for, and are kept.

  Raises:
    KeyboardInterrupt: none is.
  """
  try:
    yield
  except KeyboardInterrupt:
    if not trained:
      raise
    print(
      "interrupted: what is finished is scored and written; Ctrl-C again throws"
      " it away",
      file=sys.stderr,
    )


def _check_same_images(trains: Sequence[FeatureCache]) -> None:
  first = trains[0].info
  for train in trains[1:]:
    found = train.info
    if found.privacy_unit != first.privacy_unit:
      raise InputError(
        f"{train.path} has the privacy unit {found.privacy_unit!r}, not"
        f" {first.privacy_unit!r}: other caches are of the same images."
      )
    if (found.dataset, found.split) != (first.dataset, first.split):
      raise InputError(
        f"{train.path} is of {found.dataset!r}, split {found.split!r}, not of"
        f" {first.dataset!r}, split {first.split!r}: other caches are of the"
        " same images."
      )


def _names(trains: Sequence[FeatureCache]) -> list[str]:
  """Names of the caches' folders, with that above where those are alike."""
  names = [train.path.name for train in trains]
  if len(set(names)) < len(names):
    names = ["/".join(train.path.absolute().parts[-2:]) for train in trains]
  return names


def _cost(cell: Cell, plan: ReleasePlan) -> dict[str, object]:
  return {"axis": cell.axis, "setting": cell.setting, **cost_of(plan)}
