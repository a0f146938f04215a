"""What a ledger holds: SQLite, of entries that are only added.

An entry has the digest of the one before, and the file that of the last: an
edit, a deletion, a cut or another order is found by whoever reads any of it.
(Whoever means to deceive can compute them anew; they find damage, and edits by
hand.) On a network file system all rests on its locks and its fsync, which of
NFS v4 serve all machines; of one that has no locks, use a ledger per machine.
"""

import contextlib
import dataclasses
import datetime
import decimal
import hashlib
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.files import write_once
from oneshot_dp.linear_dp import accounting

_LEAST_EPSILON = 1e-6  # less is nothing
_FORMAT = {"application_id": 0x1DBB_AD6E, "user_version": 1}
_SCHEMA = (
  "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL,"
  " digest TEXT NOT NULL, keys BLOB)",
  "CREATE TABLE last (seq INTEGER NOT NULL, digest TEXT NOT NULL)",
)
_FIRST = hashlib.sha256(b"oneshot-dp ledger").hexdigest()
_DAMAGED = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR
_FRACTION = msgspec.Meta(pattern="^[0-9]+(/[1-9][0-9]*)?$")
_BUSY = sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED
Keys = Mapping[str, UInt64[np.ndarray, " _keys"]]
"""What rows are known by, as `extract.cache.keys.keys_of` has it. Private."""


class Cap(NamedTuple):
  """What all releases of a data set are to keep, together."""

  epsilon: float
  delta: float

  @property
  def mu2(self) -> Fraction:
    return Fraction(accounting.mu_squared_from_epsilon(*self))

  def __str__(self) -> str:
    return "epsilon {} at delta {}".format(
      *map(accounting.format_rounded_up, self)
    )


class ReleasedHead(NamedTuple):
  """What paid for a head that left, and the SHA-256 of its receipt's bytes."""

  charge: str
  receipt_sha256: str


