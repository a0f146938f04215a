"""States what a run costs each data set, and what was spent on it with that."""

import dataclasses
from collections.abc import Sequence
from fractions import Fraction

from oneshot_dp.linear_dp import accounting
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.pipeline.ledger.entries import (
  Cap,
  ChargeRequest,
  LedgerEntry,
  cap_of,
  describe_remaining,
  spent,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetCost:
  """The cost of a run for one data set, and the total with it.

  Attributes:
    dataset: the name of the data set.
    epsilon: ε of all charges of the run together, rounded up.
    total_epsilon: ε of all charges of the ledger and the run, rounded up.
    delta: δ at which both are stated.
    cap: the cap of the data set, if it has one.
    remaining: what the cap leaves after the run, in words; "" without a cap.
  """

  dataset: str
  epsilon: float
  total_epsilon: float
  delta: float
  cap: Cap | None
  remaining: str


def costs_of(
  requests: Sequence[ChargeRequest],
  entries: Sequence[LedgerEntry],
  charge_ids: Sequence[str],
  delta: float,
) -> list[DatasetCost]:
  """States what a run costs each data set: the one place that says so.

  Args:
    requests: what the run is charged.
    entries: charges and caps of the ledger, before or after that.
    charge_ids: those of the run that are among them; they count once.
    delta: at which ε is stated.

  Returns:
    One cost for each data set, that of the training rows first.
  """
  costs = []
  for dataset in dict.fromkeys(request.dataset for request in requests):
    # The ledger may have this run already, or not: its own charges are left out
    # there and added here, so that the total is the same before and after.
    own = Fraction(0)
    for request in requests:
      if request.dataset == dataset:
        own += spent(request.charges)
    # Other data sets do not count: their rows are others, as the ledger checks
    # by content.
    of_dataset = [entry for entry in entries if entry.dataset == dataset]
    others = spent(
      [entry for entry in of_dataset if entry.id not in charge_ids]
    )
    cap = cap_of(of_dataset)
    total = others + own
    remaining = ""
    if cap is not None:
      remaining = describe_remaining(cap, total)
    costs.append(
      DatasetCost(
        dataset=dataset,
        epsilon=accounting.epsilon_of(accounting.sum_mu_squared([own]), delta),
        total_epsilon=accounting.epsilon_of(
          accounting.sum_mu_squared([total]), delta
        ),
        delta=delta,
        cap=cap,
        remaining=remaining,
      )
    )
  return costs


def describe_cost(cost: DatasetCost, verb: str) -> str:
  """Says what a run costs a data set, and what was spent on it with that.

  Args:
    cost: of one data set.
    verb: what becomes of it, such as "is charged".
  """
  # Compared as they are shown: two numbers that look the same are said once.
  own = format_rounded_up(cost.epsilon)
  total = format_rounded_up(cost.total_epsilon)
  if own == total:
    return f"{cost.dataset!r} {verb} epsilon {total} in total"
  return f"{cost.dataset!r} {verb} epsilon {own} now, and {total} in total"


def describe_planned_cost(cost: DatasetCost, *, was_charged: bool) -> str:
  """Says what a run would cost a data set, and what its cap leaves then.

  Args:
    cost: of one data set.
    was_charged: whether the run was charged before, and stopped.
  """
  if was_charged:
    line = describe_cost(cost, "was already charged")
    return f"{line}; the stopped run resumes without a new charge"
  line = describe_cost(cost, "would be charged")
  if cost.cap is not None:
    line += f"; cap: {cost.cap}; after it {cost.remaining}"
  return line
