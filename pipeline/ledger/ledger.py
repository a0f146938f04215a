"""Records what was spent on each private data set, and its cap, in one file.

A charge is on the disk before its noise is drawn. The cap, and whether the rows
belong to another data set, are checked in the transaction that writes it.
"""

import contextlib
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.files import check_creatable
from oneshot_dp.extract.storage import is_url
from oneshot_dp.pipeline.ledger.charge_checks import (
  KnownKeys,
  check_requests,
  check_same_run,
  shared_with_datasets,
)
from oneshot_dp.pipeline.ledger.entries import (
  Cap,
  ChargeRequest,
  Keys,
  LedgerEntry,
  ReleasedHead,
  cap_of,
  digest_of_rows,
  spent,
)
from oneshot_dp.pipeline.ledger.store import (
  Transaction,
  default_ledger,
  ledger_exists,
  transaction,
)

_WAIT_SECONDS = 60.0


class Ledger:
  """The charges and caps of all data sets of its user.

  Rows are known by their content: a charge for rows that another data set of
  the file was charged for is refused, be it one row, whichever backbone they
  came through. So everything that was spent on a row is under one name.

  *Formal guarantees*: a charge returns only after it is on the disk, and raises
  without a trace where it would break the cap. A cap is a filter: set before
  the first release, it makes all that is released (ε, δ)-DP together, however
  each release was chosen by those before it.

  All methods raise InputError for a file that is damaged or not a ledger, and
  RunError where the disk refuses or another process holds it for too long.

  Source: Smith & Thakurta, "Fully Adaptive Composition for Gaussian
  Differential Privacy" (2022).

  Attributes:
    path: its file; a file that does not exist is made by the first charge.
  """

  def __init__(self, path: Path | None = None, wait: float = _WAIT_SECONDS):
    """Names a ledger; nothing is opened.

    Args:
      path: its file; None is `default_ledger()`.
      wait: seconds to wait for another process that writes.
    """
    self.path = default_ledger() if path is None else path
    self._wait = wait
    if is_url(str(self.path)):
      raise InputError(
        f"{self.path} is not a place on a disk: a ledger needs a file system's"
        " locks, which buckets do not have; choose a file on a disk."
      )

  def entries(self, dataset: str | None = None) -> list[LedgerEntry]:
    """Charges and caps, oldest first, of one data set or of all."""
    with self._read() as ledger:
      return [
        entry
        for entry in ledger.entries
        if entry.kind in ("charge", "cap") and dataset in (None, entry.dataset)
      ]

  def heads(self) -> dict[str, ReleasedHead]:
    """All heads that were released, by the SHA-256 of their weights."""
    heads = {}
    with self._read() as ledger:
      for entry in ledger.select("left"):
        heads.update(entry.heads)
    return heads

  def paid(self, charge_id: str | None) -> list[LedgerEntry]:
    """A charge, and those of the heads that its head continues from."""
    charges = {entry.id: entry for entry in self.entries()}
    chain = []
    # Each charge names an earlier one, so that this ends.
    while charge_id in charges:
      charge = charges.pop(charge_id)
      chain.append(charge)
      charge_id = charge.parent_charge_id
    return chain

  def shared(self, keys: Keys) -> dict[str, KnownKeys]:
    """Counts how many of these rows, and units, each data set was charged for.

    Counts are lower bounds, see `Keys`, and for the holder of the rows alone. A
    unit's number means something only within one data set.
    """
    with self._read() as ledger:
      return shared_with_datasets(ledger, keys)

  def set_cap(
    self,
    dataset: str,
    cap: Cap,
    keys: Keys | None = None,
    *,
    adds_rows: bool = True,
  ) -> list[str]:
    """Sets the cap of a data set from now on.

    Args:
      dataset: whose releases are to keep it.
      cap: (ε, δ) of all releases together.
      keys: rows that are checked to be no other data set's.
      adds_rows: whether these rows are its own from then on: they are private,
        and refused under any other name.

    Returns:
      Warnings: whether the cap is a proven guarantee for what was released.

    Raises:
      InputError: the cap is not a privacy guarantee, or the rows are another
        data set's.
    """
    # Computed here, so that a cap that is not a guarantee is refused before the
    # ledger is opened.
    limit = cap.mu_squared
    rows = ChargeRequest(dataset=dataset, charges=(), keys=keys or {})
    with self._write("no cap was set") as ledger:
      check_requests(ledger, [rows])
      if adds_rows:
        _add_new_keys(ledger, rows)
      charges = ledger.select("charge", dataset)
      old_cap = cap_of(ledger.select("cap", dataset))
      ledger.add(
        LedgerEntry(
          kind="cap", dataset=dataset, epsilon=cap.epsilon, delta=cap.delta
        )
      )
    # A cap is a filter: it proves something only about releases that were
    # chosen after it was set. The user is warned now of what it does not prove.
    warnings = []
    unproven = "what was seen before may have led to it: no proven guarantee."
    if old_cap and (limit > old_cap.mu_squared or cap.delta > old_cap.delta):
      warnings.append(
        f"THE CAP WAS RAISED, from {old_cap} to {cap}; {unproven}"
      )
    elif not old_cap and charges:
      warnings.append(f"the cap was set after the first release; {unproven}")
    num_exposed = sum(charge.mu_squared is None for charge in charges)
    if num_exposed:
      warnings.append(
        f"{num_exposed} charges are NOT PRIVATE: no cap covers them."
      )
    if spent(charges) > limit:
      warnings.append("more than this is spent already: all else is refused.")
    return warnings

  def preview(
    self,
    requests: Sequence[ChargeRequest],
    run: Path,
    identity: Mapping[str, Any],
    heads: Mapping[str, ReleasedHead] | None = None,
  ) -> list[str]:
    """Checks what `charge` would check now; nothing is charged.

    Args are those of `charge`, which checks all of this again.

    Returns:
      The ids of the charges of this very run, if it was stopped and would
      resume without a new charge; empty if it would be charged.

    Raises:
      InputError: `charge` would refuse.
    """
    with self._read() as ledger:
      unfinished = _find_unfinished(ledger, requests, run, identity, heads)
      if not unfinished:
        check_requests(ledger, requests)
    return [charge.id for charge in unfinished]

  def check_writable(self) -> None:
    """Tries that the file can be written; nothing is added to it.

    It is tried before work of minutes whose charge would fail.

    Raises:
      InputError: it is damaged, or not a ledger.
      RunError: the disk or the permissions refuse.
    """
    if not ledger_exists(self.path):
      check_creatable(self.path.resolve())
      return
    with self._write("nothing was charged"):
      pass  # the transaction itself writes

  def charge(
    self,
    requests: Sequence[ChargeRequest],
    run: Path,
    identity: Mapping[str, Any],
    heads: Mapping[str, ReleasedHead] | None = None,
  ) -> list[str]:
    """Charges a run, all or nothing, or finds that it was charged before.

    A run that was charged and stopped before anything was released pays
    nothing, because nobody saw what it drew. Nor does one of which exactly
    these `heads` were released.

    Args:
      requests: all that the run costs.
      run: where its results go, without links; it is known by that.
      identity: everything that makes it this run and no other; JSON, PRIVATE.
      heads: heads of a run that was killed, if there are any.

    Returns:
      The ids of the charges, in the order of the requests; random.

    Raises:
      InputError: a cap would be broken; the rows are charged under another name
        or for another unit; or another run into this place is not finished.
        Nothing was charged.
    """
    with self._write("nothing was charged") as ledger:
      # A charge of which nobody has seen a result is used again, but only by
      # the very same run: another would release something else for it.
      unfinished = _find_unfinished(ledger, requests, run, identity, heads)
      if unfinished:
        return [charge.id for charge in unfinished]
      known_datasets = {entry.dataset for entry in ledger.select("charge")}
      check_requests(ledger, requests)
      charge_ids = []
      recorded = _recorded_identity(identity, requests)
      for request in requests:
        charge_ids += _add_charges(ledger, request, str(run), recorded)
        _add_new_keys(ledger, request)
    for request in requests:
      if request.dataset not in known_datasets:
        known_datasets.add(request.dataset)
        print(
          f"new ledger entry for {request.dataset!r} in {self.path}; charges in"
          " other ledgers are not counted",
          file=sys.stderr,
        )
    return charge_ids

  def deliver(
    self, charge_ids: Sequence[str], heads: Mapping[str, ReleasedHead]
  ) -> None:
    """Notes which heads are released for charges, before they are shown.

    Args:
      charge_ids: from `charge`.
      heads: those that are released, by the SHA-256 of their weights; empty
        where something else is, such as noisy accuracies.

    Raises:
      InputError: something was released for one of them already, which a
        charge pays for once; or the charges are not in this file any more.
      RunError: the file does not exist any more, is busy, or cannot be written.
    """
    if not ledger_exists(self.path):
      raise RunError(
        f"the ledger {self.path} does not exist any more: put it back."
      )
    with self._write("what was charged before stays charged") as ledger:
      # A charge pays for one release. Of two runs of one command, which have
      # one charge on machines that share no locks, the second is refused.
      charged = {entry.id for entry in ledger.select("charge")}
      delivered = set()
      for entry in ledger.select("left"):
        delivered.update(entry.charge_ids)
      if delivered.intersection(charge_ids):
        raise InputError(
          "another run of the same command was faster, and its results were"
          " released for this charge, which pays for one release: use those."
        )
      if not charged.issuperset(charge_ids):
        raise InputError(
          f"the ledger {self.path} does not have the charges of this run any"
          " more: it was replaced while the run was at work; put back the one"
          " that has them."
        )
      ledger.add(
        LedgerEntry(
          kind="left", charge_ids=tuple(charge_ids), heads=dict(heads)
        )
      )

  def _read(self) -> contextlib.AbstractContextManager[Transaction]:
    return transaction(self.path, wait=self._wait)

  def _write(
    self, if_it_fails: str
  ) -> contextlib.AbstractContextManager[Transaction]:
    return transaction(
      self.path, wait=self._wait, write=True, if_it_fails=if_it_fails
    )


