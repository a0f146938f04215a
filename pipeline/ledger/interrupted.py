"""What Ctrl-C leaves behind: whether anything was charged, and is there."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.linear_dp.accounting.events import relation_of
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.spending import PUBLISHED, spending_of


@contextlib.contextmanager
def says_what_was_charged(*ledgers: Ledger, out: Path | None) -> Iterator[None]:
  """Around a run that charges: gives Ctrl-C a message that says so.

  The ledgers themselves are asked, so that it holds wherever the run was when
  it was stopped. An entry that another run wrote meanwhile is told as well.

  `out` is the directory that it makes, whole or not at all, if any.
  """
  different = {ledger.path: ledger for ledger in ledgers}.values()
  before = [_length(ledger.path) for ledger in different]
  try:
    yield
  except KeyboardInterrupt as stop:
    charged = [
      _in_words(ledger.path, new)
      for ledger, length in zip(different, before, strict=True)
      if (new := ledger.entries()[length:])
    ]
    left = str(stop) or _what_is_there(out)
    more = "more " if str(stop) else ""  # what is left was paid for before
    cost = " and ".join(charged) or f"nothing {more}was charged"
    raise KeyboardInterrupt(f"interrupted: {left}; {cost}") from stop


def _length(path: Path) -> int:
  """Entries in a ledger, sound or not: whether it is, others will say."""
  noted = f'"kind":"{PUBLISHED}"'.encode()
  try:
    lines = path.read_bytes().splitlines()
  except OSError:
    return 0
  return sum(noted not in line for line in lines)


def _what_is_there(out: Path | None) -> str:
  if out is None:
    return "no result was shown"
  if out.is_dir() and any(out.iterdir()):
    return f"{out} is finished"
  return f"{out} was not written"


def _in_words(path: Path, entries: Sequence[dict[str, Any]]) -> str:
  """What new entries cost together, at the first one's δ and relation."""
  private = [entry for entry in entries if entry.get("private")]
  costs = []
  if private:
    delta = private[0]["delta"]
    relation = relation_of(private[0]["neighboring_relation"])
    epsilon = spending_of(private, relation).epsilon(delta)
    costs.append(
      f"epsilon {printable(epsilon)} at delta {printable(delta)}"
      f" ({relation.name})"
    )
  if exposed := len(entries) - len(private):
    costs.append(f"{exposed} result(s) {NOT_PRIVATE}")
  return f"{' and '.join(costs)} was charged to {path} and stays charged"
