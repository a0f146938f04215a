"""`oneshot-dp sweep`."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  ALLOW_DUPLICATES,
  HEAD_GROUP,
  HEAD_KINDS,
  PRIVACY_GROUP,
  PRIVATE_EVAL,
  TEST_CACHE,
  Flag,
  TrainingFlags,
)
from oneshot_dp.pipeline.requests import EvalSet, TrainRequest

_TEST_GROUP = "test set"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(TrainingFlags):
  """Train heads for many epsilons, and score them on a test set.

  Smaller epsilons are nested in larger ones: together they cost the largest,
  once for each kind of head and each draw. Writes results.csv, accuracy.png,
  report.html and every head.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp sweep --cache caches/train --eval-cache caches/test"
    " --epsilons 0.5 2 8 --delta 1e-6 --out results",
  )

  eval_cache: Path = TEST_CACHE.within(_TEST_GROUP).required()
  eval_rows: str = Flag(
    form="PART",
    group=_TEST_GROUP,
    help="Score only a part of the test cache, such as '[80%:]' (default: all"
    " rows).",
  ).default("")
  epsilons: tuple[float, ...] = Flag(
    parse=float,
    form="EPSILON",
    group=PRIVACY_GROUP,
    several=True,
    help="Privacy budgets; each gives a head of each kind and draw.",
    hint="leave spaces between them: --epsilons 0.5 2",
  ).required()
  heads: tuple[HeadName, ...] = Flag(
    form="HEAD",
    name="head",
    group=HEAD_GROUP,
    choices=HEAD_KINDS,
    several=True,
    help=f"Kinds of head to compare, of {', '.join(HEAD_KINDS)}.",
  ).default(("auto",))
  num_draws: int = Flag(
    parse=int,
    form="N",
    group=HEAD_GROUP,
    help="Train each head this many times with new noise; each is charged.",
  ).default(1)
  baseline: bool = Flag(
    group=HEAD_GROUP,
    help="Also train each kind of head without noise: NOT PRIVATE.",
  ).off()
  private_eval: float | None = PRIVATE_EVAL.within(_TEST_GROUP).default(None)
  allow_duplicates: bool = ALLOW_DUPLICATES.within(_TEST_GROUP).off()

  def request(self) -> TrainRequest:
    """Returns what is asked of the runner."""
    # A single head and a sweep are one request, which the same runner carries
    # out: a sweep has an evaluation set, and may have several of everything.
    return TrainRequest(
      cache=self.cache,
      part=Part.parse(self.rows),
      heads=self.heads,
      epsilons=self.epsilons,
      delta=self.delta,
      out=self.out,
      start=self.start,
      unlabeled=self.unlabeled,
      balanced=self.balanced,
      num_draws=self.num_draws,
      baseline=self.baseline,
      eval_set=EvalSet(
        cache=self.eval_cache,
        part=Part.parse(self.eval_rows, "--eval-rows"),
        private_epsilon=self.private_eval,
        allow_duplicates=self.allow_duplicates,
      ),
      ledger=self.ledger,
      allow_weak_privacy=self.weak_privacy,
      noise_seed=self.noise_seed,
      hosts=self.hosts,
      dry_run=self.dry_run,
    )


def run(flags: Flags) -> Answer:
  """Trains the heads, scores them, and writes all of it."""
  from oneshot_dp.pipeline.runs.run import run_request

  return run_request(flags.request())