def open_existing_ledger(path: Path | None) -> Ledger:
  """Opens the ledger of a command that charges nothing.

  Args:
    path: as the user named it; None is `default_ledger()`, which may not exist.

  Raises:
    InputError: the user named a file that does not exist.
  """
  if path is not None and not ledger_exists(path):
    raise InputError(
      f"--ledger {path} does not exist: name the ledger that was charged, or"
      " leave it out."
    )
  return Ledger(path)


def _recorded_identity(
  identity: Mapping[str, Any], requests: Sequence[ChargeRequest]
) -> dict[str, Any]:
  """Adds a digest of the rows to a run's identity, in the form of the file."""
  with_rows = {**identity, "rows": digest_of_rows(requests)}
  return json.loads(json.dumps(with_rows))


def _find_unfinished(
  ledger: Transaction,
  requests: Sequence[ChargeRequest],
  run: Path,
  identity: Mapping[str, Any],
  heads: Mapping[str, ReleasedHead] | None,
) -> list[LedgerEntry]:
  """Finds the charges of a run whose results were never shown.

  Nothing was released for such a charge; or these very `heads` were noted, and
  the run was killed before it could show them. InputError: one is another
  run's.
  """
  # The place of a run tells it from others, and its identity must then be the
  # same: a charge that pays for one head must not pay for another there.
  recorded = _recorded_identity(identity, requests)
  released = {}
  for entry in ledger.select("left"):
    for charge_id in entry.charge_ids:
      released[charge_id] = entry.heads
  unfinished = []
  for charge in ledger.select("charge"):
    if charge.run != str(run):
      continue
    nothing_released = charge.id not in released
    if nothing_released or released[charge.id] == heads:
      check_same_run(charge, recorded, run)
      unfinished.append(charge)
  return unfinished


