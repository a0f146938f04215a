"""What was spent of each private data set, and what may be: one SQLite file.

A charge is on the disk before its noise is drawn. Whether it fits under the
cap, and whose the rows are, is asked in the transaction that writes it. Costs
are μ² = Σσ⁻² of Gaussian releases, which add up however each was chosen, as
fractions, without rounding.
"""

import functools
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage import is_url
from oneshot_dp.pipeline.ledger import entries as of
from oneshot_dp.pipeline.ledger.entries import (
  Cap,
  ChargeRequest,
  Entries,
  Keys,
  ReleasedHead,
)


def default_ledger() -> Path:
  """$ONESHOT_DP_LEDGER, or a file in the user's state folder."""
  if chosen := os.environ.get("ONESHOT_DP_LEDGER"):
    return Path(chosen)
  home = os.environ.get("HOME", os.path.expanduser("~"))
  state = os.environ.get("XDG_STATE_HOME", "")
  place = Path(state if os.path.isabs(state) else f"{home}/.local/state")
  if not home or not place.is_absolute():
    raise InputError(
      f"HOME={home!a} is no place for a ledger: name its file with --ledger, or"
      " in $ONESHOT_DP_LEDGER."
    )
  return place / "oneshot-dp" / "ledger.sqlite"


class Ledger:
  """The charges and caps of all data sets of its user.

  Rows are known by what is in them: a charge for rows that another data set of
  the file was charged for is refused, be it one row, whichever backbone they
  came through. So what was spent on a row is under one name.

  Formal guarantees: a charge returns only after it is on the disk, and raises
  without a trace where it would break the cap. A cap is a filter: set before
  the first release, it makes all that is released (ε, δ)-DP together, however
  each release was chosen by those before it. Source: Smith & Thakurta, "Fully
  Adaptive Composition for Gaussian Differential Privacy" (2022).

  All methods raise as `charges.transaction` does. `path` is its file, None that
  of `default_ledger()`; `wait` seconds a busy one is waited for.
  """

  def __init__(self, path: Path | None = None, wait: float = 60.0):
    self.path = default_ledger() if path is None else path
    if is_url(str(self.path)):
      raise InputError(f"{self.path} is no place on a disk, for a ledger.")
    self._open = functools.partial(of.transaction, self.path, wait=wait)

  def entries(self, dataset: str | None = None) -> list[of.LedgerEntry]:
    """Charges and caps, oldest first, of one data set or of all."""
    with self._open() as entries:
      every = [e for e in entries.all if dataset in (None, e.dataset)]
    return [each for each in every if each.kind in ("charge", "cap")]

  def heads(self) -> dict[str, ReleasedHead]:
    """All heads that left, by the SHA-256 of their weights."""
    with self._open() as entries:
      return {k: v for e in entries.of("left") for k, v in e.heads.items()}

  def paid(self, charge: str | None) -> list[of.LedgerEntry]:
    """A charge, and those that it went on from."""
    by_id, chain = {each.id: each for each in self.entries()}, []
    while charge in by_id:  # one comes from an earlier one
      chain.append(by_id.pop(charge))
      charge = chain[-1].came_from
    return chain

  def set_cap(
    self, dataset: str, cap: Cap, keys: Keys | None = None
  ) -> list[str]:
    """Sets the cap from now on; returns what is to be said of that, if any.

    With `keys` these rows are refused under another name from then on.
    """
    rows = ChargeRequest(dataset=dataset, charges=(), keys=keys or {})
    most, said = cap.mu2, []  # refuses what is no guarantee
    with self._open(write=True) as entries:
      _add(entries, [rows])
      charges = entries.of("charge", dataset)
      old = of.cap_of(entries.of("cap", dataset))
      entries.add(of.LedgerEntry("cap", dataset=dataset, **cap._asdict()))
    unproven = "what was seen before may have led to it: no proven guarantee."
    if old and (most > old.mu2 or cap.delta > old.delta):
      said.append(f"THE CAP WAS RAISED, from {old} to {cap}; {unproven}")
    elif not old and charges:
      said.append(f"the cap was set after the first release; {unproven}")
    if exposed := sum(each.mu2 is None for each in charges):
      said.append(f"{exposed} charges are NOT PRIVATE: no cap covers them.")
    if of.spent(charges) > most:
      said.append("more than this is spent already: nothing more is released.")
    return said

  def charge(
    self,
    bills: Sequence[ChargeRequest],
    run: Path,
    asked: Mapping[str, Any],
    heads: Mapping[str, ReleasedHead] | None = None,
  ) -> list[str]:
    """Pays for a run, all or nothing, or finds it paid for; the charges' ids.

    A run is known by `run`, where its results go, without links, and is this
    one by all that was `asked`, PRIVATE. One that was charged and stopped
    before anything left pays nothing, because nobody saw what it drew; nor does
    one of which exactly these `heads` left. Ids are random, as bills have them.
    """
    every = (each for bill in bills for each in sorted(bill.keys.items()))
    rows = b"".join(kind.encode() + keys.tobytes() for kind, keys in every)
    now = json.loads(json.dumps({**asked, "rows": of.sha256(rows)}))
    with self._open(write=True) as entries:
      left = {i: e.heads for e in entries.of("left") for i in e.charges}
      runs = [e for e in entries.of("charge") if e.run == str(run)]
      if there := [e for e in runs if left.get(e.id, heads) == heads]:
        was = there[-1].asked
        if differ := [k for k in was | now if was.get(k) != now.get(k)]:
          raise InputError(
            f"a run into {run} was charged and not finished, and this is"
            f" another by its {', '.join(differ)}: run the very same command,"
            " which goes on without a new charge, or name another place."
          )
        return [each.id for each in there]
      known = {each.dataset for each in entries.of("charge")}
      ids = _add(entries, bills, str(run), now)
    for dataset in {bill.dataset for bill in bills} - known:
      said = f"the first charge of {dataset!r} in {self.path}"
      print(f"{said}; what others were charged is not in it", file=sys.stderr)
    return ids

  def deliver(
    self, ids: Sequence[str], heads: Mapping[str, ReleasedHead]
  ) -> None:
    """Notes which heads, by SHA-256, leave for charges, before they are shown.

    InputError: something left for one already; a charge pays for that once.
    """
    with self._open(write=True) as entries:
      done = {i for each in entries.of("left") for i in each.charges}
      if not {*ids} <= {each.id for each in entries.of("charge")} - done:
        raise InputError(
          "another run of the same command was faster, and its results left"
          " for this charge, which pays for one release: use those."
        )
      entries.add(of.LedgerEntry("left", charges=tuple(ids), heads=dict(heads)))

  def shared(self, keys: Keys) -> dict[str, tuple[int, int]]:
    """Data set → how many of these rows, and units, it was charged for.

    For their holder, and at least so many: see `Keys`. A unit's number means
    something within a data set; in another one it may be anybody.
    """
    with self._open() as entries:
      return _shared(entries, keys)


