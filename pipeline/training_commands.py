"""What the commands that train do and print."""

import time
from pathlib import Path

from configs.errors import InputError
from configs.schema import PrivacyConfig
from extract.cache_reader import FeatureCache, open_cache
from linear_dp.accounting import printable
from pipeline import output_dir
from pipeline.ablate import run_ablation
from pipeline.ablation_arguments import Ablate
from pipeline.ablation_cells import Choices
from pipeline.ablation_table import ablation_table
from pipeline.compare import run_compare
from pipeline.figure_arguments import Figures
from pipeline.figures import run_figures
from pipeline.head_choice import choose_head, release_order
from pipeline.head_directory import write_head
from pipeline.multi_step_training import planned_sampling
from pipeline.public_rows import PublicRows, find_public_rows
from pipeline.receipt import how_bounded
from pipeline.results import (
  SweepRow,
  accuracy_table,
  comparison_table,
  figures_table,
)
from pipeline.sweep import run_sweep
from pipeline.training import make_plan, train_heads
from pipeline.training_arguments import Compare, PublicOptions, Sweep, Train


def train(command: Train) -> None:
  """Trains one head."""
  output_dir.check_absent(command.out)
  cache = open_cache(command.cache)
  config = choose_head(command.training, cache.info)
  plan = make_plan(
    (command.epsilon,),
    command.privacy,
    order=release_order(config, None),
    sampling=planned_sampling(config, len(cache)),
  )
  public = _public_rows(command.public, cache)
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
  privacy = receipt["privacy"]
  print(
    f"{command.out}: epsilon = {printable(privacy['epsilon'])} at delta ="
    f" {printable(privacy['delta'])} ({privacy['neighboring_relation']}), noise"
    f" multiplier {privacy['noise_multiplier']:.4f}, noise from"
    f" {privacy['noise_source']}"
  )
  if cache.info.has_units:
    mechanism = receipt["mechanism"]
    bound = how_bounded(mechanism["clipped"], mechanism["rows_per_unit"])
    print(f"privacy unit: {cache.info.privacy_unit}; of its rows, {bound}")


def sweep(command: Sweep) -> None:
  """Trains heads for many epsilons, and prints the table."""
  start = time.monotonic()
  cache = open_cache(command.cache)
  config = choose_head(command.training, cache.info)
  rows = run_sweep(
    cache,
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    command.privacy,
    config,
    max_rows_per_unit=command.max_rows_per_unit,
    public=_public_rows(command.public, cache),
    num_seeds=command.num_seeds,
    order=release_order(config, command.release),
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
    private_eval=command.private_eval,
  )
  print(accuracy_table(rows))
  _say_where(command.out, rows, start)


def compare(command: Compare) -> None:
  """Trains heads of every kind, and prints the table."""
  start = time.monotonic()
  cache = open_cache(command.cache)
  rows = run_compare(
    cache,
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    command.privacy,
    methods=command.heads,
    public=_public_rows(command.public, cache),
    num_seeds=command.num_seeds,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(comparison_table(rows))
  _say_where(command.out, rows, start)


def ablate(command: Ablate) -> None:
  """Changes one thing at a time, and prints the table."""
  start = time.monotonic()
  first = open_cache(command.cache), open_cache(command.eval_cache)
  if len(command.other_caches) != len(command.other_eval_caches):
    raise InputError(
      f"{len(command.other_caches)} --other-caches and"
      f" {len(command.other_eval_caches)} --other-eval-caches: give pairs."
    )
  others = [
    (open_cache(train), open_cache(evaluation))
    for train, evaluation in zip(
      command.other_caches, command.other_eval_caches, strict=True
    )
  ]
  rows = run_ablation(
    [first, *others],
    command.out,
    command.epsilon,
    command.privacy,
    Choices(
      axes=command.axes,
      init_scales=command.init_scales,
      epochs=command.epochs,
      batch_sizes=command.batch_sizes or (max(1, len(first[0]) // 10),),
      clip_norms=command.clip_norms,
      learning_rate=command.learning_rate,
    ),
    num_seeds=command.num_seeds,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(ablation_table(rows))
  print(
    f"{command.out}: {len(rows)} heads in {time.monotonic() - start:.1f} s; see"
    " results.csv and ablation.png"
  )


def figures(command: Figures) -> None:
  """Draws the paper's figures, and prints the table."""
  start = time.monotonic()
  rows = run_figures(
    open_cache(command.cache),
    open_cache(command.eval_cache),
    command.out,
    command.epsilons,
    [
      PrivacyConfig(
        delta=delta,
        neighboring_relation=command.neighboring_relation,
        noise_seed=command.noise_seed,
      )
      for delta in command.deltas
    ],
    num_seeds=command.num_seeds,
    real_labels=command.real_labels,
    references=command.references,
    baseline=command.baseline,
    ledger_dir=command.ledger_dir,
  )
  print(figures_table(rows))
  _say_where(command.out, rows, start, "accuracy-vs-epsilon.png")


def _public_rows(
  options: PublicOptions, cache: FeatureCache
) -> PublicRows | None:
  return find_public_rows(
    options.public_cache, cache, options.public_statistics
  )


def _say_where(
  out: Path,
  rows: list[SweepRow],
  start: float,
  picture: str = "accuracy.png",
) -> None:
  heads = len({row.path for row in rows})
  print(
    f"{out}: {heads} heads in {time.monotonic() - start:.1f} s; see"
    f" results.csv and {picture}"
  )
