"""What the commands that study the paper's step do and answer."""

import time

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.pipeline.commands.ablation_arguments import Ablate
from oneshot_dp.pipeline.commands.figure_arguments import Figures
from oneshot_dp.pipeline.commands.training_commands import (
  answer_of_run,
  stoppable,
)
from oneshot_dp.pipeline.paper.ablate import run_ablation
from oneshot_dp.pipeline.paper.ablation_cells import Choices
from oneshot_dp.pipeline.paper.ablation_table import ablation_table
from oneshot_dp.pipeline.paper.figures import run_figures
from oneshot_dp.pipeline.runs.results import figures_table
from oneshot_dp.pipeline.shell.answer import Answer


def ablate(command: Ablate) -> Answer:
  """Changes one thing at a time."""
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
  with stoppable(command.out, command.ledger_dir, first[0]):
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
      num_draws=command.num_draws,
      baseline=command.baseline,
      ledger_dir=command.ledger_dir,
    )
  table = ablation_table(rows)
  return answer_of_run(command.out, rows, table, start, "ablation.png")


def figures(command: Figures) -> Answer:
  """Draws the paper's figures."""
  start = time.monotonic()
  cache, evaluation = open_cache(command.cache), open_cache(command.eval_cache)
  with stoppable(command.out, command.ledger_dir, cache):
    rows = run_figures(
      cache,
      evaluation,
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
      num_draws=command.num_draws,
      real_labels=command.real_labels,
      references=command.references,
      baseline=command.baseline,
      ledger_dir=command.ledger_dir,
    )
  return answer_of_run(
    command.out, rows, figures_table(rows), start, "accuracy-vs-epsilon.png"
  )
