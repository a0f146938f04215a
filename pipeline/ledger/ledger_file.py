"""The ledger's file: SQLite, of entries that are only added.

An entry has the digest of the one before, and the file that of the last: an
edit, a deletion, a cut or another order is found by whoever reads any of it.
(Whoever means to deceive can compute them anew; they find damage, and edits by
hand.) On a network file system all rests on its locks and its fsync, which of
NFS v4 serve all machines; of one that has no locks, use a ledger per machine.
"""

import contextlib
import hashlib
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.files import write_once
from oneshot_dp.pipeline.ledger.charges import Entry

_FORMAT = {"application_id": 0x1DBB_AD6E, "user_version": 1}
_SCHEMA = (
  "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL,"
  " digest TEXT NOT NULL, keys BLOB)",
  "CREATE TABLE last (seq INTEGER NOT NULL, digest TEXT NOT NULL)",
)
_FIRST = hashlib.sha256(b"oneshot-dp ledger").hexdigest()
_DECODER = msgspec.json.Decoder(Entry)
_DAMAGED = (
  *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, None),
)
_BUSY = sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED


class Entries:
  """All entries of a ledger within one transaction, oldest first, in `all`."""

  def __init__(self, path: Path, db: sqlite3.Connection | None):
    self._path, self._db, self._digest = path, db, _FIRST
    self.all: list[Entry] = []
    if db is None:  # there is none yet
      return
    rows = db.execute("SELECT seq, body, digest FROM entry ORDER BY seq")
    for seq, body, digest in rows:
      self._digest = _sha256(f"{self._digest}\n{body}".encode())
      try:
        self.all.append(_DECODER.decode(body))
      except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
        seq = -1
      if (seq, digest) != (len(self.all), self._digest):
        raise damaged(path, f"entry {len(self.all)} is not as written")
    last = db.execute("SELECT seq, digest FROM last").fetchall()
    if last != [(len(self.all), self._digest)]:
      raise damaged(path, "entries at its end are missing")

  def of(self, kind: str, dataset: str | None = None) -> list[Entry]:
    """Those of a kind, and of a data set."""
    of_kind = [each for each in self.all if each.kind == kind]
    return [e for e in of_kind if dataset in (None, e.dataset)]

  def keys(self, dataset: str, of: str) -> UInt64[np.ndarray, " keys"]:
    """All keys of a kind that a data set was charged for."""
    found = [np.empty(0, np.uint64)]
    for seq, each in enumerate(self.all, 1):
      if self._db and (each.dataset, each.of) == (dataset, of):
        query = "SELECT keys FROM entry WHERE seq = ?"
        ((blob,),) = self._db.execute(query, (seq,))
        if type(blob) is not bytes or _sha256(blob) != each.keys_sha256:
          raise damaged(self._path, f"keys of entry {seq} are not as written")
        found.append(np.frombuffer(blob, "<u8").astype(np.uint64, copy=False))
    return np.concatenate(found)

  def add(
    self, entry: Entry, keys: UInt64[np.ndarray, " keys"] | None = None
  ) -> None:
    """Adds one, in a transaction that writes."""
    blob = None
    if keys is not None:
      blob = keys.astype("<u8").tobytes()
      entry = msgspec.structs.replace(entry, keys_sha256=_sha256(blob))
    text = msgspec.json.encode(entry).decode()
    self._digest = _sha256(f"{self._digest}\n{text}".encode())
    self.all.append(entry)
    assert self._db is not None
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
def transaction(path: Path, *, write: bool, wait: float) -> Iterator[Entries]:
  """All entries at one moment, to which some may be added: all, or none.

  Formal guarantees: what was added is on the disk when the block has ended
  (journal_mode=DELETE, synchronous=EXTRA), or none of it is there; of
  processes that write, one comes after the other (BEGIN IMMEDIATE), and each
  sees all that those before it added.

  Raises:
    InputError: it is damaged, or no ledger.
    RunError: another process writes for `wait` seconds; or the disk refuses.
  """
  if not exists(path):
    if not write:
      yield Entries(path, None)
      return
    _make(path)
  try:
    place = f"{path.resolve().as_uri()}?mode=rw"
    # (An `open` and close of the file by this process would drop its locks.)
    with contextlib.closing(
      sqlite3.connect(place, uri=True, timeout=wait, isolation_level=None)
    ) as db:
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
    code = getattr(error, "sqlite_errorcode", None)
    code = code and code & 0xFF  # of its kind
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


def _make(path: Path) -> None:
  """Puts an empty ledger there, whole, unless another process did."""
  with contextlib.closing(sqlite3.connect(":memory:")) as db:
    pragmas = [f"PRAGMA {name} = {value}" for name, value in _FORMAT.items()]
    for sql in (*_SCHEMA, *pragmas, f"INSERT INTO last VALUES (0, '{_FIRST}')"):
      db.execute(sql)
    db.commit()
    content = db.serialize()
  write_once(path.resolve(), content)  # so an empty file is never a new ledger


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