def _add_charges(
  ledger: Transaction,
  request: ChargeRequest,
  run: str,
  identity: Mapping[str, Any],
) -> list[str]:
  """Writes the charges of a request; returns their new random ids."""
  charge_ids = []
  for charge in request.charges:
    mu_squared = None
    if charge.mu_squared is not None:
      exact = Fraction(charge.mu_squared)
      if exact <= 0:
        raise InputError(
          f"{charge.description}: mu2={charge.mu_squared} must be positive."
        )
      mu_squared = str(exact)
    # Random: a charge's id is in receipts, and tells nothing of rows or runs.
    charge_id = secrets.token_hex(16)
    ledger.add(
      msgspec.structs.replace(
        charge,
        id=charge_id,
        dataset=request.dataset,
        run=run,
        identity=dict(identity),
        mu_squared=mu_squared,
      )
    )
    charge_ids.append(charge_id)
  return charge_ids


def _add_new_keys(ledger: Transaction, request: ChargeRequest) -> None:
  """Writes the keys of rows that the data set did not have yet."""
  for kind, keys in request.keys.items():
    # Each run of a data set brings the same rows again; the file would grow by
    # all of them each time.
    old = ledger.read_keys(request.dataset, kind)
    new = np.setdiff1d(keys, old, assume_unique=True)
    if len(new):
      entry = LedgerEntry(kind="rows", dataset=request.dataset, key_kind=kind)
      ledger.add(entry, new)
