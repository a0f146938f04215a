"""`oneshot-dp train`."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  HEAD_GROUP,
  HEAD_KIND,
  PRIVACY_GROUP,
  Flag,
  TrainingFlags,
)
from oneshot_dp.pipeline.requests import TrainRequest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(TrainingFlags):
  """Train one private head on a cache of embeddings.

  The cost is charged to the ledger before any noise is drawn. The head is a
  folder of weights, receipt and model card.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp train --cache caches/train --epsilon 2 --delta 1e-6 --out"
    " heads/2",
    "oneshot-dp train --cache caches/train --epsilon 4 --delta 1e-6 --from"
    " heads/2 --out heads/4",
  )

  epsilon: float = Flag(
    parse=float,
    form="EPSILON",
    group=PRIVACY_GROUP,
    help="Privacy budget; smaller is more private, and less accurate.",
    hint="train takes one epsilon, and sweep --epsilons 0.5 2 takes several",
  ).required()
  head: HeadName = HEAD_KIND.within(HEAD_GROUP).default("auto")
  from_: Path | None = Flag(
    parse=parse_place,
    form="HEAD",
    name="from",
    group=HEAD_GROUP,
    help="Continue from a head trained on the same rows; only the difference"
    " is charged (default: start over).",
  ).default(None)

  def request(self) -> TrainRequest:
    """Returns what is asked of the runner."""
    return TrainRequest(
      cache=self.cache,
      part=Part.parse(self.rows),
      heads=(self.head,),
      epsilons=(self.epsilon,),
      delta=self.delta,
      out=self.out,
      start=self.start,
      unlabeled=self.unlabeled,
      balanced=self.balanced,
      parent=self.from_,
      ledger=self.ledger,
      allow_weak_privacy=self.weak_privacy,
      noise_seed=self.noise_seed,
      hosts=self.hosts,
      dry_run=self.dry_run,
    )


def run(flags: Flags) -> Answer:
  """Trains the head and writes it."""
  from oneshot_dp.pipeline.runs.run import run_request

  return run_request(flags.request())
