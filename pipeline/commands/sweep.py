"""`oneshot-dp sweep`."""

import dataclasses
from typing import Annotated

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(f.TrainingFlags):
  """Train heads for many epsilons, and score them on a test set.

  Smaller epsilons are nested in larger ones: together they cost the largest,
  once for each kind of head and each draw. Writes results.csv, accuracy.png, a
  page and every head.

  Example: oneshot-dp sweep --cache caches/train --eval-cache caches/test
  --epsilons 0.5 2 8 --delta 1e-6 --out results
  """

  eval_cache: f.TestCache
  eval_rows: Annotated[str, f.flag("A part of the test cache.", "PART")] = ""
  epsilons: Annotated[tuple[float, ...], f.flag("Budgets; a head each.", "E…")]
  heads: Annotated[
    tuple[HeadName, ...],
    f.flag("Kinds to compare; see train.", "HEAD…", name="head"),
  ] = ("auto",)
  num_draws: Annotated[int, f.flag("Draws of noise; each is charged.", "N")] = 1
  baseline: Annotated[f.Switch, f.flag("Also without noise: NOT PRIVATE.")] = (
    False
  )
  private_eval: f.PrivateEval = None
  allow_duplicates: f.AllowDuplicates = False
  from_ = None  # that is train's


def run(flags: Flags) -> Answer:
  """Trains and scores them."""
  from oneshot_dp.pipeline.runs.run import run_request

  return run_request(flags)
