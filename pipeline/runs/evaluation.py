"""Scores a saved head for `evaluate`, or says what that would cost."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import has_several_owners
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import check_views
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.heads.head_folder import SavedHead, read_head
from oneshot_dp.pipeline.ledger.ledger import Ledger, open_existing_ledger
from oneshot_dp.pipeline.report.results import NORMAL_95, NOT_PRIVATE
from oneshot_dp.pipeline.requests import EvalRequest
from oneshot_dp.pipeline.runs.cache_roles import check_roles, check_same_kind
from oneshot_dp.pipeline.runs.costs import (
  costs_of,
  describe_cost,
  describe_planned_cost,
)
from oneshot_dp.pipeline.runs.eval_rows import (
  EvalRows,
  Scores,
  open_eval_rows,
)
from oneshot_dp.pipeline.runs.messages import end_of_dry_run

# A 95 % interval of the noise that is wider than this, at each side, tells
# little of a head.
_LARGE_NOISE = 0.1


def score_head(request: EvalRequest) -> tuple[Scores, Sequence[str]]:
  """Scores one saved head, for `evaluate`.

  Formal guarantees: labels that are private, by --private-eval or because the
  ledger holds their rows, leave as noisy counts that were charged before, or
  not at all.

  Args:
    request: what to score, and what may be spent on it.

  Returns:
    The scores, and the names of the classes. Where a charge paid for them, the
    ledger has noted by now that they were shown, so that no other answer is
    drawn for the charge, whatever becomes of this one.

  Raises:
    InputError: a ledger that is named does not exist, and nothing is charged;
      another backbone or other classes; rows that the ledger holds as
      private, and no --private-eval; or the charge would exceed the cap.
  """
  if request.eval_set.private_epsilon is not None:
    Ledger(request.ledger).check_writable()
  saved, eval_rows, ledger = _open_evaluation(request)
  class_names = eval_rows.role.cache.info.class_names
  head = _head_in_order(saved, class_names)
  if eval_rows.budget is None:
    for note in _check_labels_are_public(request, saved, eval_rows, ledger):
      print(note, file=sys.stderr)
    return eval_rows.score([head]), class_names
  requests = eval_rows.charge_requests()
  charge_ids = ledger.charge(
    requests,
    request.place,
    _evaluation_identity(request, saved, eval_rows),
  )
  with _name_the_charge(ledger):
    if eval_rows.source.is_private:
      (cost,) = costs_of(
        requests, ledger.entries(), charge_ids, eval_rows.budget.delta
      )
      charge = f"{describe_cost(cost, 'is charged')}, in {ledger.path}"
      print(charge, file=sys.stderr)
    scores = eval_rows.score([head])
    # The charge pays for one answer. It is noted first: an answer that is in
    # view before could be drawn again, with other noise, by a second command or
    # after a kill, and their mean has less noise than was paid for.
    ledger.deliver(charge_ids, {})
  return scores, class_names


def dry_run_of_scores(request: EvalRequest) -> Answer:
  """Checks everything that `score_head` checks, and states the cost.

  Formal guarantees: nothing is scored, charged or written. What is said follows
  from public facts, and from what the ledger was charged.

  Raises:
    InputError: what `score_head` would refuse, its charge included.
  """
  saved, eval_rows, ledger = _open_evaluation(request)
  if eval_rows.budget is None:
    warnings = _check_labels_are_public(request, saved, eval_rows, ledger)
    lines = ["accuracies would be exact, as the labels are public: no charge"]
    facts = {"labels": "public", "costs": []}
  else:
    warnings = _warnings_of_noise(eval_rows)
    lines, facts = _private_scores(request, saved, eval_rows, ledger)
  return Answer(
    text="\n".join([*warnings, *lines, end_of_dry_run(ledger)]),
    facts={"dry_run": True, "warnings": warnings, **facts},
  )


def _open_evaluation(
  request: EvalRequest,
) -> tuple[SavedHead, EvalRows, Ledger]:
  """Opens and checks the head, the test rows and the ledger of a request.

  Raises:
    InputError: a ledger that is named does not exist, and nothing is charged;
      another backbone or other classes.
  """
  # Public or private is settled before anything is scored: an exact accuracy
  # cannot be taken back.
  saved = read_head(request.head)
  if request.eval_set.private_epsilon is None:
    ledger = open_existing_ledger(request.ledger)
  else:
    ledger = Ledger(request.ledger)  # a charge may be its first entry
  eval_rows = open_eval_rows(
    request.eval_set,
    flag="--cache",
    delta=request.delta,
    source=NoiseSource(request.noise_seed),
    allow_weak_privacy=request.allow_weak_privacy,
  )
  class_names = saved.stated["class_names"]
  cache_names = eval_rows.role.cache.info.class_names
  if sorted(class_names) == sorted(cache_names):
    class_names = cache_names  # `_head_in_order` goes by the names
  check_same_kind(
    request.head,
    saved.stated["backbone_fingerprint"],
    class_names,
    eval_rows.role,
  )
  check_views(
    str(request.head),
    saved.stated["views"],
    str(eval_rows.role),
    eval_rows.role.cache.info.views,
  )
  return saved, eval_rows, ledger


def _head_in_order(saved: SavedHead, class_names: Sequence[str]) -> LinearHead:
  """The head with its classes in the order of a cache, by their names.

  Two files may number the same classes differently, as ClassLabels do.
  """
  head = saved.trained.head
  number_of: dict[str, int] = {}
  for number, name in enumerate(saved.stated["class_names"]):
    number_of[name] = number
  order = [number_of[name] for name in class_names]
  return dataclasses.replace(
    head,
    kernel=np.asarray(head.kernel)[:, order],
    bias=np.asarray(head.bias)[order],
  )


@contextlib.contextmanager
def _name_the_charge(ledger: Ledger) -> Iterator[None]:
  """Adds to an error after a charge what became of the charge."""
  try:
    yield
  except (InputError, RunError, KeyboardInterrupt) as error:
    reason = str(error) or "interrupted;"
    raise type(error)(
      f"{reason} No accuracies were shown; what was charged to {ledger.path}"
      " stays charged, and the same command resumes a charge for which nothing"
      " was released, without a new one."
    ) from error


def _check_labels_are_public(
  request: EvalRequest, saved: SavedHead, eval_rows: EvalRows, ledger: Ledger
) -> list[str]:
  """Refuses exact scores on rows that are known as private.

  Args:
    request: whose flags must fit public labels.
    saved: the head, whose receipt names the cache that it was trained on.
    eval_rows: the rows to score it on.
    ledger: whose private rows are compared with them, by content.

  Returns:
    Notes about what is shared and allowed, or could not be checked.

  Raises:
    InputError: rows or units are private; or a flag is for noisy scores only.
  """
  if request.delta is not None or request.noise_seed is not None:
    raise InputError("--delta and --noise-seed are for --private-eval only.")
  # Two checks, because either may know what the other does not: the receipt
  # names the cache that the head was trained on, the ledger knows rows by
  # content.
  if not _has_other_rows(saved, eval_rows.role.cache, ledger):
    _refuse_training_rows(saved, eval_rows)
  notes = check_roles(
    [eval_rows.role],
    ledger,
    allow_duplicates=request.eval_set.allow_duplicates,
  )
  # Of the cache that the receipt names, the parts that were compared are all.
  cache = eval_rows.role.cache
  is_known = saved.stated["weights_sha256"] in ledger.heads()
  is_same_cache = saved.stated["cache_fingerprint"] == cache.info.fingerprint
  if not (is_known or is_same_cache):
    notes.append(
      f"note: {ledger.path} does not know this head: that it was not trained on"
      f" rows of {cache.name} is what its receipt says, and was not checked by"
      " content"
    )
  return notes


def _has_other_rows(
  saved: SavedHead, cache: FeatureCache, ledger: Ledger
) -> bool:
  """Whether the ledger knows that a head was trained on another cache.

  Two caches of one data set, as for cross-validation, may have equal metadata,
  and so one fingerprint. The ledger has a digest of the training rows, and
  compares them by content, too.
  """
  released = ledger.heads().get(saved.stated["weights_sha256"])
  if released is None:
    return False
  trained_on: list[str] = []
  for charge in ledger.paid(released.charge)[:1]:
    trained_on = charge.identity.get("private_digests", [])
  part = Part.parse(saved.stated["rows"])
  digest = dataclasses.replace(cache, part=part).private_digest
  return bool(trained_on) and trained_on[0] != digest


def _refuse_training_rows(saved: SavedHead, eval_rows: EvalRows) -> None:
  """Refuses the rows of which the head's receipt says that it saw them.

  Parts of one cache share rows exactly if their percentages overlap, so this
  needs no ledger. Where an image has several owners, all parts share people.
  """
  cache = eval_rows.role.cache
  if saved.stated["cache_fingerprint"] != cache.info.fingerprint:
    return
  trained_on = Part.parse(saved.stated["rows"])
  first = max(trained_on.first, cache.part.first)
  last = min(trained_on.last, cache.part.last)
  if first < last or has_several_owners(cache.info.unit):
    raise InputError(
      f"{saved.path} was trained on rows of {eval_rows.role}, by its receipt,"
      " and exact accuracies on them would give their private labels away:"
      " score other rows, such as another part by --rows, or score these with"
      " --private-eval. (If these are other rows under one description, the"
      " ledger that was charged knows: name it with --ledger.)"
    )


def _evaluation_identity(
  request: EvalRequest, saved: SavedHead, eval_rows: EvalRows
) -> dict[str, Any]:
  """Returns what distinguishes an evaluation from all others; PRIVATE.

  By it an evaluation that was charged, and stopped before its answer was noted,
  is recognized and not charged again.

  Args:
    request: what is scored, and with which noise.
    saved: the head.
    eval_rows: the rows, with a budget.
  """
  budget = eval_rows.budget
  assert budget is not None
  return {
    "head": saved.stated["weights_sha256"],
    "rows": eval_rows.role.cache.private_digest,
    "budget": [budget.epsilon, budget.delta],
    "noise_seed": request.noise_seed,
  }


def _private_scores(
  request: EvalRequest, saved: SavedHead, eval_rows: EvalRows, ledger: Ledger
) -> tuple[list[str], dict[str, Any]]:
  """Says what noisy accuracies would cost; returns lines and facts."""
  assert eval_rows.budget is not None
  requests = eval_rows.charge_requests()
  lines = [_noise_line(eval_rows)]
  charge_ids = ledger.preview(
    requests,
    request.place,
    _evaluation_identity(request, saved, eval_rows),
  )
  costs = costs_of(
    requests, ledger.entries(), charge_ids, eval_rows.budget.delta
  )
  if eval_rows.source.is_private:
    for cost in costs:
      lines.append(describe_planned_cost(cost, was_charged=len(charge_ids) > 0))
  else:
    lines.append(f"the noise comes from a seed, {NOT_PRIVATE}")
  facts = {
    "labels": "private",
    "private": eval_rows.source.is_private,
    "accuracy_sd": eval_rows.expected_accuracy_sd(),
    "costs": costs,
  }
  return lines, facts


def _noise_line(eval_rows: EvalRows) -> str:
  assert eval_rows.budget is not None
  cache = eval_rows.role.cache
  points = 100 * NORMAL_95 * eval_rows.expected_accuracy_sd()
  epsilon = format_rounded_up(eval_rows.budget.epsilon)
  line = (
    f"top-1 at epsilon {epsilon}, delta {eval_rows.budget.delta:g}: noise of"
    f" ±{points:.3g} points in 95 of 100 cases"
  )
  # The number of units is private, and what is paid for it is known only then.
  if cache.info.has_units:
    line += f", more with fewer units ({cache.info.unit}) than {cache.n:,}"
  return line


def _warnings_of_noise(eval_rows: EvalRows) -> list[str]:
  noise = NORMAL_95 * eval_rows.expected_accuracy_sd()
  if noise <= _LARGE_NOISE:
    return []
  return [
    f"WARNING: noise of ±{100 * noise:.3g} points tells little of a head: give"
    " more test rows or a larger epsilon"
  ]
