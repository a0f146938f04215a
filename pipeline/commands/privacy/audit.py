"""`oneshot-dp audit`."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import FlagCreatePairsOff

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.head_config import AUTO
from oneshot_dp.pipeline.commands.flags import HeadFlags, LedgerDir
from oneshot_dp.pipeline.shell.answer import Answer

if TYPE_CHECKING:
  from oneshot_dp.pipeline.audit.report import AuditReport


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(HeadFlags):
  """Attack releases to bound epsilon from below.

  Runs what train runs on canaries, rows that are there or not by the toss of a
  coin, and guesses the coins from all that is released. Without --cache the
  rows are made up: no private data is read, nothing is charged. With it, the
  canaries are put among the real rows of one training, which is charged like
  any release; the head is thrown away. Exit status 1 if the bound is above
  epsilon. A bound below it is consistent with the claim and does not prove it.
  Without --head it attacks the paper's step; --head auto is train's default.

  Example: oneshot-dp audit --epsilon 1 --delta 1e-5

  Example: oneshot-dp audit --head multi-step --steps.sampling poisson
  --steps.batch-size 32 --steps.epochs 2 --epsilon 4 --delta 1e-5

  Example: oneshot-dp audit --cache caches/train --canaries 10000 --epsilon 1
  --delta 1e-6
  """

  epsilon: float
  """The claim to test; with --cache, what the run costs."""
  cache: Path | None = None
  """A private training cache, to audit a run on its rows."""
  canaries: int | None = None
  """How many in a run; default: by the head, up to 10000."""
  confidence: float = 0.95
  """Confidence of all bounds together."""
  runs: int | None = None
  """Without --cache: heads to train; default: by the head, up to 200."""
  num_classes: int | None = None
  """Without --cache: classes; default: 4."""
  rows_per_unit: int | None = None
  """Without --cache: rows of a canary, which is one unit; default: 1."""
  private_eval: FlagCreatePairsOff[bool] = False
  """Without --cache: attack the counts of evaluate --private-eval."""
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Attacks them, and says what it could prove."""
  report = _made_up(flags) if flags.cache is None else _real(flags, flags.cache)
  if report.is_violated:
    failure = RunError(report.verdict)
    return Answer(text=str(report), facts=report.facts, failure=failure)
  text = f"{report}\nverdict: {report.verdict}"
  return Answer(text=text, facts=report.facts)


def _made_up(flags: Flags) -> "AuditReport":
  from oneshot_dp.linear_dp.noise.source import NoiseSource
  from oneshot_dp.pipeline.audit import made_up
  from oneshot_dp.pipeline.training.train_heads import RELATIONS

  for name in ("public_cache", "public_statistics"):
    if getattr(flags.public, name) is not None:
      raise InputError(
        f"--{name.replace('_', '-')} is for the rows of a cache: give --cache"
        " too, or leave it out."
      )
  if flags.private_eval:
    of_heads = ("canaries", "num_classes", "rows_per_unit", "max_rows_per_unit")
    for name in of_heads:
      if getattr(flags, name) is not None:
        raise InputError(
          f"--{name.replace('_', '-')} is for heads, and --private-eval audits"
          " noisy counts: leave one of them out."
        )
  config = flags.training
  if config.head == "auto":
    config = dataclasses.replace(config, head=AUTO)
  runs, canaries = made_up.default_sizes(config)
  runs = runs if flags.runs is None else flags.runs
  canaries = canaries if flags.canaries is None else flags.canaries
  seed = flags.privacy.noise_seed
  plan = made_up.audit_plan(
    config,
    flags.epsilon,
    flags.privacy.delta,
    RELATIONS[flags.privacy.neighboring_relation],
    canaries * (flags.rows_per_unit or 1),
  )
  shared = {"runs": runs, "confidence": flags.confidence, "seed": seed}
  if flags.private_eval:
    plan = dataclasses.replace(plan, epsilons=(flags.epsilon,), sampling=None)
    return made_up.audit_counts(plan, NoiseSource(seed), **shared)
  return made_up.audit_head(
    config,
    plan,
    NoiseSource(seed),
    canaries=canaries,
    num_classes=4 if flags.num_classes is None else flags.num_classes,
    rows_per_unit=1 if flags.rows_per_unit is None else flags.rows_per_unit,
    max_rows_per_unit=flags.max_rows_per_unit,
    **shared,
  )


def _real(flags: Flags, path: Path) -> "AuditReport":
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.linear_dp.heads.choice import choose_head
  from oneshot_dp.pipeline.audit import one_run
  from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
  from oneshot_dp.pipeline.training.cache_rows import cache_rows
  from oneshot_dp.pipeline.training.public_rows import find_public_rows
  from oneshot_dp.pipeline.training.train_heads import (
    RELATIONS,
    cache_ledger,
    plan_heads,
  )

  for name in ("runs", "num_classes", "rows_per_unit"):
    if getattr(flags, name) is not None:
      raise InputError(
        f"--{name.replace('_', '-')} is for made-up rows; leave it out with"
        " --cache."
      )
  if flags.private_eval:
    raise InputError("--private-eval is for made-up rows: leave out --cache.")
  cache = open_cache(path)
  config, why = choose_head(flags.training, cache_rows(cache))
  if config != flags.training:
    print(f"head: {config.head}, {why}", file=sys.stderr)
  canaries = one_run.make_canaries(
    config,
    cache,
    RELATIONS[flags.privacy.neighboring_relation],
    flags.canaries,
    flags.max_rows_per_unit,
  )
  rows = cache.info.public_num_examples + canaries.num_rows
  plan = plan_heads(config, rows, (flags.epsilon,), flags.privacy)
  public = find_public_rows(
    cache, **vars(flags.public), ledger_dir=flags.ledger_dir
  )
  ledger = cache_ledger(cache, flags.ledger_dir)
  with says_what_was_charged(ledger, out=None):
    return one_run.audit_run(
      cache,
      plan,
      config,
      flags.privacy,
      canaries,
      max_rows_per_unit=flags.max_rows_per_unit,
      public=public,
      ledger_dir=flags.ledger_dir,
      confidence=flags.confidence,
    )
