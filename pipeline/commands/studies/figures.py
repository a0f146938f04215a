"""`oneshot-dp figures`."""

import dataclasses

from tyro.conf import FlagCreatePairsOff

from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.pipeline.commands.flags import (
  LargeDelta,
  NoiseSeed,
  NumDraws,
  RealLabelsFile,
  Relation,
  RunFlags,
)
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(RunFlags):
  """Draw the paper's accuracy against epsilon, at several deltas and draws.

  The paper's head (lamb, with its settings) at every delta, epsilon and draw.
  Writes accuracy-vs-epsilon.png (in the manner of its figure 1b), one picture
  for each delta (figure 3), real-accuracy.png with --real-labels (figure 4),
  the tables, and every head with its receipt. Published numbers are drawn
  beside ours, cited, where the data set is ImageNet (imagenet2012…).

  The private rows are read once. Heads of one delta and draw are nested and
  together cost the largest epsilon; draws and deltas compose. All of it is
  charged, or refused by a cap, before any noise is drawn, and the table says
  what it comes to at each delta. The labels of the evaluation cache are treated
  as public.

  Example: oneshot-dp figures --cache caches/train --eval-cache caches/test
  --real-labels real.json --out figures
  """

  epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
  """Privacy budgets, one head each for each delta and draw."""
  deltas: tuple[float, ...] = (1e-6, 8e-7)
  """Delta of each head; well below 1 / rows."""
  num_draws: NumDraws = 5
  real_labels: RealLabelsFile = None
  references: FlagCreatePairsOff[bool] = False
  """Draw the published numbers, which are of ImageNet, whatever the data set is
  called."""
  neighboring_relation: Relation = "replace-special"
  large_delta: LargeDelta = False
  noise_seed: NoiseSeed = None


def run(flags: Flags) -> Answer:
  """Draws the paper's figures."""
  from oneshot_dp.pipeline.commands.many_heads import answer_of_run
  from oneshot_dp.pipeline.paper.figures import figures_table, run_figures

  privacies = [
    PrivacyConfig(
      delta=delta,
      neighboring_relation=flags.neighboring_relation,
      large_delta=flags.large_delta,
      noise_seed=flags.noise_seed,
    )
    for delta in flags.deltas
  ]
  return answer_of_run(
    flags,
    lambda run: run_figures(
      run,
      flags.epsilons,
      privacies,
      real_labels=flags.real_labels,
      references=flags.references,
    ),
    figures_table,
    "accuracy-vs-epsilon.png",
  )
