"""`oneshot-dp budget`."""

import dataclasses
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import LEDGER, CommandFlags, Flag

if TYPE_CHECKING:
  from oneshot_dp.extract.cache.read import FeatureCache
  from oneshot_dp.pipeline.ledger.entries import Cap, LedgerEntry
  from oneshot_dp.pipeline.ledger.ledger import Ledger

_DELTA_WITHOUT_CHARGES = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Show what was spent on each private data set, and set its cap.

  A cap keeps all releases together (max-epsilon, max-delta)-private, even where
  each is chosen by looking at those before it. Set it before the first release:
  later runs that would exceed it are refused before any noise is drawn. The
  first cap makes the rows private, so name with --rows those that you train on,
  and leave out those that heads are to be scored on. To change a cap, give
  --cache without --rows.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp budget",
    "oneshot-dp budget --cache caches/train --rows '[:80%]' --max-epsilon 8"
    " --max-delta 1e-5",
  )

  cache: str | None = Flag(
    form="CACHE",
    help="Show only the data set of this cache (default: all data sets).",
  ).default(None)
  rows: str = Flag(
    form="PART",
    help="The part of the cache that a first cap makes private, such as"
    " '[:80%]' (default: all rows).",
  ).default("")
  max_epsilon: float | None = Flag(
    parse=float,
    form="EPSILON",
    help="Set a cap: the epsilon of all releases together (default: show the"
    " cap that there is).",
  ).default(None)
  max_delta: float | None = Flag(
    parse=float,
    form="DELTA",
    help="Delta of the cap; needed with --max-epsilon.",
  ).default(None)
  ledger: Path | None = LEDGER.default(None)


def run(flags: Flags) -> Answer:
  """Sets a cap, if one is given, and shows the ledger."""
  from oneshot_dp.pipeline.ledger.ledger import Ledger, open_existing_ledger

  # Who only looks must have named a ledger that exists: an empty answer from a
  # mistyped path would read as "nothing was spent".
  if flags.max_epsilon is None:
    ledger = open_existing_ledger(flags.ledger)
  else:
    ledger = Ledger(flags.ledger)  # a cap may be the first entry of a ledger
  cache = None
  dataset = None
  if flags.cache is not None:
    from oneshot_dp.extract.cache.read import open_cache

    cache = open_cache(flags.cache, Part.parse(flags.rows))
    dataset = cache.info.dataset
  if flags.max_epsilon is not None or flags.max_delta is not None:
    _set_cap(flags, ledger, cache)
  return _show(ledger, dataset)


def _set_cap(
  flags: Flags, ledger: "Ledger", cache: "FeatureCache | None"
) -> None:
  """Sets the cap of a cache's data set, and prints warnings about it."""
  from oneshot_dp.extract.cache.keys import keys_of
  from oneshot_dp.pipeline.ledger.entries import Cap, cap_of

  epsilon = flags.max_epsilon
  delta = flags.max_delta
  if cache is None or epsilon is None or delta is None:
    raise InputError(
      "a cap belongs to one data set and has two numbers: give --cache,"
      " --max-epsilon and --max-delta."
    )
  # A cap that is only changed is about the rows that the ledger knows: it does
  # not make others private, such as those that heads are scored on. The first
  # one does, whatever was charged before: rows that were never released are
  # under it as well, and a charge may be of a part alone.
  dataset = cache.info.dataset
  is_first = cap_of(ledger.entries(dataset)) is None
  adds_rows = is_first or bool(flags.rows)
  if cache.part.is_whole and adds_rows:
    # Or else a test part is refused later, and nobody remembers why.
    print(
      f"note: all rows of {flags.cache} are private from now on; to keep a part"
      " of it for tests, name the training part with --rows",
      file=sys.stderr,
    )
  cap = Cap(epsilon, delta)
  warnings = ledger.set_cap(
    dataset, cap, keys_of(cache.blocks()), adds_rows=adds_rows
  )
  for warning in warnings:
    print(f"WARNING: {warning}", file=sys.stderr)


