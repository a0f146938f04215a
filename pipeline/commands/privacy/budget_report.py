"""What `oneshot-dp budget` says: what was released, and what is left."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.extract.cache.reader import open_cache
from oneshot_dp.linear_dp.accounting.events import CHANGED_UNITS, LEAST_DELTA
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.pipeline.ledger.cap import Cap, cap_of, caps, left_in_words
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import Spending, spending_of
from oneshot_dp.pipeline.shell.answer import Answer

_SHORT = 12
"""Digits of a SHA-256 that a person reads."""
_KEPT = {"private_digest", "keys_digest", "row_keys", "nonce"}
"""What stays in the ledger: a digest or keys of private rows tell whoever holds
a candidate that it is the one, and the nonce hides them in names of entries."""
_NO_LEDGER = (
  ": there is no such ledger yet; what another folder's ledgers (--ledger-dir)"
  " were charged is not known here"
)


def budget_report(
  cache: Path, delta: float | None, ledger_dir: Path | None
) -> Answer:
  """The entries, what they add up to, and what the cap leaves."""
  if delta is not None and not 0 < delta < 1:
    raise InputError(f"delta={delta} must lie between 0 and 1.")
  # Without what trains: to ask is not to wait for JAX.
  ledger = Ledger(open_cache(cache).info.dataset, ledger_dir)
  entries = ledger.entries()
  earlier = caps(entries)
  cap = cap_of(entries)
  lines = [f"ledger: {ledger.path}", *_lines(entries)]
  facts: dict[str, Any] = {
    "ledger": ledger.path,
    "entries": [
      {name: told for name, told in entry.items() if name not in _KEPT}
      for entry in entries
    ],
    "cap": cap,
  }
  lines.append(f"cap: {cap or 'none; see `oneshot-dp budget set --help`'}")
  if len(earlier) == len(entries):
    no_ledger = "" if entries else _NO_LEDGER
    lines.append(f"nothing has been released{no_ledger}")
  else:
    delta = _delta_of_total(entries, cap) if delta is None else delta
    spent = spending_of(entries, NeighboringRelation.REPLACE_ONE)
    totals = {r: dataclasses.replace(spent, relation=r) for r in CHANGED_UNITS}
    lines += _totals(totals, delta)
    if not cap:
      lines.append(
        "(an odometer only reads: the least cap that would have let all of this"
        " out, and a guarantee only if such a cap was set before any of it)"
      )
    facts["odometer"] = {
      "delta": delta,
      "epsilon": {r.name: s.epsilon(delta) for r, s in totals.items()},
      "not_private": totals[NeighboringRelation.REPLACE_ONE].not_private,
    }
  if cap:
    in_words, facts["left"] = left_under(cap, entries)
    lines.append(f"under the cap, {in_words}")
  return Answer(text="\n".join(lines), facts=facts)


def left_under(
  cap: Cap, entries: list[dict[str, Any]]
) -> tuple[str, dict[str, Any]]:
  """What a cap leaves, in words and as facts."""
  delta, relation = cap.max_delta, cap.neighboring_relation
  left = cap.left(entries, delta, relation)
  facts = {"epsilon": left, "delta": delta, "neighboring_relation": relation}
  return left_in_words(left, delta, relation), facts


def _delta_of_total(entries: list[dict[str, Any]], cap: Cap | None) -> float:
  if cap:
    return cap.max_delta
  used = (e["delta"] for e in entries if "delta" in e)
  # No smaller one, in case there were random batches.
  return max(min(used, default=1e-6), LEAST_DELTA)


def _totals(
  totals: Mapping[NeighboringRelation, Spending], delta: float
) -> list[str]:
  lines = []
  for relation, spent in totals.items():
    lines.append(
      f"odometer: epsilon = {printable(spent.epsilon(delta))} at delta ="
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
