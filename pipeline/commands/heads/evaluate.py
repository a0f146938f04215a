"""`oneshot-dp evaluate`."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.head_config import PrivacyConfig
from oneshot_dp.pipeline.commands.checks import check_kind
from oneshot_dp.pipeline.commands.flags import (
  LargeDelta,
  LedgerDir,
  NoiseSeed,
  NotTrainedOn,
  RealLabelsFile,
  Relation,
)
from oneshot_dp.pipeline.shell.answer import Answer

if TYPE_CHECKING:
  from oneshot_dp.extract.cache.info import CacheInfo
  from oneshot_dp.pipeline.runs.evaluation import Evaluation


_SCORES = {"top1": "top-1", "top5": "top-5", "balanced": "balanced"}
_CLASSES = 10
"""As many as a person reads."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Score a head on a cache: top-1, top-5 and balanced accuracy, and recall.

  The labels of the cache are treated as public, unless --private-eval is given:
  then top-1 and top-5 are noisy counts, and what is about classes is left out.

  Example: oneshot-dp evaluate heads/epsilon-4 --cache caches/test

  Example: oneshot-dp evaluate heads/epsilon-4 --cache caches/test
  --private-eval 0.5 --delta 1e-6
  """

  head: Positional[Path]
  """Directory of the head."""
  cache: Path
  """The labelled cache."""
  real_labels: RealLabelsFile = None
  private_eval: float | None = None
  """Privacy budget of the accuracies: the labels are private, and noisy counts
  are published. Each evaluation is charged to the ledger of the cache's data
  set, which is the ledger of the training too where both are splits of one data
  set; score many heads at once with `sweep`."""
  delta: float | None = None
  """Delta of --private-eval; well below 1 / rows of the cache."""
  neighboring_relation: Relation = "replace-special"
  large_delta: LargeDelta = False
  noise_seed: NoiseSeed = None
  ledger_dir: LedgerDir = None
  not_trained_on: NotTrainedOn = False


def run(flags: Flags) -> Answer:
  """Scores it."""
  from oneshot_dp.extract.cache.reader import open_cache
  from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
  from oneshot_dp.pipeline.ledger.interrupted import says_what_was_charged
  from oneshot_dp.pipeline.ledger.ledger import Ledger
  from oneshot_dp.pipeline.runs.evaluation import (
    PrivateEvaluation,
    check_not_trained_on,
    evaluate_on_public_labels,
  )
  from oneshot_dp.pipeline.runs.real_labels import RealLabels
  from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
  from oneshot_dp.pipeline.saved_head.verify import read_sound_head

  check_kind(flags.head, "evaluate")
  saved = read_sound_head(flags.head, by_digests=True)
  cache = open_cache(flags.cache)
  space = FeatureSpace.of_receipt(flags.head, saved.receipt)
  space.check_evaluates_on(FeatureSpace.of_cache(flags.cache, cache.info))
  real = None
  if flags.private_eval is not None:
    privacy = _privacy(flags.private_eval, flags, cache.info)
    request = PrivateEvaluation.of(
      flags.private_eval, privacy, cache, flags.ledger_dir
    )
    request.ledger.check(request.charge)
    with says_what_was_charged(request.ledger, out=None):
      scored = request.evaluate([saved.head])
  elif flags.delta is not None or flags.noise_seed is not None:
    raise InputError(
      "--delta and --noise-seed are for --private-eval; without it the"
      " accuracy is exact: leave them out, or give --private-eval EPSILON."
    )
  else:
    if flags.real_labels is not None:
      real = RealLabels.of(flags.real_labels, cache)
    ledger = Ledger(space.rows[0], flags.ledger_dir)
    check_not_trained_on(ledger, cache, insisted=flags.not_trained_on)
    scored = evaluate_on_public_labels([saved.head], cache)
  if not saved.receipt.get("private"):
    print(f"warning: this head is {NOT_PRIVATE}.", file=sys.stderr)
  if flags.private_eval is None:
    print(
      "The labels of this cache are treated as public: the accuracy is exact.",
      file=sys.stderr,
    )
  facts = _stated(scored, cache.info)
  sets = {"labels": facts}
  if real:
    sets["ReaL"] = _stated(real.evaluate([saved.head], cache), cache.info)
    facts = facts | {"real": sets["ReaL"]}
  return Answer(text=_table(sets, scored.description), facts=facts)


def _table(sets: Mapping[str, Mapping[str, Any]], description: str) -> str:
  """Percentages by each set of labels, the recalls from the lowest on."""
  from oneshot_dp.pipeline.runs.text_table import text_table

  rows = [
    (title, *(_percent(each.get(name)) for each in sets.values()))
    for name, title in _SCORES.items()
  ]
  recall: dict[str, float | None] = sets["labels"].get("recall", {})
  worst = sorted(
    recall, key=lambda name: (recall[name] is None, recall[name] or 0.0)
  )
  rows += [(f"recall of {c}", _percent(recall[c])) for c in worst[:_CLASSES]]
  rows.append(
    ("rows", *(f"{each['num_examples']:,}" for each in sets.values()))
  )
  lines = text_table(("in %", *sets), rows)
  if len(worst) > _CLASSES:
    lines.append(f"the {_CLASSES} lowest recalls of {len(worst)}; all: --json")
  return "\n".join([*lines, description])


def _percent(share: float | None) -> str:
  return "-" if share is None else f"{100 * share:.2f}"


def _stated(scored: "Evaluation", info: "CacheInfo") -> dict[str, Any]:
  """What is known of it, the recalls by the names of their classes."""
  (score,) = scored.scores
  facts: dict[str, Any] = dataclasses.asdict(score)
  if score.recall is not None:
    facts["recall"] = dict(zip(info.class_names, score.recall, strict=True))
  known = {name: value for name, value in facts.items() if value is not None}
  return known | {"evaluation": scored.statement}


def _privacy(epsilon: float, flags: Flags, info: "CacheInfo") -> PrivacyConfig:
  if flags.delta is None:
    raise InputError(
      f"--private-eval {epsilon:g} needs a --delta, well below"
      f" 1/n = {1 / info.public_num_examples:.2g}."
    )
  if flags.real_labels is not None:
    raise InputError(
      "--real-labels are public, and --private-eval is for labels that are"
      " not; leave one of them out."
    )
  return PrivacyConfig(
    delta=flags.delta,
    neighboring_relation=flags.neighboring_relation,
    large_delta=flags.large_delta,
    noise_seed=flags.noise_seed,
  )
