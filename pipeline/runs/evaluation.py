"""Accuracies of heads on a test set: exact, or noisy where it is private."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.read import FeatureCache, open_cache
from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import (
  format_rounded_up,
  mu_squared_from_epsilon,
)
from oneshot_dp.linear_dp.dataset import PrivateDataset
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
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.requests import EvalRequest, EvalSet
from oneshot_dp.pipeline.runs.cache_roles import (
  CacheRole,
  check_roles,
  check_same_kind,
)


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


def data_of(cache: FeatureCache, hosts: Hosts = ALONE) -> PrivateDataset:
  """Returns a cache's rows in the form that private sums read."""
  info = cache.info
  shards = hosts.own_shards(info.num_shards, info.has_units)
  return PrivateDataset(
    blocks=lambda: cache.blocks(shards),
    n=cache.n,
    feature_dim=info.feature_dim,
    num_classes=info.num_classes,
    unit=info.unit,
    hosts=hosts,
    name=cache.name,
  )


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
        dataset=info.dataset, charges=(charge,), keys=self.role.keys
      )
    ]

  def score(self, heads: Sequence[LinearHead]) -> Scores:
    """Scores heads; noisy counts must have been charged before.

    Formal guarantees: with a budget, all counts together are (ε, δ)-DP; see
    `private_accuracies`. Without, they are exact.
    """
    info = self.role.cache.info
    facts: dict[str, Any] = {
      "labels": self.role.role,
      "dataset": info.dataset,
      "split": info.split,
      "rows": str(self.role.cache.part),
    }
    if self.budget is None:
      accuracies = evaluate_heads(heads, self.role.cache.blocks())
      facts["num_examples"] = accuracies[0].num_examples
      facts["class_rows"] = accuracies[0].class_rows
      return Scores(accuracies, facts)
    # Of a part, only the mean number of rows is public.
    count_is_private = not self.role.cache.part.is_whole
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
    noise_multiplier = sums.releases[-1].noise_multiplier
    facts["num_examples"] = num_examples
    facts["privacy_unit"] = info.unit
    facts["private"] = self.source.is_private
    facts["epsilon"] = self.budget.epsilon
    facts["delta"] = self.budget.delta
    facts["noise_source"] = self.source.description
    facts["accuracy_sd"] = (
      float(noise_multiplier) * math.sqrt(len(heads)) / num_examples
    )
    return Scores(accuracies, facts)


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
  rows = rows_of(data_of(cache, hosts), per_row=True)
  rows.validate()
  role = CacheRole(cache, "public" if budget is None else "private", flag)
  return EvalRows(role=role, rows=rows, source=source, budget=budget)


def score_head(request: EvalRequest) -> tuple[Scores, Sequence[str]]:
  """Scores one saved head, for `evaluate`.

  Formal guarantees: labels that are private, by --private-eval or because the
  ledger holds their rows, leave as noisy counts that were charged before, or
  not at all.

  Returns:
    The scores of the head, and the names of its classes.

  Raises:
    InputError: another backbone or other classes; rows that the ledger holds as
      private, and no --private-eval; or the charge would exceed the cap.
  """
  saved = read_head(request.head)
  ledger = Ledger(request.ledger)
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
  if eval_rows.budget is None:
    scores = _score_exactly(request, saved, eval_rows, ledger)
  else:
    scores = _score_privately(request, saved, eval_rows, ledger)
  return scores, eval_rows.role.cache.info.class_names


def _score_exactly(
  request: EvalRequest, saved: SavedHead, eval_rows: EvalRows, ledger: Ledger
) -> Scores:
  """Scores on public labels, once it is clear that they are public."""
  if request.delta is not None or request.noise_seed is not None:
    raise InputError("--delta and --noise-seed are for --private-eval only.")
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
  for note in notes:
    print(note, file=sys.stderr)
  return eval_rows.score([saved.trained.head])


def _score_privately(
  request: EvalRequest, saved: SavedHead, eval_rows: EvalRows, ledger: Ledger
) -> Scores:
  """Charges the test set, and only then scores by noisy counts."""
  budget = eval_rows.budget
  assert budget is not None
  # All that makes it this evaluation and no other: one that was charged and
  # stopped before its answer was noted is not charged again.
  identity = {
    "head": saved.stated["weights_sha256"],
    "rows": eval_rows.role.cache.private_digest,
    "budget": [budget.epsilon, budget.delta],
    "noise_seed": request.noise_seed,
  }
  place = request.head.resolve() / "evaluation"
  charge_ids = ledger.charge(eval_rows.charge_requests(), place, identity)
  scores = eval_rows.score([saved.trained.head])
  # Noted before anybody sees it: the charge pays for one answer.
  ledger.deliver(charge_ids, {})
  return scores
