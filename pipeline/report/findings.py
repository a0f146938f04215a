"""All that the page about a run is made of."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.reader import FeatureCache, open_cache
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.pipeline.ledger.folder import check_never_charged
from oneshot_dp.pipeline.report.command_lines import Places
from oneshot_dp.pipeline.report.cost import (
  BudgetStatus,
  RunCost,
  budget_status,
  cost_of,
)
from oneshot_dp.pipeline.report.noise_and_signal import (
  NoiseAndSignal,
  SumOfRows,
  sums_of,
)
from oneshot_dp.pipeline.report.public_answers import PublicAnswers, ask
from oneshot_dp.pipeline.report.run_record import RunRecord, read_run
from oneshot_dp.pipeline.runs.evaluation import EXACT_SCORES
from oneshot_dp.pipeline.runs.results import SweepRow, grouped
from oneshot_dp.pipeline.saved_head.check_receipt import problems
from oneshot_dp.pipeline.saved_head.verify import HeadCheck, verify_head

_TIES = 1e-3
"""Share of the rows, and at least two, whose best logits float32 may order in
another way than when they were scored."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
  """A run, looked at closely: where there is no such thing, words say why.

  `chosen` are the heads that are looked at, over draws; `checks` is what
  `verify` finds about each, `answers` what they say of public evaluation rows.
  """

  run: RunRecord
  places: Places
  chosen: tuple[SweepRow, ...]
  receipt: dict[str, Any]
  checks: tuple[HeadCheck, ...]
  cost: RunCost
  budget: BudgetStatus | str
  answers: PublicAnswers | str
  compared: NoiseAndSignal | str

  @property
  def notes(self) -> tuple[str, ...]:
    """What the page cannot show, and why; a line each."""
    missing = {
      "budget": self.budget,
      "confusion matrix and accuracy of classes": self.answers,
      "noise against signal": self.compared,
    }
    return tuple(
      f"no {what}: {why}" for what, why in missing.items() if type(why) is str
    )


def look(
  directory: Path,
  *,
  epsilon: float | None = None,
  head: str | None = None,
  cache: Path | None = None,
  eval_cache: Path | None = None,
  ledger_dir: Path | None = None,
) -> Findings:
  """Reads a run, its ledger, and the evaluation rows if they are public.

  The private rows are not read. See `oneshot-dp report --help` for arguments.
  InputError: the directory is of no run, what was asked for is not in it, or
  its results are not those that the receipts are about.
  """
  run = read_run(directory)
  then = run.config["run"]
  places = Places(
    cache=cache or Path(then["cache"]),
    eval_cache=eval_cache or Path(then["eval_cache"]),
    ledger_dir=ledger_dir or Path(then["ledger_dir"]),
  )
  if cache is not None:
    _open(places.cache, run.config["train_cache"])
  chosen = run.chosen(epsilon, head)
  checks = tuple(
    verify_head(run.directory / row.path, places.ledger_dir) for row in chosen
  )
  # The page says so of these, and trusts neither side.
  unsound = [
    row.path
    for row, check in zip(chosen, checks, strict=True)
    if check.problems and problems(run.receipts[row.path])
  ]
  cost = cost_of(run, unsound)
  receipt = run.receipts[chosen[0].path]
  if len(run.class_names) != receipt["mechanism"]["num_classes"]:
    raise InputError(
      f"{directory}/config.json is damaged: it names {len(run.class_names)}"
      " classes, and heads have another number; run it again."
    )
  sums, summed = _known_sums(run, chosen[0])
  answers = _evaluation_rows(run, places, is_given=eval_cache is not None)
  if not isinstance(answers, str):
    clipped = None if isinstance(sums, str) else sums.clipped
    answers = ask([run.head(row).head for row in chosen], answers, clipped)
    if not _fit(answers, chosen):
      answers = f"{places.eval_cache} does not hold the rows that were scored"
  relation = NeighboringRelation[receipt["privacy"]["neighboring_relation"]]
  return Findings(
    run=run,
    places=places,
    chosen=chosen,
    receipt=receipt,
    checks=checks,
    cost=cost,
    budget=budget_status(places.ledger_dir, run, cost.entries, relation),
    answers=answers,
    compared=_compared(run, answers, sums, summed),
  )


def _open(path: Path, then: dict[str, Any]) -> FeatureCache:
  """A cache, if it is the one that the run had; else an InputError."""
  cache = open_cache(path)
  if cache.fingerprint != then["fingerprint"]:
    raise InputError(
      f"{path} is of {cache.info.dataset}, split {cache.info.split}"
      f" ({cache.fingerprint[:12]}), and the run had {then['dataset']}, split"
      f" {then['split']} ({then['fingerprint'][:12]}): give the cache that it"
      " had."
    )
  return cache


def _evaluation_rows(
  run: RunRecord, places: Places, *, is_given: bool
) -> FeatureCache | str:
  if not run.labels_are_public:
    return (
      "the labels that the heads were scored on are private, and only noisy"
      " counts of right answers were released"
    )
  try:
    cache = _open(places.eval_cache, run.config["eval_cache"])
  except InputError as error:
    if is_given:
      raise
    return f"{error} Where is it now? --eval-cache"
  try:
    check_never_charged(cache, places.ledger_dir, EXACT_SCORES)
  except InputError:  # which says how many: for their holder alone
    return (
      f"some rows of {cache.path} may be private now, by a ledger of"
      f" {places.ledger_dir} (`evaluate` says more): {EXACT_SCORES}"
    )
  return cache


def _fit(answers: PublicAnswers, chosen: tuple[SweepRow, ...]) -> bool:
  """Whether the rows give the accuracies that results.csv has."""
  found = (answers.answer == answers.label).mean(axis=1)
  tolerance = max(_TIES, 2.5 / len(answers.label))
  return all(
    math.isclose(share, row.top1, abs_tol=tolerance)
    for share, row in zip(found.tolist(), chosen, strict=True)
  )


def _known_sums(
  run: RunRecord, chosen: SweepRow
) -> tuple[SumOfRows | str, SweepRow]:
  """The sums of the chosen head, or another, and which it is; or why none."""
  others = [rows[0] for rows in grouped(run.noisy, "head").values()]
  found = [(sums_of(run.receipts[r.path]), r) for r in (chosen, *others)]
  known = (each for each in found if not isinstance(each[0], str))
  return next(known, found[0])


def _compared(
  run: RunRecord,
  answers: PublicAnswers | str,
  sums: SumOfRows | str,
  summed: SweepRow,
) -> NoiseAndSignal | str:
  if isinstance(sums, str):
    return sums
  if isinstance(answers, str):
    return f"the signal is estimated from public rows, and {answers}"
  assert answers.class_sums is not None
  heads = grouped(run.noisy, "head")[summed.head]
  return sums.compared(
    answers.class_sums,
    method=summed.head,
    scale=summed.num_examples / len(answers.label),
    noise_sds={
      row.epsilon: run.receipts[row.path]["privacy"]["noise_sd_steps"]
      for row in sorted(heads, key=lambda row: row.epsilon)
    },
  )
