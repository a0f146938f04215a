"""`oneshot-dp evaluate`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  ALLOW_DUPLICATES,
  HEAD_FOLDER,
  LEDGER,
  NOISE_SEED,
  PRIVATE_EVAL,
  ROWS,
  TEST_CACHE,
  WEAK_PRIVACY,
  CommandFlags,
  Flag,
)
from oneshot_dp.pipeline.requests import EvalRequest, EvalSet

if TYPE_CHECKING:
  from oneshot_dp.linear_dp.evaluate import Accuracy
  from oneshot_dp.pipeline.runs.evaluation import Scores

_CLASSES_SHOWN = 10
"""As many as a person reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Score a head on labeled embeddings.

  Accuracies are exact where the labels are public. Where they are private,
  --private-eval makes them noisy, and charges the test set for it.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp evaluate heads/2 --cache caches/test",
    "oneshot-dp evaluate heads/2 --cache caches/private-test --private-eval 1"
    " --delta 1e-6",
  )

  head: Path = HEAD_FOLDER.required()
  cache: Path = TEST_CACHE.required()
  rows: str = ROWS.default("")
  private_eval: float | None = PRIVATE_EVAL.default(None)
  delta: float | None = Flag(
    parse=float,
    form="DELTA",
    help="Delta of the noisy accuracies; needed with --private-eval, and of no"
    " use without (default: none).",
  ).default(None)
  allow_duplicates: bool = ALLOW_DUPLICATES.default(False)
  ledger: Path | None = LEDGER.default(None)
  weak_privacy: bool = WEAK_PRIVACY.default(False)
  noise_seed: int | None = NOISE_SEED.default(None)

  def request(self) -> EvalRequest:
    """Returns what is asked of the evaluation."""
    return EvalRequest(
      head=self.head,
      eval_set=EvalSet(
        cache=self.cache,
        part=Part.parse(self.rows),
        private_epsilon=self.private_eval,
        allow_duplicates=self.allow_duplicates,
      ),
      delta=self.delta,
      ledger=self.ledger,
      allow_weak_privacy=self.weak_privacy,
      noise_seed=self.noise_seed,
    )


def run(flags: Flags) -> Answer:
  """Scores the head."""
  from oneshot_dp.pipeline.runs.evaluation import score_head

  scores, class_names = score_head(flags.request())
  (accuracy,) = scores.accuracies
  recall = dict(zip(class_names, accuracy.recall or (), strict=False))
  return Answer(
    text="\n".join(
      [_accuracy_line(scores, accuracy), *_lowest_classes(recall)]
    ),
    facts={
      "head": flags.head,
      **scores.facts,
      "top1": accuracy.top1,
      "top5": accuracy.top5,
      "balanced": accuracy.balanced,
      "recall": recall or None,
    },
  )


def _accuracy_line(scores: "Scores", accuracy: "Accuracy") -> str:
  from oneshot_dp.linear_dp.accounting import format_rounded_up

  facts = scores.facts
  shares = {
    "top-1": accuracy.top1,
    "top-5": accuracy.top5,
    "balanced": accuracy.balanced,
  }
  parts = [
    f"{title} {100 * share:.2f} %"
    for title, share in shares.items()
    if share is not None
  ]
  line = f"{', '.join(parts)} of {facts['num_examples']:,} rows"
  if facts["labels"] == "private":
    line += (
      f" (noisy counts, ±{100 * facts['accuracy_sd']:.2g} points, for epsilon"
      f" {format_rounded_up(facts['epsilon'])})"
    )
    if not facts["private"]:
      line += ", NOT PRIVATE"
  return line


def _lowest_classes(recall: dict[str, float | None]) -> Sequence[str]:
  """Lines about the classes that the head gets right least often."""
  known = [(share, name) for name, share in recall.items() if share is not None]
  known.sort()
  lines = []
  for share, name in known[:_CLASSES_SHOWN]:
    lines.append(f"  {100 * share:6.2f} %  {name}")
  if len(known) > _CLASSES_SHOWN:
    lines.append(f"  are the {_CLASSES_SHOWN} lowest of {len(known)} classes")
  return lines