def _check(entries: Entries, bills: Sequence[ChargeRequest]) -> None:
  """Refuses rows of another name, and what breaks a cap or a unit."""
  for bill in bills:
    known = [(n, both[0]) for n, both in _shared(entries, bill.keys).items()]
    # And what is charged at the same time.
    known += [(b.dataset, of.in_both(bill.keys, b.keys)) for b in bills]
    for other, rows in known:
      if other != bill.dataset and rows:
        raise InputError(
          f"at least {rows} of these rows are charged as {other!r}, and this"
          f" cache calls them {bill.dataset!r}: use a cache of the name"
          f" {other!r}, so that what is spent adds up, or leave them out."
        )
  for name in {bill.dataset for bill in bills if bill.charges}:
    new = [c for bill in bills if bill.dataset == name for c in bill.charges]
    old = entries.of("charge", name)
    if not {each.came_from for each in new} <= {None, *(e.id for e in old)}:
      raise InputError(
        f"the head to go on from was not charged here, to {name!r}: name its"
        " ledger, or leave --from out."
      )
    if len(units := {each.unit for each in (*old, *new)}) > 1:
      raise InputError(
        f"{name!r} is charged per {' and per '.join(sorted(units))}: what is"
        " protected is settled by the first charge; use caches of one unit."
      )
    if (cap := of.cap_of(entries.of("cap", name))) is None:
      continue
    asked = " and ".join(dict.fromkeys(each.what for each in new))
    if any(each.mu2 is None for each in new):
      raise InputError(
        f"{asked}: the cap of {name!r}, {cap}, covers nothing that is NOT"
        " PRIVATE; leave it out, or use a data set without a cap."
      )
    if of.spent(new) > cap.mu2 - (spent := of.spent(old)):
      raise InputError(
        f"{asked} would break the cap of {name!r}, {cap}:"
        f" {of.remaining_epsilon(cap, spent)[1]}; ask for less, or raise"
        " the cap for all"
        " to see with `oneshot-dp budget`."
      )


def _add(
  entries: Entries,
  bills: Sequence[ChargeRequest],
  run: str = "",
  asked: Any = None,
) -> list[str]:
  """Writes charges, and keys of rows that the data set did not have yet."""
  _check(entries, bills)
  ids = []
  for bill in bills:
    for each in bill.charges:
      if each.mu2 is not None and Fraction(each.mu2) <= 0:
        raise InputError(f"{each.what}: mu2={each.mu2} must be positive.")
      ids.append(secrets.token_hex(16))
      more = {"dataset": bill.dataset, "run": run, "asked": asked or {}}
      more["mu2"] = each.mu2 and str(Fraction(each.mu2))
      entries.add(msgspec.structs.replace(each, id=ids[-1], **more))
    for kind, keys in bill.keys.items():
      old = entries.keys(bill.dataset, kind)
      new = np.setdiff1d(keys, old, assume_unique=True)
      if len(new):
        entries.add(of.LedgerEntry("rows", dataset=bill.dataset, of=kind), new)
  return ids


def _shared(entries: Entries, keys: Keys) -> dict[str, tuple[int, int]]:
  """Data set → how many of these rows and units are known as its own."""
  found = {}
  for name in dict.fromkeys(each.dataset for each in entries.of("rows")):
    theirs = {kind: entries.keys(name, kind) for kind in keys}
    known = of.in_both(keys, theirs), of.in_both(keys, theirs, ["unit"])
    if any(known):
      found[name] = known
  return found
