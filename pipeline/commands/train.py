"""`oneshot-dp train`."""

import dataclasses
from pathlib import Path
from typing import Annotated

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


def run(flags: Flags) -> Answer:
  """Trains it: a sweep of one head and one epsilon."""
  from oneshot_dp.pipeline.runs.plan import Request
  from oneshot_dp.pipeline.runs.run import run_request

  given = dict(vars(flags))
  one = {"heads": (given.pop("head"),), "epsilons": (given.pop("epsilon"),)}
  return run_request(Request(**one, **given))
