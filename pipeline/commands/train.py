"""`oneshot-dp train`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(f.TrainingFlags):
  """Train one private head: auto, or the paper's step (--head lamb).

  Example: oneshot-dp train --cache caches/train --epsilon 2 --delta 1e-6
  --out heads/2
  """

  epsilon: Annotated[float, f.flag("Budget; smaller is more private.", "E")]
  head: f.HeadKind = "auto"
  from_: Annotated[
    Path | None,
    f.flag("Earlier head of these rows: add to it.", "DIR", name="from"),
  ] = None
  # A sweep of one head and one epsilon, without a test set.
  eval_cache, eval_rows, private_eval = None, "", None
  num_draws, baseline, allow_duplicates = 1, False, False

  @property
  def heads(self) -> tuple[HeadName, ...]:
    return (self.head,)

  @property
  def epsilons(self) -> tuple[float, ...]:
    return (self.epsilon,)


def run(flags: Flags) -> Answer:
  """Trains it."""
  from oneshot_dp.pipeline.runs.run import run_request

  return run_request(flags)
