"""The paper's ablations on a cache: one thing at a time, private and not.

In the manner of table 4 and figure 2 of Mehta et al., TMLR 2023. What it writes
is a run's (see `runs.run`), with axis and setting in results.csv, and its
picture is ablation.png.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import HeadConfig, PrivacyConfig
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.cache.summary import public_metadata
from oneshot_dp.extract.progress import step_bar
from oneshot_dp.linear_dp.accounting.plan import ReleasePlan, composed_epsilon
from oneshot_dp.linear_dp.heads.multi_step.rule import make_batches
from oneshot_dp.linear_dp.noise.source import NoiseSource
from oneshot_dp.linear_dp.trainer import TrainedHead
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.folder import check_never_charged
from oneshot_dp.pipeline.paper.ablation_cells import Cell, Choices, cells
from oneshot_dp.pipeline.paper.ablation_table import AblationRow
from oneshot_dp.pipeline.runs.evaluation import (
  EXACT_SCORES,
  PUBLIC_STATEMENT,
  check_readable,
  evaluate_on_public_labels,
)
from oneshot_dp.pipeline.runs.results import cost_of
from oneshot_dp.pipeline.runs.run import Run, check_pair, rows_of
from oneshot_dp.pipeline.training.train_heads import (
  Training,
  cache_ledger,
  cache_trainer,
  plan_heads,
  train_heads,
)


class _Planned(NamedTuple):
  """A cell of the ablation, how it is trained, and `epsilon_if_poisson`."""

  cell: Cell
  training: Training
  epsilon_if_poisson: float | None


def run_ablation(
  run: Run,
  epsilon: float,
  privacy: PrivacyConfig,
  choices: Choices,
  *,
  others: Sequence[tuple[FeatureCache, FeatureCache]] = (),
) -> list[AblationRow]:
  """Trains, evaluates and writes an ablation; returns its results.csv.

  Every line is a release of its own, which compose. All of them are checked
  against the cap together, before anything is charged; each is charged before
  its noise is drawn. One that is stopped goes on with the lines that it has.
  InputError: caches that do not fit each other, or a bad request.

  `run.baseline` is of every setting; `others` are training and evaluation rows
  that are the same images at other resolutions.
  """
  run.check()
  for pair in others:
    check_pair(*pair)
    check_never_charged(pair[1], run.ledger_dir, EXACT_SCORES)
  pairs = [(run.train, run.evaluation), *others]
  trains = [train for train, _ in pairs]
  _check_same_images(trains)
  if choices.batch_sizes is None:
    tenth = max(1, run.train.info.public_num_examples // 10)
    choices = dataclasses.replace(choices, batch_sizes=(tenth,))
  tried = []
  for cell in cells(choices, _names(trains)):
    train = trains[cell.cache]
    n = train.info.public_num_examples
    plan = plan_heads(
      cell.head, n, (epsilon,), privacy, num_draws=run.num_draws
    )
    nominal = _as_in_the_paper(cell.head, plan, n)
    trainer = cache_trainer(train, [cell.head])
    tried.append(_Planned(cell, Training(trainer=trainer, plan=plan), nominal))
  record = run.record([each.training for each in tried], privacy)
  source, unit = NoiseSource(privacy.noise_seed), run.train.info.privacy_unit
  charges = []
  for each in tried:
    charges.append(
      Charge.of_plan(each.training.plan, source, privacy_unit=unit)
    )
    charges += [Charge.of_baseline(privacy_unit=unit)] * run.baseline
  ledger = cache_ledger(run.train, run.ledger_dir)
  record.check(ledger, *charges, at_once=False)
  # Passes that cost no budget: a damaged cache is found now.
  for cache in itertools.chain.from_iterable(pairs):
    check_readable(cache)
  trained: list[tuple[_Planned, TrainedHead]] = []
  with step_bar("ablation", "setting", len(tried)) as bar:
    for planned in tried:
      cell, training, _ = planned
      heads = train_heads(
        trains[cell.cache],
        training.plan,
        cell.head,
        privacy,
        ledger_dir=run.ledger_dir,
        baseline=run.baseline,
        aloud=not trained,  # all of them are charged to one ledger
        record=record,
      )
      trained += [(planned, head) for head in heads]
      bar.update()
  together = composed_epsilon([each.training.plan for each in tried])
  rows = _rows(trained, pairs, {privacy.delta: together})

  def plot(folder: Path) -> None:
    from oneshot_dp.pipeline.paper.ablation_plot import plot_ablation

    plot_ablation(rows, run.dataset, folder)

  run.write(
    [head for _, head in trained],
    rows,
    trained_on=[trains[row.cache] for row in rows],
    cost={
      "composed_epsilon": together,
      "releases": [
        {"axis": cell.axis, "setting": cell.setting, **cost_of(training.plan)}
        for cell, training, _ in tried
      ],
    },
    evaluation=PUBLIC_STATEMENT,
    asked={
      "other_caches": [public_metadata(train) for train in trains[1:]],
      "epsilon": epsilon,
      "privacy": dataclasses.asdict(privacy),
      "choices": dataclasses.asdict(choices),
    },
    plot=plot,
  )
  return rows


def _rows(
  trained: Sequence[tuple[_Planned, TrainedHead]],
  pairs: Sequence[tuple[FeatureCache, FeatureCache]],
  composed: Mapping[float, float],
) -> list[AblationRow]:
  """The lines of results.csv, from one pass over each evaluation cache."""
  rows = []
  for place, of_cache in itertools.groupby(
    trained, lambda each: each[0].cell.cache
  ):
    planned, heads = zip(*of_cache, strict=True)
    train, evaluation = pairs[place]
    plain = rows_of(
      heads,
      evaluate_on_public_labels([each.head for each in heads], evaluation),
      train,
      composed=composed,
      prefixes=[f"{each.cell.name}-" for each in planned],
    )
    rows += [
      AblationRow(
        **dataclasses.asdict(row),
        axis=cell.axis,
        setting=cell.setting,
        cache=place,
        epsilon_if_poisson=nominal if row.noise_multiplier else None,
      )
      for (cell, _, nominal), row in zip(planned, plain, strict=True)
    ]
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


def _check_same_images(trains: Sequence[FeatureCache]) -> None:
  first = trains[0].info
  for train in trains[1:]:
    for name in ("dataset", "split", "privacy_unit"):
      found, wanted = getattr(train.info, name), getattr(first, name)
      if found != wanted:
        raise InputError(
          f"{train.path} has the {name.replace('_', ' ')} {found!r}, not"
          f" {wanted!r}: other caches are of the same images."
        )


def _names(trains: Sequence[FeatureCache]) -> list[str]:
  """The caches' folders, each with that above it where two are alike."""
  names = [train.path.name for train in trains]
  if len(set(names)) < len(names):
    names = ["/".join(train.path.absolute().parts[-2:]) for train in trains]
  return names
