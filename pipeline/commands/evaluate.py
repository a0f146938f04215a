"""`oneshot-dp evaluate`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import (
  ALLOW_DUPLICATES,
  DRY_RUN,
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
  from oneshot_dp.pipeline.runs.eval_rows import Scores

_CLASSES_SHOWN = 10
"""How many of the weakest classes are listed."""


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
    help="Delta of the noisy accuracies; needed with --private-eval, and"
    " refused without it.",
  ).default(None)
  allow_duplicates: bool = ALLOW_DUPLICATES.off()
  ledger: Path | None = LEDGER.default(None)
  weak_privacy: bool = WEAK_PRIVACY.off()
  noise_seed: int | None = NOISE_SEED.default(None)
  dry_run: bool = DRY_RUN.off()
  out: Path | None = Flag(
    parse=parse_place,
    form="FILE.json",
    help="Also write the answer to this new file, where standard output may get"
    " lost (default: standard output alone).",
  ).default(None)

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
      dry_run=self.dry_run,
    )


def run(flags: Flags) -> Answer:
  """Scores the head."""
  from oneshot_dp.extract import places
  from oneshot_dp.pipeline.heads.head_folder import refuse_exposed
  from oneshot_dp.pipeline.runs.evaluation import dry_run_of_scores, score_head

  if flags.out is not None and places.exists(flags.out):
    raise InputError(f"--out {flags.out} already exists: name a new file.")
  if flags.out is not None and flags.noise_seed is not None:
    refuse_exposed(flags.out)
  if flags.dry_run:
    return dry_run_of_scores(flags.request())
  scores, class_names = score_head(flags.request())
  answer = _answer_of(flags, scores, class_names)
  # What was paid for is kept, even where nobody reads standard output; and
  # printed, even where it cannot be kept.
  failure = None
  if flags.out is not None:
    failure = _write_answer(flags.out, answer)
  return dataclasses.replace(answer, failure=failure)


def _write_answer(out: Path, answer: Answer) -> RunError | None:
  """Writes an answer to a new file; returns why that was not possible."""
  from oneshot_dp.extract import places

  try:
    if places.write_new(out, f"{answer.json()}\n".encode()):
      return None
  except (InputError, RunError) as error:
    return RunError(f"--out was not written, the answer is above: {error}")
  return RunError(
    f"--out {out} has appeared meanwhile and was left as it is: the answer is"
    " above."
  )


def _answer_of(
  flags: Flags, scores: "Scores", class_names: Sequence[str]
) -> Answer:
  from oneshot_dp.pipeline.report.results import (
    EvaluationSet,
    accuracy_interval_95,
    informative_top5,
  )

  (accuracy,) = scores.accuracies
  # Of five classes or fewer, top-5 is 100 % of any head.
  accuracy = dataclasses.replace(
    accuracy, top5=informative_top5(accuracy.top5, len(class_names))
  )
  # A test set is a sample, and its noisy counts are noisy: both are in the
  # interval.
  test = EvaluationSet(
    num_examples=scores.facts["num_examples"],
    accuracy_sd=scores.facts.get("accuracy_sd", 0.0),
  )
  interval = accuracy_interval_95(accuracy.top1, test)
  recall = dict(zip(class_names, accuracy.recall or (), strict=False))
  return Answer(
    text="\n".join(
      [
        _accuracy_line(scores.facts, accuracy, interval),
        *_lowest_classes(recall),
      ]
    ),
    facts={
      "head": flags.head,
      **scores.facts,
      "top1": accuracy.top1,
      "top1_interval_95": list(interval),
      "top5": accuracy.top5,
      "balanced": accuracy.balanced,
      "recall": recall or None,
    },
  )


def _accuracy_line(
  facts: Mapping[str, Any],
  accuracy: "Accuracy",
  interval: tuple[float, float],
) -> str:
  from oneshot_dp.linear_dp.accounting import format_rounded_up
  from oneshot_dp.pipeline.report.results import format_interval

  # Noisy counts have top-1 alone: what was not paid for is left out of the
  # line.
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
  parts[0] += f" (95 % interval {format_interval(interval)})"
  line = f"{', '.join(parts)} of {facts['num_examples']:,} rows"
  if facts["labels"] != "private":
    return f"{line} (exact: labels treated as public)"
  # Of seeded noise no epsilon is stated, as none holds.
  if not facts["private"]:
    return f"{line} (noisy counts by a seed), NOT PRIVATE"
  epsilon = format_rounded_up(facts["epsilon"])
  return f"{line} (noisy counts, charged epsilon {epsilon})"


def _lowest_classes(recall: dict[str, float | None]) -> Sequence[str]:
  """Lines about the classes that the head gets right least often."""
  # The weakest classes first: a mean over classes hides the one that fails.
  known = [(share, name) for name, share in recall.items() if share is not None]
  known.sort()
  lines = []
  for share, name in known[:_CLASSES_SHOWN]:
    lines.append(f"  {100 * share:6.2f} %  {name}")
  without_rows = [name for name, share in recall.items() if share is None]
  if without_rows:
    names = ", ".join(without_rows[:_CLASSES_SHOWN])
    num_unnamed = len(without_rows) - _CLASSES_SHOWN
    if num_unnamed > 0:
      names += f" and {num_unnamed} more"
    lines.append(
      f"  no test rows: {names}; `balanced` is the mean of the other classes"
    )
  if len(known) > _CLASSES_SHOWN:
    lines.append(f"  are the {_CLASSES_SHOWN} lowest of {len(known)} classes")
  return lines
