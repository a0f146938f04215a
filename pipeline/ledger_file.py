"""The ledger's file: SQLite, rows that are only added, each bound to the last.

A row has the digest of the one before, and the file the digest of the last: an
edit, a deletion, a cut or another order is found by whoever reads any of it.
(Whoever can write the file and wants to deceive can compute them anew; they are
for damage, and for edits by hand.)
"""

import contextlib
import hashlib
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.files import write_once
from oneshot_dp.extract.storage import is_url
from oneshot_dp.pipeline.charges import Entry, RowsEntry

_E = TypeVar("_E")
_DECODER = msgspec.json.Decoder(Entry)
_APPLICATION, _FORMAT = 0x1DBB_AD6E, 1
_SCHEMA = (
  "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL,"
  " digest TEXT NOT NULL, keys BLOB)",
  "CREATE TABLE last (seq INTEGER NOT NULL, digest TEXT NOT NULL)",
)
_FIRST = hashlib.sha256(b"oneshot-dp ledger").hexdigest()
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FAILED = (  # the disk's or the system's faults, and not the file's
  sqlite3.SQLITE_CANTOPEN,
  sqlite3.SQLITE_FULL,
  sqlite3.SQLITE_IOERR,
  sqlite3.SQLITE_NOMEM,
  sqlite3.SQLITE_PERM,
  sqlite3.SQLITE_READONLY,
)


class Entries:
  """All entries of a ledger, within one transaction.

  Attributes:
    all: what each says, oldest first.
  """

  def __init__(self, path: Path, db: sqlite3.Connection | None):
    self._path, self._db, self._digest = path, db, _FIRST
    self.all: list[Entry] = []
    if db is None:  # there is none yet
      return
    rows = db.execute("SELECT seq, body, digest FROM entry ORDER BY seq")
    for seq, body, digest in rows:
      self._digest = _chained(self._digest, body)
      if (seq, digest) != (len(self.all) + 1, self._digest):
        raise self._damaged(f"entry {len(self.all) + 1} is not as written")
      try:
        self.all.append(_DECODER.decode(body))
      except (msgspec.MsgspecError, RecursionError, TypeError) as error:
        raise self._damaged(f"entry {seq} is none") from error
    last = db.execute("SELECT seq, digest FROM last").fetchall()
    if last != [(len(self.all), self._digest)]:
      raise self._damaged("entries at its end are missing")

  def of(self, kind: type[_E]) -> Iterator[_E]:
    """Those of a kind, oldest first."""
    return (each for each in self.all if isinstance(each, kind))

  def keys(self, place: int) -> UInt64[np.ndarray, " keys"]:
    """The keys beside an entry, by its place in `all`."""
    assert self._db is not None
    query = "SELECT keys FROM entry WHERE seq = ?"
    ((blob,),) = self._db.execute(query, (place + 1,))
    of, found = self.all[place], isinstance(blob, bytes) and _sha256(blob)
    if not isinstance(of, RowsEntry) or found != of.keys_sha256:
      raise self._damaged(f"keys of entry {place + 1} are not as written")
    return np.frombuffer(blob, "<u8").astype(np.uint64, copy=False)

  def append(
    self, entry: Entry, keys: UInt64[np.ndarray, " keys"] | None = None
  ) -> None:
    """Adds an entry, in a transaction of `LedgerFile.writing`."""
    assert self._db is not None
    blob = None
    if keys is not None:
      blob = keys.astype("<u8").tobytes()
      entry = msgspec.structs.replace(entry, keys_sha256=_sha256(blob))
    text = msgspec.json.encode(entry).decode()
    self._digest = _chained(self._digest, text)
    self.all.append(entry)
    self._db.execute(
      "INSERT INTO entry VALUES (?, ?, ?, ?)",
      (len(self.all), text, self._digest, blob),
    )
    new = len(self.all), self._digest
    self._db.execute("UPDATE last SET seq = ?, digest = ?", new)

  def _damaged(self, what: str) -> InputError:
    return damaged(self._path, what)


