"""The paper's ablations on a cache: one thing at a time, private and not.

DIR/results.csv    one row per head: axis, setting, and the columns of a sweep
DIR/results.json   the same, with what the whole run cost
DIR/config.json    everything that was asked for
DIR/ablation.png   accuracy of every setting (and ablation.pdf)
DIR/heads/ …       a head each

In the manner of table 4 and figure 2 of Mehta et al., TMLR 2023.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

from configs.errors import InputError
from configs.schema import HeadConfig, PrivacyConfig
from extract.cache_reader import FeatureCache
from extract.cache_summary import public_metadata
from linear_dp.noise_source import NoiseSource
from linear_dp.plan import ReleasePlan, composed_epsilon
from pipeline import output_dir
from pipeline.ablation_cells import Cell, Choices, cells
from pipeline.ablation_table import AblationRow, plot_ablation
from pipeline.charge import Charge
from pipeline.evaluation import (
  Evaluation,
  check_readable,
  evaluate_on_public_labels,
)
from pipeline.feature_space import FeatureSpace
from pipeline.head_choice import release_order
from pipeline.head_directory import write_head
from pipeline.multi_step_training import make_batches, planned_sampling
from pipeline.results import cost_of, write_tables
from pipeline.run_files import row_of, write_config
from pipeline.trainer import TrainedHead
from pipeline.training import (
  cache_ledger,
  make_plan,
  make_trainer,
  train_heads,
)


def run_ablation(
  caches: Sequence[tuple[FeatureCache, FeatureCache]],
  out: Path,
  epsilon: float,
  privacy: PrivacyConfig,
  choices: Choices,
  *,
  num_seeds: int = 1,
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
    num_seeds: independent repetitions, each charged.
    baseline: add every head without noise, NOT PRIVATE.
    ledger_dir: None is the default place.

  Returns:
    The rows of results.csv.

  Raises:
    InputError: caches that do not fit each other, a bad request, or one that
      would break the cap; nothing is charged then.
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
    make_trainer(train, [cell.head])  # what it refuses
    plans.append(
      make_plan(
        (epsilon,),
        privacy,
        order=release_order(cell.head, None),
        num_draws=num_seeds,
        sampling=planned_sampling(cell.head, len(train)),
      )
    )
    nominal.append(_as_in_the_paper(cell.head, plans[-1], len(train)))
  first = caches[0][0]
  source, unit = NoiseSource(privacy.noise_seed), first.info.privacy_unit
  cache_ledger(first, ledger_dir).check(
    *(Charge.of_plan(plan, source, privacy_unit=unit) for plan in plans),
    baseline=baseline,
  )
  # Passes that cost no budget: a damaged cache is found now.
  for cache in itertools.chain.from_iterable(caches):
    check_readable(cache)
  trained = [
    train_heads(
      caches[cell.cache][0],
      plan,
      cell.head,
      privacy,
      ledger_dir=ledger_dir,
      baseline=baseline,
      aloud=cell is tried[0],  # all of them are charged to one ledger
    )
    for cell, plan in zip(tried, plans, strict=True)
  ]
  together = composed_epsilon(plans)
  evaluations = _evaluations(tried, trained, [e for _, e in caches])
  rows = [
    row
    for cell, of_cell, scored, epsilon_if_poisson in zip(
      tried, trained, evaluations, nominal, strict=True
    )
    for row in _rows(
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
        "num_seeds": num_seeds,
        "baseline": baseline,
      },
    )
    plot_ablation(rows, first.info.dataset, directory)
  return rows


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
  """Of the caches: their folders', with that above where those are alike."""
  names = [train.path.name for train in trains]
  if len(set(names)) < len(names):
    names = ["/".join(train.path.absolute().parts[-2:]) for train in trains]
  return names


def _evaluations(
  tried: Sequence[Cell],
  trained: Sequence[Sequence[TrainedHead]],
  evaluations: Sequence[FeatureCache],
) -> list[Evaluation]:
  """The scores of each cell's heads; one pass over each cache."""
  cells_and_heads = list(zip(tried, trained, strict=True))
  found = []
  for i, evaluation in enumerate(evaluations):
    heads = [
      t.head for cell, of in cells_and_heads if cell.cache == i for t in of
    ]
    found.append(evaluate_on_public_labels(heads, evaluation))
  scores = [iter(each.scores) for each in found]
  return [
    dataclasses.replace(
      found[cell.cache], scores=[next(scores[cell.cache]) for _ in of]
    )
    for cell, of in cells_and_heads
  ]


def _rows(
  cell: Cell,
  trained: Sequence[TrainedHead],
  scored: Evaluation,
  train: FeatureCache,
  together: float,
  epsilon_if_poisson: float | None,
) -> list[AblationRow]:
  rows = []
  for head, score in zip(trained, scored.scores, strict=True):
    row = row_of(
      head,
      score,
      train,
      scored.description,
      composed_epsilon=together,
      prefix=f"{cell.name}-",
    )
    rows.append(
      AblationRow(
        **dataclasses.asdict(row),
        axis=cell.axis,
        setting=cell.setting,
        cache=cell.cache,
        epsilon_if_poisson=(
          epsilon_if_poisson if head.statement.noise_sd else None
        ),
      )
    )
  return rows


def _as_in_the_paper(
  head: HeadConfig, plan: ReleasePlan, num_examples: int
) -> float | None:
  """ε that shuffled batches would have if they were Poisson samples."""
  if head.steps.sampling != "partition":
    return None
  (sigma,) = plan.noise_multipliers.values()
  batches = make_batches(head.steps, num_examples, sigma)
  return batches.poisson.epsilon_of(
    batches.step_noise_multiplier(sigma), plan.delta
  )


def _cost(cell: Cell, plan: ReleasePlan) -> dict[str, object]:
  return {"axis": cell.axis, "setting": cell.setting, **cost_of(plan)}
