"""Accuracies of heads on a test set: exact, or noisy where it is private."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import has_several_owners
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import check_views
from oneshot_dp.extract.cache.read import open_cache
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import (
  format_rounded_up,
  mu_squared_from_epsilon,
)
from oneshot_dp.linear_dp.distributed.hosts import ALONE, Hosts
from oneshot_dp.linear_dp.evaluate import (
  Accuracy,
  evaluate_heads,
  private_accuracies,
)
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.linear_dp.private_sums import PrivateSums
from oneshot_dp.linear_dp.rows import Rows, rows_of
from oneshot_dp.pipeline.heads.head_folder import SavedHead, read_head
from oneshot_dp.pipeline.ledger.entries import ChargeRequest, LedgerEntry
from oneshot_dp.pipeline.ledger.ledger import Ledger, open_existing_ledger
from oneshot_dp.pipeline.requests import EvalRequest, EvalSet
from oneshot_dp.pipeline.runs.cache_roles import (
  CacheRole,
  check_roles,
  check_same_kind,
  data_of,
)
from oneshot_dp.pipeline.runs.costs import costs_of, describe_cost


class EvalBudget(NamedTuple):
  """(ε, δ) of all noisy accuracies of one run together."""

  epsilon: float
  delta: float

  @property
  def mu_squared(self) -> float:
    return mu_squared_from_epsilon(self.epsilon, self.delta)


class Scores(NamedTuple):
  """Accuracies, one for each head, and what is published about them as JSON."""

  accuracies: Sequence[Accuracy]
  facts: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EvalRows:
  """Rows on which heads are scored: exactly, or by noisy counts for a budget.

  Attributes:
    role: their cache, which is private exactly if there is a budget.
    rows: the same, as private sums read them.
    source: what noise is drawn from.
    budget: what the noisy counts cost; None where the labels are public.
  """

  role: CacheRole
  rows: Rows
  source: NoiseSource
  budget: EvalBudget | None

  def charge_requests(self) -> list[ChargeRequest]:
    """Returns what the scores cost, of all heads together; empty if nothing."""
    if self.budget is None:
      return []
    info = self.role.cache.info
    # With seeded noise there is no μ²: the charge says that something was shown
    # that no ε covers.
    mu_squared = None
    if self.source.is_private:
      mu_squared = str(Fraction(self.budget.mu_squared))
    epsilon = format_rounded_up(self.budget.epsilon)
    charge = LedgerEntry(
      kind="charge",
      description=f"accuracies at epsilon {epsilon}",
      mu_squared=mu_squared,
      unit=info.unit,
      delta=self.budget.delta,
    )
    return [
      ChargeRequest(
        dataset=info.dataset,
        charges=(charge,),
        keys=self.role.keys,
        cache=self.role.cache.path,
      )
    ]

  def score(self, heads: Sequence[LinearHead]) -> Scores:
    """Scores heads; noisy counts must have been charged before.

    Formal guarantees: with a budget, all counts together are (ε, δ)-DP; see
    `private_accuracies`. Without, they are exact.
    """
    if self.budget is None:
      accuracies = evaluate_heads(heads, self.role.cache.blocks())
      return Scores(accuracies, self.facts_of_exact_counts(accuracies[0]))
    # Of a part, only the mean number of rows is public.
    count_is_private = not self.role.cache.part.is_whole
    # All heads are scored by one release, see `private_accuracies`: what
    # accuracies cost does not depend on how many heads there are.
    mu_squared = self.budget.mu_squared
    sums = PrivateSums(self.source, mu_squared)
    accuracies = private_accuracies(
      sums,
      self.rows,
      heads,
      mu_squared=mu_squared,
      count_units=count_is_private,
    )
    num_examples = accuracies[0].num_examples
    # The last release is the counts of right answers; the number of units, if
    # it is released at all, comes before. Each count was multiplied by √H.
    noise_multiplier = float(sums.releases[-1].noise_multiplier)
    accuracy_sd = noise_multiplier * math.sqrt(len(heads)) / num_examples
    facts = self.facts_of_noisy_counts(num_examples, accuracy_sd)
    return Scores(accuracies, facts)

  def expected_accuracy_sd(self) -> float:
    """Computes how noisy the accuracy of one head will be, from public facts.

    Returns:
      The standard deviation of the noise, a fraction; 0 where labels are
      public. With units of many rows it is the least that it can be: there are
      at most as many units as rows, and how many is private.
    """
    if self.budget is None:
      return 0.0
    mu_squared = self.budget.mu_squared
    cache = self.role.cache
    # As in `private_accuracies`: half of the budget pays for the number of
    # rows or units, where that is private.
    if cache.info.has_units or not cache.part.is_whole:
      mu_squared /= 2
    return mu_squared**-0.5 / cache.n

  def facts_of_exact_counts(self, accuracy: Accuracy) -> dict[str, Any]:
    """States which rows an exact accuracy was measured on."""
    return {
      **self._facts_of_rows(),
      "num_examples": accuracy.num_examples,
      "class_rows": accuracy.class_rows,
    }

  def facts_of_noisy_counts(
    self, num_examples: int, accuracy_sd: float
  ) -> dict[str, Any]:
    """States which rows noisy accuracies were measured on, and their cost.

    Args:
      num_examples: about how many rows, or units, were scored.
      accuracy_sd: standard deviation of the noise on an accuracy, a fraction.
    """
    assert self.budget is not None
    return {
      **self._facts_of_rows(),
      "num_examples": num_examples,
      "privacy_unit": self.role.cache.info.unit,
      "private": self.source.is_private,
      "epsilon": self.budget.epsilon,
      "delta": self.budget.delta,
      "noise_source": self.source.description,
      "accuracy_sd": accuracy_sd,
    }

  def _facts_of_rows(self) -> dict[str, Any]:
    info = self.role.cache.info
    return {
      "labels": self.role.role,
      "dataset": info.dataset,
      "split": info.split,
      "rows": str(self.role.cache.part),
    }


def open_eval_rows(
  eval_set: EvalSet,
  *,
  flag: str,
  delta: float | None,
  source: NoiseSource,
  allow_weak_privacy: bool,
  hosts: Hosts = ALONE,
) -> EvalRows:
  """Opens a test set, and reads every row of it once to validate it.

  Args:
    eval_set: the cache, its part, and what is to be spent on it.
    flag: the flag that named the cache, for messages.
    delta: δ of its budget, needed where it has one.
    source: what noise is drawn from.
    allow_weak_privacy: allow δ ≥ 1/n and ε > 20.
    hosts: this host among the others of the run.

  Raises:
    InputError: there is no such cache, its budget is not a guarantee, or a row
      of it cannot be scored.
  """
  cache = open_cache(eval_set.cache, eval_set.part)
  # δ is compared with n of the test rows: those are whose labels are protected.
  budget = None
  if eval_set.private_epsilon is not None:
    if delta is None:
      raise InputError("--private-eval needs --delta, too.")
    accounting.check_budget(
      eval_set.private_epsilon,
      delta,
      allow_weak_privacy=allow_weak_privacy,
      flag="--private-eval",
    )
    accounting.check_delta(
      delta, cache.n, allow_weak_privacy=allow_weak_privacy
    )
    budget = EvalBudget(eval_set.private_epsilon, delta)
  # A unit's rows one by one, each at its share of the unit's weight: accuracy
  # is about rows, and means of a unit's classes are no rows.
  data = data_of(cache, hosts)
  rows = rows_of(data, per_row=True)
  rows.validate()
  data.check_across_hosts()
  role = CacheRole(cache, "public" if budget is None else "private", flag)
  return EvalRows(role=role, rows=rows, source=source, budget=budget)


def open_evaluation(
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
  check_same_kind(
    request.head,
    saved.stated["backbone_fingerprint"],
    saved.stated["class_names"],
    eval_rows.role,
  )
  check_views(
    str(request.head),
    saved.stated["views"],
    str(eval_rows.role),
    eval_rows.role.cache.info.views,
  )
  return saved, eval_rows, ledger


def score_head(
  request: EvalRequest, show: Callable[[Scores, Sequence[str]], None]
) -> None:
  """Scores one saved head, for `evaluate`.

  Formal guarantees: labels that are private, by --private-eval or because the
  ledger holds their rows, leave as noisy counts that were charged before, or
  not at all.

  Args:
    request: what to score, and what may be spent on it.
    show: takes the scores and the names of the classes. Where a charge paid
      for them it is called after the ledger has noted that they were shown, so
      that no other answer is drawn for the charge, whatever happens to this.

  Raises:
    InputError: a ledger that is named does not exist, and nothing is charged;
      another backbone or other classes; rows that the ledger holds as
      private, and no --private-eval; or the charge would exceed the cap.
  """
  saved, eval_rows, ledger = open_evaluation(request)
  class_names = eval_rows.role.cache.info.class_names
  if eval_rows.budget is None:
    for note in check_labels_are_public(request, saved, eval_rows, ledger):
      print(note, file=sys.stderr)
    show(eval_rows.score([saved.trained.head]), class_names)
    return
  requests = eval_rows.charge_requests()
  charge_ids = ledger.charge(
    requests,
    request.place,
    evaluation_identity(request, saved, eval_rows),
  )
  with _name_the_charge(ledger):
    if eval_rows.source.is_private:
      (cost,) = costs_of(
        requests, ledger.entries(), charge_ids, eval_rows.budget.delta
      )
      said = f"{describe_cost(cost, 'is charged')}, in {ledger.path}"
      print(said, file=sys.stderr)
    scores = eval_rows.score([saved.trained.head])
    # The charge pays for one answer. It is noted first: an answer that is in
    # view before could be drawn again, with other noise, by a second command or
    # after a kill, and their mean has less noise than was paid for.
    ledger.deliver(charge_ids, {})
  show(scores, class_names)


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


def check_labels_are_public(
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
  _refuse_training_rows(saved, eval_rows)
  notes = check_roles(
    [eval_rows.role],
    ledger,
    allow_duplicates=request.eval_set.allow_duplicates,
  )
  if saved.stated["weights_sha256"] not in ledger.heads():
    notes.append(
      f"note: {ledger.path} does not know this head, so whether it was trained"
      f" on rows of {eval_rows.role.cache.name} was not checked"
    )
  return notes


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
      f"{saved.path} was trained on rows of {eval_rows.role}, and exact"
      " accuracies on them would give their private labels away: score other"
      " rows, such as another part by --rows, or score these with"
      " --private-eval."
    )


def evaluation_identity(
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
