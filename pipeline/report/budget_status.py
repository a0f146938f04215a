"""What is spent of a data set's budget, and what is left, for the page."""

import dataclasses
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.linear_dp.accounting.events import LEAST_DELTA
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.ledger.cap import Cap, cap_of
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import spending_of

_MOST_ENTRIES = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """A line of the ledger.

  Attributes:
    day: when, of the UTC calendar.
    what: what was let out.
    cost: ε at δ, or that none covers it.
    is_private: whether an ε covers it.
    is_of_this_run: whether it paid for the run.
  """

  day: str
  what: str
  cost: str
  is_private: bool
  is_of_this_run: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetStatus:
  """A ledger, read.

  Attributes:
    path: of the ledger.
    dataset: whose.
    spent: ε of all private releases together, at delta.
    delta: the run's, so that its ε can be held against what is spent.
    relation: the run's.
    cap: what it may come to.
    under_cap: ε of all private releases together, as the cap counts it: at its
      delta, in its relation.
    left: ε of one more release under the cap, at its delta.
    not_private: entries that no ε covers.
    charges: entries, caps aside.
    entries: the latest, newest first.
    has_this_run: whether the entries that paid for the run are there.
  """

  path: Path
  dataset: str
  spent: float
  delta: float
  relation: NeighboringRelation
  cap: Cap | None
  under_cap: float | None
  left: float | None
  not_private: int
  charges: int
  entries: tuple[Entry, ...]
  has_this_run: bool

  @property
  def earlier(self) -> int:
    """Entries that are not among the latest."""
    return self.charges - len(self.entries)


def budget_status(
  ledger_dir: Path,
  dataset: str,
  *,
  paid: frozenset[str],
  delta: float,
  relation: NeighboringRelation,
) -> BudgetStatus | str:
  """Reads a ledger; or says why it cannot, in words.

  Args:
    ledger_dir: where ledgers are.
    dataset: the name that its ledger goes by.
    paid: names of the entries that paid for the run.
    delta: δ of the run.
    relation: of the run.
  """
  ledger = Ledger(dataset, ledger_dir)
  try:
    entries = ledger.entries()
    if not entries:
      return f"there is no ledger of {dataset!r} in {ledger_dir}"
    return _status(ledger, entries, paid, delta, relation)
  except (InputError, RunError) as error:
    return str(error)


def _status(
  ledger: Ledger,
  entries: list[dict[str, Any]],
  paid: frozenset[str],
  delta: float,
  relation: NeighboringRelation,
) -> BudgetStatus:
  cap = cap_of(entries)
  spent = spending_of(entries, relation)
  if spent.has_samples:
    delta = max(delta, LEAST_DELTA)
  under_cap = left = None
  if cap is not None:
    its, relation_of_cap = cap.max_delta, cap.neighboring_relation
    under_cap = spending_of(entries, relation_of_cap).epsilon(its)
    left = cap.left(entries, its, relation_of_cap)
  charges = [entry for entry in entries if entry.get("kind") != "cap"]
  return BudgetStatus(
    path=ledger.path,
    dataset=ledger.dataset,
    spent=spent.epsilon(delta),
    delta=delta,
    relation=relation,
    cap=cap,
    under_cap=under_cap,
    left=left,
    not_private=spent.not_private,
    charges=spent.charges,
    entries=tuple(
      _entry(entry, paid) for entry in reversed(charges[-_MOST_ENTRIES:])
    ),
    has_this_run=paid <= {entry["entry"] for entry in entries},
  )


def _entry(entry: dict[str, Any], paid: frozenset[str]) -> Entry:
  kind, is_private = entry.get("kind", "release"), bool(entry.get("private"))
  what = kind + (f" of split {entry['split']}" if "split" in entry else "")
  if "epsilons" in entry:
    epsilons = ", ".join(printable(each) for each in sorted(entry["epsilons"]))
    draws = entry["num_draws"]
    what += f": ε {epsilons}" + (f", {draws} draws each" if draws > 1 else "")
  cost = NOT_PRIVATE
  if is_private:
    cost = f"ε = {printable(entry['composed_epsilon'])} at δ ="
    cost += f" {printable(entry['delta'])}"
  return Entry(
    day=str(entry["time"])[:10],
    what=what,
    cost=cost,
    is_private=is_private,
    is_of_this_run=entry["entry"] in paid,
  )
