"""`oneshot-dp budget`."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated, Any

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.answer import Answer
from oneshot_dp.pipeline.commands import flags as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """What was spent of each private data set, what is left, and its cap.

  A cap keeps all releases together (max-epsilon, max-delta)-private, however
  each was chosen by those before it, if it is set before the first: what would
  go over is refused before any noise is drawn.

  Example: oneshot-dp budget --cache caches/train --max-epsilon 8 --max-delta
  1e-5
  """

  cache: Annotated[
    str | None, f.flag("Of its data set only; else of all.", "CACHE")
  ] = None
  max_epsilon: Annotated[
    float | None, f.flag("Set a cap: epsilon of everything.", "E")
  ] = None
  max_delta: Annotated[
    float | None, f.flag("The delta at which it holds.", "D")
  ] = None
  ledger: f.LedgerFile = None


def run(flags: Flags) -> Answer:
  """Sets a cap, if one is given, and reads the ledger."""
  from oneshot_dp.pipeline.ledger import Cap, Ledger

  ledger, dataset = Ledger(flags.ledger), None
  if flags.cache is not None:
    from oneshot_dp.extract.cache.read import open_cache

    dataset = open_cache(flags.cache).info.dataset
  epsilon, delta = flags.max_epsilon, flags.max_delta
  if epsilon is not None or delta is not None:
    if dataset is None or epsilon is None or delta is None:
      raise InputError(
        "a cap is of one data set and has two numbers: give --cache,"
        " --max-epsilon and --max-delta."
      )
    for warning in ledger.set_cap(dataset, Cap(epsilon, delta)):
      print(f"warning: {warning}", file=sys.stderr)
  entries = ledger.entries(dataset)
  names = dict.fromkeys(each.dataset for each in entries)
  facts = [_facts(n, [e for e in entries if e.dataset == n]) for n in names]
  lines = [f"ledger: {ledger.path}{'' if ledger.exists else ', not there yet'}"]
  for each in facts:
    lines += ["", f"{each['dataset']}:", *_lines(each)]
  if not facts:
    lines.append("nothing was charged, and there is no cap")
  told = {"ledger": ledger.path, "datasets": facts}
  return Answer(text="\n".join(lines), facts=told)


def _facts(dataset: str, entries: Sequence[Any]) -> dict[str, Any]:
  """What a data set was charged, and what is left; nothing private."""
  from oneshot_dp.pipeline import charges as of

  charges = [each for each in entries if isinstance(each, of.ChargeEntry)]
  cap, mu2 = of.cap_of(entries), of.spent(charges)
  deltas = [c.delta for c in charges if c.delta is not None]
  delta = cap.delta if cap else min(deltas, default=1e-6)
  return {
    "dataset": dataset,
    "entries": [
      {
        "time": each.time,
        "what": each.what,
        "mu_squared": None if each.mu2 is None else float(of.cost(each)),
        "unit": each.unit,
        "charge": each.id,
      }
      if isinstance(each, of.ChargeEntry)
      else {"time": each.time, "cap": of.Cap(each.epsilon, each.delta)}
      for each in entries
    ],
    "spent": {
      "epsilon": of.epsilon_spent(mu2, delta),
      "epsilon_if_replaced": of.epsilon_spent(4 * mu2, delta),
      "delta": delta,
      "mu_squared": float(mu2),
      "not_private": sum(each.mu2 is None for each in charges),
    },
    "cap": cap,
    "left": None if cap is None else of.epsilon_left(cap.mu2 - mu2, delta),
  }


def _lines(facts: dict[str, Any]) -> list[str]:
  from oneshot_dp.linear_dp.accounting import printable
  from oneshot_dp.pipeline.charges import in_words

  lines, spent, cap = [], facts["spent"], facts["cap"]
  for each in facts["entries"]:
    what = each.get("what") or f"cap set to {each['cap']}"
    if "charge" in each:
      what += f" per {each['unit']}; charge {each['charge'][:12]}"
      what += "; NOT PRIVATE" if each["mu_squared"] is None else ""
    lines.append(f"  {each['time']}  {what}")
  epsilon, replaced, delta = map(
    printable, (spent["epsilon"], spent["epsilon_if_replaced"], spent["delta"])
  )
  lines.append(
    f"  spent, all together: epsilon {epsilon} at delta {delta}; {replaced} if"
    " a unit is replaced by another"
  )
  if spent["not_private"]:
    lines.append(
      f"  besides, {spent['not_private']} charges are NOT PRIVATE: no epsilon"
      " covers them"
    )
  if cap is None:
    return [*lines, "  no cap: set one with --max-epsilon and --max-delta"]
  return [*lines, f"  cap: {cap}; {in_words(facts['left'], cap.delta)}"]
