"""The `budget` commands: what was released, what is left, and the cap."""

import sys
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation

from configs.errors import InputError
from configs.schema import EXAMPLE_UNIT
from extract.cache_reader import open_cache
from linear_dp.accounting import printable
from linear_dp.plan import NOT_PRIVATE
from linear_dp.sampled_accounting import LEAST_DELTA
from pipeline import budget
from pipeline.cap import Cap, caps
from pipeline.ledger import what_is_left
from pipeline.training import cache_ledger

_SHORT = 12
"""Digits of a SHA-256 that a person reads."""


def show_budget(
  cache: Path, *, delta: float | None, ledger_dir: Path | None
) -> None:
  """Prints the entries, what they add up to, and what the cap leaves.

  Args:
    cache: a cache of the private data.
    delta: δ of the total; None is the cap's, or else the smallest used.
    ledger_dir: None is the default place.

  Raises:
    InputError: there is no such cache or δ, or the ledger was tampered with.
  """
  if delta is not None and not 0 < delta < 1:
    raise InputError(f"delta={delta} must lie between 0 and 1.")
  ledger = cache_ledger(open_cache(cache), ledger_dir)
  entries = ledger.entries()
  earlier = caps(entries)
  cap = earlier[-1] if earlier else None
  lines = _lines(entries)
  lines.append(f"cap: {cap or 'none; see `oneshot-dp budget set --help`'}")
  if len(earlier) == len(entries):
    lines.append(
      "nothing has been released"
      if entries
      else "nothing has been released: there is no such ledger yet"
    )
  else:
    lines += _totals(entries, cap, delta)
  if cap:
    left = what_is_left(cap, entries, cap.max_delta, cap.neighboring_relation)
    lines.append(f"under the cap, {left}")
  print(f"ledger: {ledger.path}", *lines, sep="\n")


def set_cap(cache: Path, cap: Cap, *, ledger_dir: Path | None) -> None:
  """Writes a cap into the ledger and says what it changes.

  Raises:
    InputError: there is no such cache, or the ledger was tampered with.
    RunError: the ledger cannot be written.
  """
  ledger = cache_ledger(open_cache(cache), ledger_dir)
  before = ledger.set_cap(cap)
  entries = ledger.entries()
  spent = budget.compose(entries, cap.neighboring_relation)
  if before and cap.is_looser_than(before):
    _warn(f"THE CAP WAS RAISED, from {before} to {cap}; the ledger keeps both.")
  if spent.not_private:
    _warn(
      f"{spent.not_private} entries let out results that are {NOT_PRIVATE}; no"
      " cap covers those."
    )
  if not cap.allows(entries):
    _warn("more than this is spent already; nothing further will be released.")
  left = what_is_left(cap, entries, cap.max_delta, cap.neighboring_relation)
  print(
    f"cap: {cap}; epsilon {printable(spent.epsilon(cap.max_delta))} is spent,"
    f" {left}"
  )


def _totals(
  entries: list[dict[str, Any]], cap: Cap | None, delta: float | None
) -> list[str]:
  if delta is None and cap:
    delta = cap.max_delta
  if delta is None:
    used = (e["delta"] for e in entries if "delta" in e)
    # No smaller one, in case there were random batches.
    delta = max(min(used, default=1e-6), LEAST_DELTA)
  lines = []
  for relation in (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
  ):
    spent = budget.compose(entries, relation)
    lines.append(
      f"spent in all: epsilon = {printable(spent.epsilon(delta))} at delta ="
      f" {printable(delta)}, {relation.name}"
    )
    if spent.not_private and relation is NeighboringRelation.REPLACE_ONE:
      lines.append(
        f"besides, {spent.not_private} of {spent.charges} entries let out"
        f" results that are {NOT_PRIVATE}: no epsilon covers them"
      )
  return lines


def _lines(entries: list[dict[str, Any]]) -> list[str]:
  """One line for each entry."""
  lines, before = [], None
  for entry in entries:
    words = _in_words(entry)
    if entry.get("kind") == "cap":
      (cap,) = caps([entry])
      raised = before is not None and cap.is_looser_than(before)
      words = f"{'CAP RAISED to' if raised else 'cap set to'} {cap}"
      before = cap
    lines.append(f"{entry['time']}  {words}; entry {entry['entry'][:_SHORT]}")
  return lines


def _in_words(entry: dict[str, Any]) -> str:
  """What an entry let out, and what it cost."""
  words = entry.get("kind", "release")
  if "split" in entry:
    words += f" of split {entry['split']}"
  if "epsilons" in entry:
    epsilons = ", ".join(printable(epsilon) for epsilon in entry["epsilons"])
    words += (
      f": {entry['order']}, {entry['num_draws']} draw(s) of epsilon {epsilons}"
      f" at delta {printable(entry['delta'])}, together"
      f" {printable(entry['composed_epsilon'])}"
      f" ({entry['neighboring_relation']})"
    )
  if (unit := entry.get("privacy_unit", EXAMPLE_UNIT)) != EXAMPLE_UNIT:
    words += f" per {unit}"
  private = "private" if entry.get("private") else NOT_PRIVATE
  words += f"; {private}, noise: {entry.get('noise_source')}"
  if "cache_fingerprint" in entry:
    words += f"; cache {entry['cache_fingerprint'][:_SHORT]}"
  return words


def _warn(warning: str) -> None:
  print(f"warning: {warning}", file=sys.stderr)
