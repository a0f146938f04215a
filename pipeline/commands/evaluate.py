"""`oneshot-dp evaluate`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from oneshot_dp.pipeline.answer import Answer
from oneshot_dp.pipeline.commands import flags as f
from oneshot_dp.pipeline.commands.flags import flag

_CLASSES = 10
"""As many as a person reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Score a head on labelled embeddings: exactly, or by noisy counts.

  Example: oneshot-dp evaluate heads/2 --cache caches/test

  Example: oneshot-dp evaluate heads/2 --cache caches/private-test
  --private-eval 1 --delta 1e-6
  """

  head: Annotated[Positional[Path], flag("The folder of a head.", "HEAD")]
  cache: f.TestCache
  rows: f.Rows = ""
  private_eval: f.PrivateEval = None
  delta: Annotated[float | None, flag("Of --private-eval.", "D")] = None
  allow_duplicates: f.AllowDuplicates = False
  ledger: f.LedgerFile = None
  weak_privacy: f.WeakPrivacy = False
  noise_seed: f.NoiseSeed = None


def run(flags: Flags) -> Answer:
  """Scores it."""
  from oneshot_dp.pipeline.scores import score_head

  scores = score_head(**vars(flags))
  (accuracy,), said = scores.accuracies, scores.statement
  names = {"top1": "top-1", "top5": "top-5", "balanced": "balanced"}
  shares = {name: getattr(accuracy, name) for name in names}
  lines = [
    ", ".join(
      f"{names[name]} {100 * share:.2f} %"
      for name, share in shares.items()
      if share is not None
    )
    + f" of {said['num_examples']:,} rows"
    + (
      f" (noisy counts, ±{100 * said['accuracy_sd']:.2g} points, for epsilon"
      f" {said['epsilon']:g})"
      if said["labels"] == "private"
      else ""
    )
  ]
  recall = dict(zip(scores.class_names, accuracy.recall or (), strict=False))
  known = sorted((s, n) for n, s in recall.items() if s is not None)
  worst = known[:_CLASSES]
  lines += [f"  {100 * share:6.2f} %  {name}" for share, name in worst]
  if len(known) > len(worst):
    lines.append(f"  the {_CLASSES} lowest of {len(known)} classes")
  return Answer(
    text="\n".join(lines),
    facts={"head": flags.head, **said, **shares, "recall": recall or None},
  )
