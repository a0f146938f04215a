"""`oneshot-dp ablate`."""

import dataclasses
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.pipeline.commands.flags import RunFlags
from oneshot_dp.pipeline.paper.ablation_cells import Choices
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
  choices: OmitArgPrefixes[Choices]
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
      run, flags.epsilon, flags.privacy, flags.choices, others=others
    ),
    ablation_table,
    "ablation.png",
  )
