"""Rows that heads are scored on: exactly, or by noisy counts if private."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError
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
from oneshot_dp.pipeline.ledger.entries import ChargeRequest, LedgerEntry
from oneshot_dp.pipeline.requests import EvalSet
from oneshot_dp.pipeline.runs.cache_roles import CacheRole, data_of


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
    if self._count_is_noisy:
      accuracy_sd *= math.sqrt(2)
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
    count_sd = self.budget.mu_squared**-0.5
    # As in `private_accuracies`: half of the budget pays for the number of
    # rows or units, where that is private. So both noises are √2 as large, and
    # both count.
    if self._count_is_noisy:
      count_sd *= 2
    return count_sd / self.role.cache.n

  @property
  def _count_is_noisy(self) -> bool:
    """Whether accuracies are divided by a noisy count of rows or units.

    Its noise is as large as that of the right answers C. To first order C/N
    then varies by σ·√(1 + p²)/n at the accuracy p: by √2·σ/n at the most.
    """
    cache = self.role.cache
    return cache.info.has_units or not cache.part.is_whole

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
