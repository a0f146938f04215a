"""`oneshot-dp evaluate`."""

import dataclasses
from typing import Annotated

from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f

_CLASSES = 10
"""As many as a person reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Score a head on labelled embeddings: exactly, or by noisy counts.

  Example: oneshot-dp evaluate heads/2 --cache caches/test

  Example: oneshot-dp evaluate heads/2 --cache caches/private-test
  --private-eval 1 --delta 1e-6
  """

  head: f.HeadFolder
  cache: f.TestCache
  rows: f.Rows = ""
  private_eval: f.PrivateEval = None
  delta: Annotated[float | None, f.flag("Delta of --private-eval.", "D")] = None
  allow_duplicates: f.AllowDuplicates = False
  ledger: f.LedgerFile = None
  weak_privacy: f.WeakPrivacy = False
  noise_seed: f.NoiseSeed = None


def run(flags: Flags) -> Answer:
  """Scores it."""
  from oneshot_dp.linear_dp.accounting import format_rounded_up
  from oneshot_dp.pipeline.runs.evaluation import score_head

  ((accuracy,), said), names = score_head(flags)
  titles = {"top1": "top-1", "top5": "top-5", "balanced": "balanced"}
  shares = {name: getattr(accuracy, name) for name in titles}
  known = {titles[n]: s for n, s in shares.items() if s is not None}
  line = ", ".join(f"{title} {100 * s:.2f} %" for title, s in known.items())
  line += f" of {said['num_examples']:,} rows"
  if said["labels"] == "private":
    line += (
      f" (noisy counts, ±{100 * said['accuracy_sd']:.2g} points, for epsilon"
      f" {format_rounded_up(said['epsilon'])})"
    )
    line += ", NOT PRIVATE" * (not said["private"])
  recall = dict(zip(names, accuracy.recall or (), strict=False))
  lowest = sorted((s, n) for n, s in recall.items() if s is not None)
  lines = [f"  {100 * s:6.2f} %  {n}" for s, n in lowest[:_CLASSES]]
  if lowest[_CLASSES:]:
    lines.append(f"  are the {_CLASSES} lowest of {len(lowest)} classes")
  facts = {"head": flags.head, **said, **shares, "recall": recall or None}
  return Answer(text="\n".join([line, *lines]), facts=facts)