def _show(ledger: "Ledger", dataset: str | None) -> Answer:
  """Shows what was spent on one data set, or on all of them."""
  entries_of: dict[str, list[LedgerEntry]] = {}
  for entry in ledger.entries(dataset):
    entries_of.setdefault(entry.dataset, []).append(entry)
  lines = [f"ledger: {ledger.path}"]
  facts = []
  for name, entries in entries_of.items():
    spending_lines, spending = _describe_spending(entries)
    lines += ["", f"{name}:", *spending_lines]
    facts.append({"dataset": name, **spending})
  if not facts:
    lines.append("nothing was charged, and there is no cap")
  return Answer(
    text="\n".join(lines), facts={"ledger": ledger.path, "datasets": facts}
  )


def _describe_spending(
  entries: "Sequence[LedgerEntry]",
) -> tuple[list[str], dict[str, Any]]:
  """Describes what one data set was charged, and what remains.

  Returns:
    Lines for people, and the same as JSON; nothing in either is private.
  """
  from oneshot_dp.linear_dp.accounting import format_rounded_up
  from oneshot_dp.pipeline.ledger.entries import (
    cap_of,
    describe_remaining,
    remaining_epsilon,
    spent,
  )

  cap = cap_of(entries)
  spent_mu_squared = spent(entries)
  # One line for each charge and cap, oldest first, then what they come to.
  lines = []
  entry_facts = []
  for entry in entries:
    what = _describe_entry(entry)
    lines.append(f"  {entry.time}  {what}")
    cost = (
      None if entry.mu_squared is None else float(Fraction(entry.mu_squared))
    )
    entry_facts.append({"time": entry.time, "what": what, "mu_squared": cost})

  spending = _spending_of(entries, cap, spent_mu_squared)
  lines.append(
    f"  spent, all together: epsilon {format_rounded_up(spending['epsilon'])}"
    f" at delta {format_rounded_up(spending['delta'])};"
    f" {format_rounded_up(spending['epsilon_if_replaced'])} if a unit is"
    " replaced by another"
  )
  if spending["not_private"]:
    lines.append(
      f"  {spending['not_private']} are NOT PRIVATE: no epsilon covers them"
    )
  # A total is a fact about the past. Only a cap bounds what may still be
  # released.
  remaining = None
  if cap is None:
    lines.append("  no cap: set one with --max-epsilon and --max-delta")
  else:
    remaining = remaining_epsilon(cap, spent_mu_squared)
    lines.append(f"  cap: {cap}; {describe_remaining(cap, spent_mu_squared)}")
  facts = {
    "entries": entry_facts,
    "spent": spending,
    "cap": cap,
    "left": remaining,
  }
  return lines, facts


def _describe_entry(entry: "LedgerEntry") -> str:
  from oneshot_dp.pipeline.ledger.entries import Cap

  if entry.kind == "cap":
    return f"cap set to {Cap(entry.epsilon, entry.delta or 0.0)}"
  what = f"{entry.description} per {entry.unit}; charge {entry.id[:12]}"
  if entry.parent_charge_id is not None:
    what += f", the difference to charge {entry.parent_charge_id[:12]}"
  if entry.mu_squared is None:
    what += "; NOT PRIVATE"
  return what


def _spending_of(
  entries: "Sequence[LedgerEntry]", cap: "Cap | None", mu_squared: Fraction
) -> dict[str, Any]:
  """States what μ² comes to, at the δ of the cap or the least that was charged.

  Replacing a unit by another is one removal and one addition, whose μ add up:
  twice μ, or four times μ².
  """
  from oneshot_dp.linear_dp.accounting import epsilon_of, sum_mu_squared

  charges = [entry for entry in entries if entry.kind == "charge"]
  # ε belongs to a δ. With a cap it is the cap's, so that both can be compared;
  # else the smallest that was charged, at which ε is largest.
  if cap is not None:
    delta = cap.delta
  else:
    deltas = [charge.delta for charge in charges if charge.delta]
    delta = min(deltas, default=_DELTA_WITHOUT_CHARGES)
  exposed = [charge for charge in charges if charge.mu_squared is None]
  return {
    "epsilon": epsilon_of(sum_mu_squared([mu_squared]), delta),
    "epsilon_if_replaced": epsilon_of(sum_mu_squared([4 * mu_squared]), delta),
    "delta": delta,
    "mu_squared": float(mu_squared),
    "not_private": len(exposed),
  }
