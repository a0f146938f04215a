"""What has been spent on each private data set, and what may be.

One file per data set, whatever the backbone of the cache (`ledger_file`). A
release is charged, and the charge is on the disk, before its noise is drawn: a
crash costs budget, never privacy. A cap is an entry like the others, so that
raising it leaves a trace.
"""

import datetime
import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dp_accounting import NeighboringRelation

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import BASELINE_NOISE, NOT_PRIVATE
from oneshot_dp.pipeline.ledger import spending as budget
from oneshot_dp.pipeline.ledger.cap import Cap, caps
from oneshot_dp.pipeline.ledger.chained_file import ChainedFile, canonical
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.spending import Spending


def default_ledger_dir() -> Path:
  """$ONESHOT_DP_LEDGER_DIR, or a folder in the user's state folder."""
  if chosen := os.environ.get("ONESHOT_DP_LEDGER_DIR"):
    return Path(chosen)
  state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
  return Path(state) / "oneshot-dp" / "ledgers"


class Ledger:
  """The ledger of one private data set, all of its versions and splits.

  It is found by the name of the data set, which every cache carries,
  whatever its backbone. The fingerprint in receipts could not tell two names of
  the same rows from two data sets (made of the rows, it would tell whoever
  holds a candidate that it is the one); a digest of the cache's shards can, and
  stays in the ledger: rows that another ledger of the folder was charged for
  are refused. The same images through another backbone, under another name,
  are not found.

  Splits share it because what is called a split may overlap another one, or be
  another one under a new name; the price is that releases from disjoint splits
  are added up where they need not be.

  Formal guarantees: a charge returns only after its line is flushed to disk,
  and raises without a trace where it would break the cap: the check and the
  charge are made under one lock, so that processes that race for the last of a
  budget get it once. With a cap, what no ε covers (baselines, noise from a
  seed) is refused as well. Tampering is found at the next use
  (`ledger_file.ChainedFile`).

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
    self._file = ChainedFile(directory / f"{name}-{digest}.jsonl", identity)

  @property
  def path(self) -> Path:
    """The file of entries."""
    return self._file.path

  def entries(self) -> list[dict[str, Any]]:
    """All charges and caps, oldest first, after checking the chain.

    Raises:
      InputError: the file was damaged or tampered with.
      RunError: it cannot be read.
    """
    return self._file.entries()

  def charge(self, charge: Charge) -> str:
    """Writes a cost to disk; see `charge_all`."""
    (entry,) = self.charge_all(charge)
    return entry

  def charge_all(self, *charges: Charge) -> list[str]:
    """Writes costs to disk, or none; call it before drawing any noise.

    Args:
      *charges: what is about to be released.

    Returns:
      The SHA-256 of each entry, its name in receipts.

    Raises:
      InputError: the ledger is damaged, or all of it would break the cap.
      RunError: the ledger cannot be written, so nothing may be released.
    """
    for charge in charges:
      self._check_name(charge)
    with self._file.locked() as chain:
      self._check(chain.entries, charges)
      return [chain.append(_now() | charge.as_json()) for charge in charges]

  def record_baseline(self, **details: Any) -> str:
    """Notes, before it happens, that the exact gradient leaves: NOT PRIVATE.

    Args:
      **details: public facts to keep with the entry.

    Returns:
      The SHA-256 of the entry.

    Raises:
      InputError: the data set has a cap.
    """
    with self._file.locked() as chain:
      self._check_no_cap(chain.entries, "a baseline")
      return chain.append(
        _now()
        | {
          "kind": "baseline",
          "private": False,
          "noise_source": BASELINE_NOISE,
          **details,
        }
      )

  def set_cap(self, cap: Cap) -> Cap | None:
    """Sets the cap from now on; the list of entries keeps the earlier ones.

    Returns:
      The cap that held until now.
    """
    with self._file.locked() as chain:
      earlier = caps(chain.entries)
      chain.append(_now() | cap.as_json())
    return earlier[-1] if earlier else None

  def check(self, *charges: Charge, baseline: bool = False) -> None:
    """Finds what `charge` would refuse later, before any work.

    Args:
      *charges: what is wanted, all of it together.
      baseline: whether `record_baseline` will be called too.

    Raises:
      InputError: the ledger was tampered with, or this would break the cap.
      RunError: it cannot be written.
    """
    for charge in charges:
      self._check_name(charge)
    with self._file.locked() as chain:
      self._check(chain.entries, charges)
      if baseline:
        self._check_no_cap(chain.entries, "a baseline")

  def spending(self, relation: NeighboringRelation) -> Spending:
    """Composes the charges in a neighbouring relation, exactly."""
    return budget.compose(self.entries(), relation)

  def _check_name(self, charge: Charge) -> None:
    """Refuses rows that another ledger of the folder was charged for.

    Raises:
      InputError: names the other data set.
    """
    rows = charge.facts.get("private_digest")
    for other in sorted(self.path.parent.glob("*.jsonl")):
      if rows is None or other == self.path or rows not in _text_of(other):
        continue
      raise InputError(
        f"the rows of this cache, which calls them {self.dataset!r}, were"
        f" charged to {other.name} before: use the cache of that name, so that"
        " what is spent on them adds up."
      )

  def _check(
    self, entries: Sequence[dict[str, Any]], charges: Sequence[Charge]
  ) -> None:
    """Whether all of the charges may be added."""
    for charge in charges:
      _check_unit(entries, charge.privacy_unit)
      if not charge.source.is_private:
        self._check_no_cap(entries, "noise from a seed")
    if not (earlier := caps(entries)):
      return
    cap = earlier[-1]
    if cap.allows(entries, [m for c in charges for m in c.mechanisms]):
      return
    spent = budget.compose(entries, cap.neighboring_relation)
    last = charges[-1]
    left = what_is_left(cap, entries, last.delta, last.neighboring_relation)
    raise InputError(
      f"{' and '.join(charge.asked for charge in charges)} would break the cap"
      f" of {self.dataset!r}, {cap}: epsilon"
      f" {printable(spent.epsilon(cap.max_delta))} is spent, and {left}; ask"
      " for less, or raise the cap for all to see with `oneshot-dp budget set`."
    )

  def _check_no_cap(self, entries: Sequence[dict[str, Any]], what: str) -> None:
    if earlier := caps(entries):
      raise InputError(
        f"{what} is {NOT_PRIVATE}, and the cap of {self.dataset!r},"
        f" {earlier[-1]}, covers no such thing; leave it out, or use a data set"
        " without a cap."
      )


def charge_aloud(ledger: Ledger, *charges: Charge) -> list[str]:
  """Charges, and says on stderr where; a new ledger is worth a second look."""
  is_new = not ledger.entries()
  entries = ledger.charge_all(*charges)
  print(f"charged to {ledger.path}", file=sys.stderr)
  if is_new:
    print(
      f"warning: this is a new ledger: what was released of {ledger.dataset!r}"
      " before is not in it.",
      file=sys.stderr,
    )
  return entries


def _text_of(path: Path) -> str:
  try:
    return path.read_text()
  except OSError as error:
    raise RunError(
      f"The ledger {path} cannot be read ({error.strerror}), so it is unknown"
      " if it was charged for the same rows."
    ) from error


def _check_unit(entries: Sequence[dict[str, Any]], privacy_unit: str) -> None:
  """Costs add up per unit only: a user may have any number of examples."""
  units = {
    entry.get("privacy_unit", EXAMPLE_UNIT)
    for entry in entries
    if "mechanisms" in entry
  }
  if other := units - {privacy_unit}:
    raise InputError(
      f"a release per {privacy_unit} cannot be added to those per"
      f" {min(other)} that the ledger of this data set holds; train from a"
      f" cache whose privacy unit is {min(other)!r}."
    )


def what_is_left(
  cap: Cap,
  entries: Sequence[dict[str, Any]],
  delta: float,
  relation: NeighboringRelation,
) -> str:
  """The largest release that a cap still allows, in words."""
  epsilon = cap.left(entries, delta, relation)
  if epsilon == 0:
    return "nothing is left"
  return (
    f"one release of epsilon {epsilon:g} at delta {printable(delta)}"
    f" ({relation.name}) is left"
  )


def _now() -> dict[str, Any]:
  now = datetime.datetime.now(datetime.UTC)
  return {"time": now.isoformat(timespec="seconds")}
