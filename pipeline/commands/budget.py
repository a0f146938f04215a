"""`oneshot-dp budget`."""

import dataclasses
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.parts import Part
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Show what was spent on each private data set, what is left, and its cap.

  A cap keeps all releases together (max-epsilon, max-delta)-private, even where
  each is chosen by looking at those before it. Set it before the first one:
  what would exceed it is refused before any noise is drawn. The rows are
  private from then on: leave those out that heads are to be scored on.

  Example: oneshot-dp budget --cache caches/train --rows '[:80%]'
  --max-epsilon 8 --max-delta 1e-5
  """

  cache: Annotated[
    str | None, f.flag("Show only the data set of this cache.", "CACHE")
  ] = None
  rows: f.Rows = ""
  max_epsilon: Annotated[
    float | None, f.flag("Set a cap: epsilon of all releases.", "E")
  ] = None
  max_delta: Annotated[float | None, f.flag("Delta of the cap.", "D")] = None
  ledger: f.LedgerFile = None


def run(flags: Flags) -> Answer:
  """Sets a cap, if one is given, and reads the ledger."""
  from oneshot_dp.pipeline.ledger.entries import Cap
  from oneshot_dp.pipeline.ledger.ledger import Ledger, open_existing_ledger

  epsilon, delta = flags.max_epsilon, flags.max_delta
  of_ledger = open_existing_ledger if epsilon is None else Ledger
  ledger, cache, dataset = of_ledger(flags.ledger), None, None
  if flags.cache is not None:
    from oneshot_dp.extract.cache.read import open_cache

    cache = open_cache(flags.cache, Part.parse(flags.rows))
    dataset = cache.info.dataset
  if epsilon is not None or delta is not None:
    if cache is None or epsilon is None or delta is None:
      raise InputError(
        "a cap is of one data set and has two numbers: give --cache,"
        " --max-epsilon and --max-delta."
      )
    from oneshot_dp.extract.cache.keys import keys_of

    cap, keys = Cap(epsilon, delta), keys_of(cache)
    for warning in ledger.set_cap(cache.info.dataset, cap, keys):
      print(f"warning: {warning}", file=sys.stderr)
  entries = ledger.entries(dataset)
  lines, facts = [f"ledger: {ledger.path}"], []
  for name in dict.fromkeys(each.dataset for each in entries):
    said, told = _spending([e for e in entries if e.dataset == name])
    lines += ["", f"{name}:", *said]
    facts.append({"dataset": name} | told)
  if not facts:
    lines.append("nothing was charged, and there is no cap")
  told = {"ledger": ledger.path, "datasets": facts}
  return Answer(text="\n".join(lines), facts=told)


def _spending(entries: Sequence[Any]) -> tuple[list[str], dict[str, Any]]:
  """What a data set was charged, and what is left; nothing private."""
  from oneshot_dp.linear_dp.accounting import (
    epsilon_of,
    format_rounded_up,
    sum_mu_squared,
  )
  from oneshot_dp.pipeline.ledger import entries as of

  lines, told, cap, mu2 = [], [], of.cap_of(entries), of.spent(entries)
  for each in entries:
    what = each.description + (f" per {each.unit}; charge {each.id[:12]}")
    if each.kind == "cap":
      what = f"cap set to {of.Cap(each.epsilon, each.delta)}"
    elif each.mu_squared is None:
      what += "; NOT PRIVATE"
    lines.append(f"  {each.time}  {what}")
    cost = None if each.mu_squared is None else float(Fraction(each.mu_squared))
    told.append({"time": each.time, "what": what, "mu_squared": cost})
  deltas = [e.delta for e in entries if e.delta and e.kind == "charge"]
  delta = cap.delta if cap else min(deltas, default=1e-6)
  spent = {
    "epsilon": epsilon_of(sum_mu_squared([mu2]), delta),
    "epsilon_if_replaced": epsilon_of(sum_mu_squared([4 * mu2]), delta),
    "delta": delta,
    "mu_squared": float(mu2),
    "not_private": sum(
      e.kind == "charge" and e.mu_squared is None for e in entries
    ),
  }
  epsilon, replaced, at = map(format_rounded_up, [*spent.values()][:3])
  lines.append(
    f"  spent, all together: epsilon {epsilon} at delta {at}; {replaced} if a"
    " unit is replaced by another"
  )
  if exposed := spent["not_private"]:
    lines.append(f"  {exposed} are NOT PRIVATE: no epsilon covers them")
  left, said = None, "no cap: set one with --max-epsilon and --max-delta"
  if cap:
    left = of.remaining_epsilon(cap, mu2)
    words = of.describe_remaining(cap, mu2)
    said = f"cap: {cap}; {words}"
  lines.append(f"  {said}")
  return lines, {"entries": told, "spent": spent, "cap": cap, "left": left}
