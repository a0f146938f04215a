"""What was spent of each private data set, and what may be: one SQLite file.

A charge is on the disk before its noise is drawn. Whether it fits under the
cap, and whose the rows are, is asked in the transaction that writes it. Costs
are μ² = Σσ⁻² of Gaussian releases, which add up however each was chosen, and
are added as fractions, without rounding.
"""

import datetime
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from oneshot_dp.configs.errors import InputError, RunError, check_name
from oneshot_dp.pipeline.charges import (
  Bill,
  Cap,
  CapEntry,
  Charge,
  ChargeEntry,
  Keys,
  Known,
  Left,
  LeftEntry,
  RowsEntry,
  cap_of,
  check_affordable,
  exact,
  sampled,
  spent,
)
from oneshot_dp.pipeline.ledger_file import Entries, LedgerFile

__all__ = [
  "Bill",
  "Cap",
  "Charge",
  "Keys",
  "Known",
  "Ledger",
  "Left",
  "default_ledger",
  "keys_of",
]
if TYPE_CHECKING:
  from oneshot_dp.extract.cache.read import FeatureCache


def default_ledger() -> Path:
  """$ONESHOT_DP_LEDGER, or a file in the user's state folder."""
  if chosen := os.environ.get("ONESHOT_DP_LEDGER"):
    return Path(chosen)
  state = Path(os.environ.get("XDG_STATE_HOME", ""))
  if not state.is_absolute():
    home = os.environ.get("HOME", os.path.expanduser("~"))
    if not Path(home).is_absolute():
      raise InputError(
        f"HOME={home!a} is no place for a ledger: name its file with --ledger,"
        " or in $ONESHOT_DP_LEDGER."
      )
    state = Path(home, ".local", "state")
  return state / "oneshot-dp" / "ledger.sqlite"


