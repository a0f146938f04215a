"""What has been spent on each private data set, and what may be.

One file per data set, whatever the backbone of the cache. A
release is charged, and the charge is on the disk, before its noise is drawn: a
crash costs budget, never privacy. A cap is an entry like the others, so that
raising it leaves a trace.
"""

import contextlib
import datetime
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.extract.storage.durable_files import check_on_disk
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.accounting.vocabulary import NeighboringRelation
from oneshot_dp.pipeline.ledger.cap import Cap, cap_of, left_in_words
from oneshot_dp.pipeline.ledger.chained_file import (
  ChainedFile,
  LockedChain,
  canonical,
)
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.folder import (
  check_in_one_ledger,
  default_ledger_dir,
)
from oneshot_dp.pipeline.ledger.locks import exclusive
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch
from oneshot_dp.pipeline.ledger.spending import (
  BASELINE,
  CAP,
  PUBLISHED,
  Spending,
  spending_of,
)


class Published(NamedTuple):
  """The bytes of a head that left, and the name of the charge that paid."""

  entry: str
  head_sha256: str
  receipt_sha256: str


class Ledger:
  """The ledger of one private data set, all of its versions and splits.

  It is found by the name of the data set, and holds its rows by what is in them
  (`RowSketch`): rows that another ledger of the folder was charged for are
  refused, be it one row, whatever they are called and whichever backbone they
  came through. So what was spent on a row is in one ledger. (The fingerprint in
  receipts could not tell: made of the rows, it would tell whoever holds a
  candidate that it is the one.) Splits share it, as one may overlap another, or
  be it under a new name.

  Formal guarantees: a charge returns only after its line is flushed to disk,
  and raises without a trace where it would break the cap: the check and the
  charge are made under one lock of the folder, so that processes that race for
  the last of a budget get it once, under whatever names. With a cap, what no ε
  covers (baselines, noise from a seed) is refused as well. Tampering is found
  at the next use (`ChainedFile`).

  Args:
    dataset: public name of the data set.
    directory: where ledgers are kept; None is `default_ledger_dir()`.
  """

  def __init__(self, dataset: str, directory: Path | None = None):
    self.dataset = dataset
    identity = {"dataset": dataset}
    name = re.sub(r"[^A-Za-z0-9]+", "_", dataset).strip("_")
    digest = hashlib.sha256(canonical(identity)).hexdigest()[:12]
    directory = directory or default_ledger_dir()
    check_on_disk(directory)
    self.path = directory / f"{name}-{digest}.jsonl"
    self._file = ChainedFile(self.path, identity)

  def entries(self) -> list[dict[str, Any]]:
    """All charges and caps, oldest first; see `ChainedFile.entries`."""
    return _costs(self._file.entries())

  def publish(self, *heads: Published) -> None:
    """Notes which bytes leave, in one line, for `verify`; it costs nothing.

    To be called when files are written and before they are shown: a record
    whose heads left gives no other heads for the same charge.
    """
    facts = {"kind": PUBLISHED, "heads": [head._asdict() for head in heads]}
    with self._file.locked() as chain:
      _write(chain, facts)

  def published(self, entry: str) -> list[Published]:
    """The heads that left for a charge, as far as it was noted."""
    return [head for head in self._heads() if head.entry == entry]

  def check_not_published(self, start: Path, sha256: str) -> None:
    """Raises an InputError if a file of weights left for one of its charges."""
    if any(head.head_sha256 == sha256 for head in self._heads()):
      raise InputError(
        f"{start} has the weights of a head of the private data set"
        f" {self.dataset!r}, as {self.path} knows: what a head that starts from"
        " it costs would not be in its receipt; start from public data."
      )

  def _heads(self) -> list[Published]:
    return [
      Published(**head)
      for line in self._file.entries()
      if line.get("kind") == PUBLISHED
      for head in line["heads"]
    ]

  def charge(self, *charges: Charge) -> list[str]:
    """Writes costs to disk; call it before drawing any noise.

    All or none: those before one that the disk refuses are taken back, and if
    that fails, too, the error says how many stay.

    Returns:
      The SHA-256 of each entry, its name in receipts.

    Raises:
      InputError: the ledger is damaged, or all of it would break the cap.
      RunError: the ledger cannot be written, so nothing may be released.
    """
    written: list[str] = []
    try:
      with self._checked(charges) as chain:
        try:
          for charge in charges:
            facts = charge.as_json()
            if charge.rows is not None:
              known = RowSketch.of_entries(chain.entries)
              facts |= charge.rows.facts_beyond(known)
            written.append(_write(chain, facts))
        except OSError:
          with contextlib.suppress(OSError):
            while written:
              chain.take_back()
              written.pop()
          raise
    except RunError as error:
      if not written:
        raise
      raise RunError(
        f"{error} {len(written)} of {len(charges)} charges were on the disk"
        " before that, and stay."
      ) from error
    return written

  def check(self, *charges: Charge, at_once: bool = True) -> None:
    """Finds what `charge` would refuse later, before any work."""
    with self._checked(charges, at_once=at_once) as chain:
      chain.check_writable()

  def set_cap(self, cap: Cap) -> Cap | None:
    """Sets the cap from now on, in a new entry; returns what held until now."""
    with self._file.locked() as chain:
      earlier = cap_of(chain.entries)
      _write(chain, cap.as_json())
    return earlier

  def spending(self, relation: NeighboringRelation) -> Spending:
    """Composes the charges in a neighbouring relation, exactly."""
    return spending_of(self.entries(), relation)

  @contextlib.contextmanager
  def _checked(
    self, charges: Sequence[Charge], *, at_once: bool = True
  ) -> Iterator[LockedChain]:
    """The locked ledger, to which all of the charges may be added."""
    # Whoever charges for rows has compared them with every other ledger, and
    # nobody may charge them there meanwhile.
    with exclusive(self.path.with_name(".lock")), self._file.locked() as chain:
      check_in_one_ledger(self.path, self.dataset, charges)
      self._check(_costs(chain.entries), charges, at_once=at_once)
      yield chain

  def _check(
    self,
    entries: Sequence[dict[str, Any]],
    charges: Sequence[Charge],
    *,
    at_once: bool,
  ) -> None:
    cap = cap_of(entries)
    for charge in charges:
      if charge.kind != BASELINE:
        _check_unit(entries, charge.privacy_unit)
      if cap and not charge.is_private:
        what = charge.asked if charge.kind == BASELINE else "noise from a seed"
        raise InputError(
          f"{what} is {NOT_PRIVATE}, and the cap of {self.dataset!r}, {cap},"
          " covers no such thing; leave it out, or use a data set without a"
          " cap."
        )
    events = [each.event for each in charges]
    if cap is None or cap.allows(entries, *events, at_once=at_once):
      return
    last = charges[-1]  # with a cap none is a baseline
    assert last.delta is not None
    assert last.neighboring_relation is not None
    asked = last.delta, last.neighboring_relation
    left = left_in_words(cap.left(entries, *asked), *asked)
    left += cap.why_samples_cost_more(entries, *events)
    raise InputError(
      f"{' and '.join(charge.asked for charge in charges)} would break the cap"
      f" of {self.dataset!r}, {cap}: epsilon {printable(cap.spent(entries))} is"
      f" spent, and {left}; ask for less, or raise the cap for all to see with"
      " `oneshot-dp budget set`."
    )