class LedgerFile:
  """Transactions on one file, which is made at the first that writes.

  Formal guarantees: what `writing` added is on the disk when it returns
  (journal_mode=DELETE, synchronous=EXTRA), or none of it is there; of
  processes that write, one comes after the other (BEGIN IMMEDIATE), and each
  sees all that those before it added. On a network file system this rests on
  its locks and on its fsync: over NFS v4 they serve all machines, some others
  have none, and then two machines may not charge the same file at a time.

  Args:
    path: where it is, or will be.
    wait: seconds until a file that another process writes to is called busy.
  """

  def __init__(self, path: Path, wait: float = 60.0):
    if is_url(str(path)):
      raise InputError(f"{path} is no place on a disk, where a ledger must be.")
    self.path, self._wait = path, wait

  @property
  def exists(self) -> bool:
    """Whether there is one; InputError: something else is in its place."""
    try:
      mode = self.path.stat().st_mode
    except FileNotFoundError:
      return False
    except (OSError, ValueError) as error:
      said = getattr(error, "strerror", None) or error
      raise InputError(
        f"the ledger {self.path} cannot be read: {said}."
      ) from None
    if not stat.S_ISREG(mode):
      raise InputError(
        f"{self.path} is no file, so it cannot be a ledger: name another"
        " (--ledger or $ONESHOT_DP_LEDGER)."
      )
    return True

  @contextlib.contextmanager
  def reading(self) -> Iterator[Entries]:
    """All entries at one moment; none where there is no ledger yet."""
    if not self.exists:
      yield Entries(self.path, None)
      return
    with self._transaction("BEGIN") as db:
      yield Entries(self.path, db)

  @contextlib.contextmanager
  def writing(self) -> Iterator[Entries]:
    """All entries, to which some may be added: all of them, or none."""
    if not self.exists:
      self._make()
    with self._transaction("BEGIN IMMEDIATE") as db:
      yield Entries(self.path, db)

  @contextlib.contextmanager
  def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
    with one_line(self.path):
      # (Without this file's own `open`: to close that would drop its locks.)
      place = f"{self._place().as_uri()}?mode=rw"
      db = sqlite3.connect(
        place, uri=True, timeout=self._wait, isolation_level=None
      )
      try:
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA synchronous = EXTRA")
        db.execute("PRAGMA cell_size_check = ON")
        self._check_format(db)
        db.execute(begin)
        yield db
        db.commit()
      finally:
        with contextlib.suppress(sqlite3.Error):
          db.rollback()
        db.close()

  def _check_format(self, db: sqlite3.Connection) -> None:
    """That it is a ledger, of this format, with nothing else in it."""

    def ask(pragma: str) -> Any:
      return db.execute(f"PRAGMA {pragma}").fetchone()[0]

    if ask("application_id") != _APPLICATION:
      raise damaged(self.path, "it is empty, or a database of something else")
    if ask("user_version") != _FORMAT:
      raise InputError(
        f"{self.path} is a ledger of format {ask('user_version')}, and this"
        f" version reads {_FORMAT}: use the version that wrote it."
      )
    found = db.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    if found != [(sql,) for sql in _SCHEMA]:
      raise damaged(self.path, "it has other tables than a ledger")
    if (mode := ask("journal_mode = DELETE")) != "delete":
      raise RunError(f"{self.path} stays in journal mode {mode}; copy it anew.")

  def _make(self) -> None:
    """Puts an empty ledger there, unless another process did."""
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
      for sql in _SCHEMA:
        db.execute(sql)
      db.execute("INSERT INTO last VALUES (0, ?)", (_FIRST,))
      db.execute(f"PRAGMA application_id = {_APPLICATION}")
      db.execute(f"PRAGMA user_version = {_FORMAT}")
      db.commit()
      content = db.serialize()
    # It is there as a whole or not: an empty file is never a new ledger.
    write_once(self._place(), content)

  def _place(self) -> Path:
    """Through all links, so that the journal is beside the file itself."""
    try:
      return self.path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
      raise InputError(f"the ledger {self.path}: {error}.") from error


def damaged(path: Path, what: str) -> InputError:
  """What every reader of a ledger says that is not whole."""
  return InputError(
    f"the ledger {path} is damaged ({what}): nothing is released until it is"
    " restored from a backup."
  )


@contextlib.contextmanager
def one_line(path: Path) -> Iterator[None]:
  """Says in one line what SQLite has against a file."""
  try:
    yield
  except sqlite3.Error as error:
    code = getattr(error, "sqlite_errorcode", None)
    code = None if code is None else code & 0xFF  # of its kind
    if code in _BUSY:
      raise RunError(
        f"the ledger {path} is busy: another process is writing to it; nothing"
        " was charged, try again."
      ) from error
    if code in _FAILED:
      raise RunError(
        f"the ledger {path} cannot be read or written ({error}): nothing is"
        " released; mend the disk or the permissions."
      ) from error
    raise damaged(path, str(error)) from error


def _chained(digest: str, body: str) -> str:
  return _sha256(f"{digest}\n{body}".encode())


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()