class Ledger:
  """The charges and caps of all data sets of its user.

  Rows are known by what is in them: a charge for rows that another data set of
  the file was charged for is refused, be it one row, whichever backbone they
  came through. So what was spent on a row is under one name.

  Formal guarantees: a charge returns only after it is on the disk (see
  `LedgerFile`), and raises without a trace where it would break the cap. A cap
  is a filter: set before the first release, it makes all that is released
  (ε, δ)-DP together, however each release was chosen by those before it.
  Source: Smith & Thakurta, "Fully Adaptive Composition for Gaussian
  Differential Privacy" (2022).

  All methods raise an InputError where it is damaged, or is no ledger, and a
  RunError where it is busy, or the disk refuses; nothing is charged then.

  Args:
    path: its file; None is `default_ledger()`.
    wait: seconds until a file that another process writes to is called busy.
  """

  def __init__(self, path: Path | None = None, wait: float = 60.0):
    self._file = LedgerFile(default_ledger() if path is None else path, wait)
    self.path = self._file.path

  @property
  def exists(self) -> bool:
    """Whether there is such a file yet."""
    return self._file.exists

  def entries(self, dataset: str | None = None) -> list[ChargeEntry | CapEntry]:
    """Charges and caps, oldest first, of one data set or of all."""
    with self._file.reading() as entries:
      return [
        each
        for each in entries.all
        if isinstance(each, ChargeEntry | CapEntry)
        and dataset in (None, each.dataset)
      ]

  def heads(self) -> dict[str, Left]:
    """All heads that left, by the SHA-256 of their weights."""
    with self._file.reading() as entries:
      return {k: v for e in entries.of(LeftEntry) for k, v in e.heads.items()}

  def vouch(self, weights_sha256: str) -> Left | None:
    """What paid for these bytes of weights; None: nobody vouches for them."""
    return self.heads().get(weights_sha256)

  def spent(self, dataset: str) -> Fraction:
    """Σμ² of all charges of a data set, NOT PRIVATE ones aside."""
    return spent(self.entries(dataset))

  def cap(self, dataset: str) -> Cap | None:
    """The cap that holds, if any."""
    return cap_of(self.entries(dataset))

  def set_cap(self, dataset: str, cap: Cap) -> list[str]:
    """Sets the cap from now on; returns what is to be said of that, if any."""
    check_name("dataset", dataset)
    most = cap.mu2  # refuses what is no guarantee
    with self._file.writing() as entries:
      before = [e for e in entries.all if getattr(e, "dataset", "") == dataset]
      entries.append(CapEntry(_now(), dataset, cap.epsilon, cap.delta))
    charges = [e for e in before if isinstance(e, ChargeEntry)]
    old, said = cap_of(before), []
    if old is not None and (most > old.mu2 or cap.delta > old.delta):
      said.append(
        f"THE CAP WAS RAISED, from {old} to {cap}; the ledger keeps both. If"
        " results were seen before, it is no proven guarantee: they may have"
        " led to it."
      )
    elif old is None and charges:
      said.append(
        "the cap was set after the first release: if it was chosen by what that"
        " showed, it is no proven guarantee."
      )
    if exposed := sum(e.mu2 is None for e in charges):
      said.append(
        f"{exposed} of {len(charges)} charges let out what is NOT PRIVATE; no"
        " cap covers that."
      )
    if spent(charges) > most:
      said.append("more than this is spent already: nothing more is released.")
    return said

  def check(self, *bills: Bill) -> None:
    """Refuses what `charge` would refuse later, before any work."""
    if self.exists:
      with self._file.writing() as entries:  # it can be written, too
        _check(entries, bills)

  def charge(
    self, bills: Sequence[Bill], run: Path, asked: Mapping[str, Any]
  ) -> list[str]:
    """Pays for a run, all or nothing, or finds it paid for.

    A run that was charged and stopped before anything left is found by where
    its results go: it pays nothing, because nobody saw what it drew.

    Args:
      bills: what it costs, of each data set.
      run: where its results go, without links.
      asked: all that makes it this run.

    Returns:
      The random id of each charge, in the order of the bills.
    """
    asked = _normal(asked, bills)
    with self._file.writing() as entries:
      done = {i for e in entries.of(LeftEntry) for i in e.charges}
      if there := [
        e
        for e in entries.of(ChargeEntry)
        if e.run == str(run) and e.id not in done
      ]:
        _check_same(run, there[0].asked, asked)
        return [each.id for each in there]
      _check(entries, bills)
      known = {each.dataset for each in entries.of(ChargeEntry)}
      ids = [i for bill in bills for i in _add(entries, bill, run, asked)]
    for bill in bills:
      if bill.dataset not in known:
        self._say_first(bill.dataset)
    return ids

  def deliver(self, ids: Sequence[str], heads: Mapping[str, Left]) -> None:
    """Notes which bytes leave for charges, before they are shown.

    Args:
      ids: charges, each of which pays for what leaves once.
      heads: by the SHA-256 of their weights.

    Raises:
      InputError: something left for one of these charges already.
    """
    with self._file.writing() as entries:
      done = {i for e in entries.of(LeftEntry) for i in e.charges}
      known = {each.id for each in entries.of(ChargeEntry)}
      if done & {*ids} or not {*ids} <= known:
        raise InputError(
          "another run of the same command was faster, and its results left"
          " for this charge, which pays for one release: use those."
        )
      entries.append(LeftEntry(_now(), tuple(ids), dict(heads)))

  def was_delivered(
    self,
    run: Path,
    heads: Mapping[str, Left],
    bills: Sequence[Bill],
    asked: Mapping[str, Any],
  ) -> bool:
    """Whether exactly these heads are what left for the last run into a place.

    InputError: they are, and the run asked for something else.
    """
    with self._file.reading() as entries:
      of_run = [e for e in entries.of(ChargeEntry) if e.run == str(run)]
      left = [e for e in entries.of(LeftEntry) if e.heads == dict(heads)]
    if not (of_run and left and of_run[-1].id in left[-1].charges):
      return False
    _check_same(run, of_run[-1].asked, _normal(asked, bills))
    return True

  def paid(self, charge: str) -> list[ChargeEntry]:
    """A charge, and those that it went on from, the last first."""
    with self._file.reading() as entries:
      by_id = {each.id: each for each in entries.of(ChargeEntry)}
    chain: list[ChargeEntry] = []
    after: str | None = charge
    while after is not None and after in by_id and len(chain) < len(by_id):
      chain.append(by_id[after])
      after = chain[-1].came_from
    return chain

  def shared(self, keys: Keys) -> dict[str, Known]:
    """Data set → how many of these rows it was charged for; for their holder.

    At least so many: see `Keys`. Units have numbers that mean something within
    a data set; in another one a number may be anybody.
    """
    with self._file.reading() as entries:
      return _shared(entries, keys)

  def _say_first(self, dataset: str) -> None:
    """A new ledger, or one in another place, is worth a second look."""
    try:
      usual = Ledger()
      if usual.path.resolve() != self.path.resolve() and usual.entries(dataset):
        print(
          f"warning: {usual.path} is of {dataset!r}, too: what it was charged,"
          f" and its cap, do not count in {self.path}; is --ledger right?",
          file=sys.stderr,
        )
    except (InputError, RunError, OSError, RuntimeError):
      pass  # there is no other ledger to speak of
    print(
      f"the first charge of {dataset!r} in {self.path}: what was released"
      " before, if anything, is not counted",
      file=sys.stderr,
    )