class LedgerEntry(
  msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
  """A row of a ledger. PRIVATE are `asked` and the keys of rows."""

  kind: Literal["charge", "cap", "left", "rows"]
  time: str = ""  # when it was written
  dataset: str = ""  # of a charge, a cap, rows
  id: str = ""  # of a charge, as all down to `asked`; random
  what: str = ""  # in words, for people
  mu2: Annotated[str, _FRACTION] | None = None  # exactly; None: NOT PRIVATE
  unit: str = ""
  delta: float | None = None  # at which ε is stated; of a cap, too
  came_from: str | None = None  # the charge of the head that it goes on from
  run: str = ""
  asked: dict[str, Any] = {}
  epsilon: float = 0.0  # of a cap
  charges: tuple[str, ...] = ()  # for which something left
  heads: dict[
    str, ReleasedHead
  ] = {}  # that left, by the SHA-256 of their weights
  of: str = ""  # which keys of rows lie beside it
  keys_sha256: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ChargeRequest:
  """Charges for the rows of one data set, whose keys are private."""

  dataset: str
  charges: tuple[LedgerEntry, ...]
  keys: Keys


class Entries:
  """All entries of a ledger within one transaction, oldest first, in `all`."""

  def __init__(self, path: Path, db: sqlite3.Connection):
    self._path, self._db, self._digest = path, db, _FIRST
    self.all: list[LedgerEntry] = []
    query = "SELECT seq, body, digest FROM entry ORDER BY seq"
    for seq, body, digest in db.execute(query):
      self._digest = sha256(f"{self._digest}\n{body}".encode())
      try:
        self.all.append(msgspec.json.decode(body, type=LedgerEntry))
      except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        seq = -1
      if (seq, digest) != (len(self.all), self._digest):
        raise damaged(path, f"entry {len(self.all)} is not as written")
    last = db.execute("SELECT seq, digest FROM last").fetchall()
    if last != [(len(self.all), self._digest)]:
      raise damaged(path, "entries at its end are missing")

  def of(self, kind: str, dataset: str | None = None) -> list[LedgerEntry]:
    """Those of a kind, and of a data set."""
    of_kind = [each for each in self.all if each.kind == kind]
    return [e for e in of_kind if dataset in (None, e.dataset)]

  def keys(self, dataset: str, of: str) -> UInt64[np.ndarray, " keys"]:
    """All keys of a kind that a data set was charged for."""
    found = [np.empty(0, np.uint64)]
    for seq, each in enumerate(self.all, 1):
      if (each.dataset, each.of) == (dataset, of):
        ask = "SELECT keys FROM entry WHERE seq = ?"
        ((blob,),) = self._db.execute(ask, (seq,))
        if type(blob) is not bytes or sha256(blob) != each.keys_sha256:
          raise damaged(self._path, f"keys of entry {seq} are not as written")
        found.append(np.frombuffer(blob, "<u8").astype(np.uint64, copy=False))
    return np.concatenate(found)

  def add(self, entry: LedgerEntry, keys: Any = None) -> None:
    """Adds one, as of now; `keys` of rows, in an array, beside it."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    blob = None if keys is None else keys.astype("<u8").tobytes()
    more = {"time": now, "keys_sha256": sha256(blob) if blob else ""}
    self.all.append(msgspec.structs.replace(entry, **more))
    text = msgspec.json.encode(self.all[-1]).decode()
    self._digest = sha256(f"{self._digest}\n{text}".encode())
    row = len(self.all), text, self._digest, blob
    self._db.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", row)
    self._db.execute("UPDATE last SET seq = ?, digest = ?", row[::2])


def exists(path: Path) -> bool:
  """Whether there is a ledger; InputError: something else is in its place."""
  try:
    if stat.S_ISREG(path.stat().st_mode):
      return True
    what: object = "it is no file"
  except FileNotFoundError:
    return False
  except (OSError, ValueError) as error:
    what = error
  raise InputError(f"{path} cannot be a ledger: {what}; name another.")


@contextlib.contextmanager
def transaction(
  path: Path, *, wait: float, write: bool = False
) -> Iterator[Entries]:
  """All entries at one moment, to which some may be added: all, or none.

  Formal guarantees: what was added is on the disk when the block has ended
  (journal_mode=DELETE, synchronous=EXTRA), or none of it is there; of
  processes that write, one comes after the other (BEGIN IMMEDIATE), and each
  sees all that those before it added.

  Raises:
    InputError: it is damaged, or no ledger.
    RunError: another process writes for `wait` seconds; or the disk refuses.
  """
  if not exists(path) and write:
    with contextlib.closing(_empty()) as new:  # an empty file is never one
      write_once(path.resolve(), new.serialize())
  try:
    place = f"{path.resolve().as_uri()}?mode=rw"
    how = {"uri": True, "timeout": wait, "isolation_level": None}
    # (An `open` and close of the file by this process would drop its locks.)
    db = sqlite3.connect(place, **how) if write or exists(path) else _empty()
    with contextlib.closing(db):
      db.execute("PRAGMA trusted_schema = OFF")
      db.execute("PRAGMA synchronous = EXTRA")
      ask = {of: db.execute(f"PRAGMA {of}").fetchone()[0] for of in _FORMAT}
      tables = db.execute("SELECT sql FROM sqlite_master ORDER BY name")
      if ask != _FORMAT or tables.fetchall() != [(sql,) for sql in _SCHEMA]:
        raise damaged(path, "it is empty, or of another format or program")
      db.execute("PRAGMA journal_mode = DELETE")
      db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
      if write:  # a read-only file is found out by a write alone
        db.execute("UPDATE last SET seq = seq")
      yield Entries(path, db)
      db.commit()
  except sqlite3.Error as error:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _DAMAGED:
      raise damaged(path, str(error)) from error
    said = f"cannot be read or written ({error}); mend the disk"
    if code in _BUSY:
      said = "is busy: another process is writing to it; try again"
    raise RunError(f"the ledger {path} {said}; nothing was charged.") from error


def damaged(path: Path, what: str) -> InputError:
  """What every reader of a ledger says that is not whole."""
  return InputError(
    f"the ledger {path} is damaged ({what}): nothing is released until it is"
    " restored from a backup."
  )


def _empty() -> sqlite3.Connection:
  """A ledger of nothing, in memory."""
  db = sqlite3.connect(":memory:", isolation_level=None)
  pragmas = [f"PRAGMA {name} = {value}" for name, value in _FORMAT.items()]
  for sql in (*_SCHEMA, *pragmas, f"INSERT INTO last VALUES (0, '{_FIRST}')"):
    db.execute(sql)
  return db


def sha256(content: bytes) -> str:
  """In hexadecimal."""
  return hashlib.sha256(content).hexdigest()


def in_both(
  one: Keys, other: Keys, kinds: Sequence[str] = ("image", "direction")
) -> int:
  """How many rows, or units, are in both, at least, by these kinds of keys."""
  found = [(one[k], other[k]) for k in kinds if k in one and k in other]
  return max((len(np.intersect1d(a, b, True)) for a, b in found), default=0)


def spent(entries: Iterable[LedgerEntry]) -> Fraction:
  """Σμ² of charges, exactly; what is NOT PRIVATE aside."""
  return sum((Fraction(each.mu2 or 0) for each in entries), Fraction(0))


def cap_of(entries: Iterable[LedgerEntry]) -> Cap | None:
  """The cap that holds, of the entries of one data set."""
  caps = [Cap(e.epsilon, e.delta or 0.0) for e in entries if e.kind == "cap"]
  return caps[-1] if caps else None


def remaining_epsilon(cap: Cap, mu2: Fraction) -> tuple[float, str]:
  """The largest ε, in five digits, that fits after μ², or 0; and in words."""
  left, down = cap.mu2 - mu2, decimal.Context(5, decimal.ROUND_FLOOR)
  # A little more, for roundings; what is then too much is found by asking.
  most = accounting.epsilon_of(max(0.0, float(left)), cap.delta) * (1 + 1e-8)
  epsilon = down.create_decimal(most)
  while epsilon >= _LEAST_EPSILON:
    if accounting.mu_squared_from_epsilon(float(epsilon), cap.delta) <= left:
      one = (
        f"{float(epsilon):g} at delta {accounting.format_rounded_up(cap.delta)}"
      )
      return float(epsilon), f"one release of epsilon {one} is left"
    epsilon = down.next_minus(epsilon)
  return 0.0, "nothing is left"