def _costs(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
  """The entries that say what was spent, or may be."""
  return [entry for entry in entries if entry.get("kind") != PUBLISHED]


def _write(chain: LockedChain, facts: dict[str, Any]) -> str:
  """Adds a line: every entry of a ledger is written here."""
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
  return chain.append({"time": now, **facts})


def charge_aloud(ledger: Ledger, *charges: Charge) -> list[str]:
  """Charges, and says on stderr where; a new ledger is worth a second look."""
  is_new = not _is_begun(ledger.path)
  usual = default_ledger_dir() / ledger.path.name
  if is_new and _is_begun(usual):
    print(
      f"warning: {usual} is of {ledger.dataset!r}, too: what it was charged"
      f" for, and its cap, do not count in {ledger.path.parent}; is"
      " --ledger-dir right?",
      file=sys.stderr,
    )
  entries = ledger.charge(*charges)
  print(f"charged to {ledger.path}", file=sys.stderr)
  if is_new:
    print(
      f"its first charge: what was released of {ledger.dataset!r} before, if"
      " anything, is not counted",
      file=sys.stderr,
    )
  return entries


def _is_begun(path: Path) -> bool:
  return path.exists() and path.stat().st_size > 0


def _check_unit(entries: Sequence[dict[str, Any]], privacy_unit: str) -> None:
  """Costs add up per unit only: a user may have any number of examples."""
  units = {
    entry.get("privacy_unit", EXAMPLE_UNIT)
    for entry in entries
    if entry.get("kind") not in (BASELINE, CAP)
  }
  if other := units - {privacy_unit}:
    raise InputError(
      f"a release per {privacy_unit} cannot be added to those per"
      f" {min(other)} that the ledger of this data set holds: what is protected"
      f" is settled by the first charge, for good. Rows never charged, under"
      f" another name, are free; these cost by the {min(other)}."
    )