def keys_of(cache: "FeatureCache") -> Keys:
  """What a ledger knows the rows of a cache by; reads all of them."""
  from oneshot_dp.extract.cache.keys import row_keys

  image, direction, unit = map(sampled, row_keys(cache))
  keys = {"image": image, "direction": direction}
  return keys | ({"unit": unit} if len(unit) else {})


def _check(entries: Entries, bills: Sequence[Bill]) -> None:
  """Refuses rows of another name, and what breaks a cap or a unit."""
  charges = list(entries.of(ChargeEntry))
  for bill in bills:
    for other, known in _shared(entries, bill.keys).items():
      if other != bill.dataset and known.rows:
        raise InputError(
          f"at least {known.rows} of these rows were charged as {other!r}, and"
          f" this cache calls them {bill.dataset!r}: use a cache of the name"
          f" {other!r}, so that what is spent on them adds up, or leave them"
          " out."
        )
    for each in bill.charges:
      if each.came_from is not None:
        before = [e for e in charges if e.id == each.came_from]
        if not before or before[0].dataset != bill.dataset:
          raise InputError(
            "the head to go on from was not charged here, to"
            f" {bill.dataset!r}: name its ledger, or leave --from out."
          )
  for dataset in {bill.dataset for bill in bills}:
    old = [e for e in entries.all if getattr(e, "dataset", None) == dataset]
    new = [c for bill in bills if bill.dataset == dataset for c in bill.charges]
    check_affordable(dataset, old, new)


def _add(
  entries: Entries, bill: Bill, run: Path, asked: dict[str, Any]
) -> Iterator[str]:
  for each in bill.charges:
    name = secrets.token_hex(16)
    cost = each._asdict() | {"mu2": exact(each.mu2)}
    entries.append(
      ChargeEntry(
        **cost, time=_now(), id=name, dataset=bill.dataset, run=str(run),
        asked=asked,
      )
    )  # fmt: skip
    yield name
  for kind, keys in bill.keys.items():
    old = _known(entries, bill.dataset, kind)
    new = np.setdiff1d(sampled(keys), old, assume_unique=True)
    if len(new):
      entries.append(RowsEntry(_now(), bill.dataset, kind, ""), new)


def _known(entries: Entries, dataset: str, kind: str) -> np.ndarray:
  """All keys of a kind that a data set was charged for."""
  kept = [
    entries.keys(place)
    for place, each in enumerate(entries.all)
    if isinstance(each, RowsEntry)
    and (each.dataset, each.of) == (dataset, kind)
  ]
  return np.concatenate([np.empty(0, np.uint64), *kept])


def _shared(entries: Entries, keys: Keys) -> dict[str, Known]:
  found = {}
  for dataset in dict.fromkeys(e.dataset for e in entries.of(RowsEntry)):
    counts = {
      kind: len(
        np.intersect1d(
          sampled(of), _known(entries, dataset, kind), assume_unique=True
        )
      )
      for kind, of in keys.items()
    }
    units = counts.pop("unit", 0)
    rows = max(counts.values(), default=0)
    if rows or units:
      found[dataset] = Known(rows, units)
  return found


def _normal(asked: Mapping[str, Any], bills: Sequence[Bill]) -> dict[str, Any]:
  """What was asked, as JSON has it, and of which rows."""
  digest = hashlib.sha256()
  for bill in bills:
    for kind, keys in sorted(bill.keys.items()):
      digest.update(kind.encode() + keys.tobytes())
  return json.loads(json.dumps({**asked, "rows": digest.hexdigest()}))


def _check_same(run: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
  different = [k for k in {**before, **now} if before.get(k) != now.get(k)]
  if different:
    raise InputError(
      f"a run into {run} was charged and not finished, and this is another by"
      f" its {', '.join(different)}: run the very same command, which goes on"
      " without a new charge, or name another place."
    )


def _now() -> str:
  return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
