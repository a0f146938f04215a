"""`oneshot-dp ablate`."""

import dataclasses
from pathlib import Path
from typing import get_args

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import AblationAxis, PrivacyConfig
from oneshot_dp.pipeline.commands.flags import RunFlags
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
  """Change one thing at a time in the paper's single step, and score it.

  The base is one full-batch step of LAMB from zero weights and bias -10, with
  gradients of the sigmoid cross-entropy clipped to norm 1. Writes results.csv,
  results.json, ablation.png, and every head with its receipt. Every line of the
  table is a release of its own; all of them compose, are checked against the
  cap together before the first is charged, and the table says what they come
  to. The labels of the evaluation cache are treated as public.

  Example: oneshot-dp ablate --cache caches/train --eval-cache caches/test
  --epsilon 8 --delta 1e-6 --baseline --out ablation
  """

  epsilon: float
  """Privacy budget of every head."""
  privacy: OmitArgPrefixes[PrivacyConfig]
  axes: tuple[AblationAxis, ...] = get_args(AblationAxis)
  """What to change."""
  init_scales: tuple[float, ...] = (1e-4, 1e-2, 1.0)
  """Standard deviations of the random weights to start from; LeCun's is tried
  besides."""
  epochs: tuple[int, ...] = (10,)
  """Passes over the rows, of more than one."""
  batch_sizes: tuple[int, ...] | None = None
  """Rows of a step, on average. Each is tried as Poisson samples and as a
  partition of all rows. Default: a tenth of the rows."""
  clip_norms: tuple[float, ...] = (0.1, 10.0)
  """Largest norm of one example's gradient."""
  learning_rate: float | None = None
  """Learning rate of the heads whose accuracy depends on it: several steps, or
  random weights to start from. Default: a rule of n, K and the noise."""
  other_caches: tuple[Path, ...] = ()
  """The same images extracted at other resolutions, or otherwise."""
  other_eval_caches: tuple[Path, ...] = ()
  """What the heads of those are scored on, in the same order."""
  baseline: FlagCreatePairsOff[bool] = False
  """Also train every head without noise (epsilon = infinity): NOT PRIVATE."""


def run(flags: Flags) -> Answer:
  """Changes one thing at a time."""
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.pipeline.commands.many_heads import answer_of_run
  from oneshot_dp.pipeline.paper.ablate import run_ablation
  from oneshot_dp.pipeline.paper.ablation_cells import Choices
  from oneshot_dp.pipeline.paper.ablation_table import ablation_table

  if len(flags.other_caches) != len(flags.other_eval_caches):
    raise InputError(
      f"{len(flags.other_caches)} --other-caches and"
      f" {len(flags.other_eval_caches)} --other-eval-caches: give pairs."
    )
  others = [
    (open_cache(train), open_cache(evaluation))
    for train, evaluation in zip(
      flags.other_caches, flags.other_eval_caches, strict=True
    )
  ]
  return answer_of_run(
    flags,
    lambda run: run_ablation(
      run,
      flags.epsilon,
      flags.privacy,
      Choices(
        axes=flags.axes,
        init_scales=flags.init_scales,
        epochs=flags.epochs,
        batch_sizes=flags.batch_sizes or (max(1, len(run.train) // 10),),
        clip_norms=flags.clip_norms,
        learning_rate=flags.learning_rate,
      ),
      others=others,
    ),
    ablation_table,
    "ablation.png",
  )
