"""The file of a ledger: SQLite, whose entries are only added.

Each entry has the digest of the one before, and the file has that of the last:
an edit, a deletion, a cut or another order is found by whoever reads any of it.
(Whoever means to deceive can compute the digests anew; they find damage, and
edits by hand.) On a network file system everything rests on its locks and its
fsync, which NFS v4 gives to all machines; where a file system has no locks, use
a ledger per machine.
"""

import contextlib
import datetime
import hashlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jaxtyping import UInt64

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.files import write_once
from oneshot_dp.pipeline.ledger.entries import LedgerEntry, sha256

# SQLite keeps both numbers in the file's header, where another program's
# database has others. A later format would have another version.
_FORMAT = {"application_id": 0x1DBB_AD6E, "user_version": 1}
_SCHEMA = (
  "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL,"
  " digest TEXT NOT NULL, keys BLOB)",
  "CREATE TABLE last (seq INTEGER NOT NULL, digest TEXT NOT NULL)",
)
_FIRST_DIGEST = hashlib.sha256(b"oneshot-dp ledger").hexdigest()
# SQLITE_ERROR is among these: our statements are valid, so when one of them
# fails, the schema is not what it was.
_DAMAGED = (
  sqlite3.SQLITE_CORRUPT,
  sqlite3.SQLITE_NOTADB,
  sqlite3.SQLITE_ERROR,
)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Transaction:
  """All entries of a ledger at one moment, to which some may be added.

  Attributes:
    path: the file.
    entries: all of them, oldest first.
    connection: the database, within the transaction.
  """

  def __init__(self, path: Path, connection: sqlite3.Connection):
    """Reads all entries, and checks that each is as it was written.

    Raises:
      InputError: one is not.
    """
    self.connection = connection
    self.entries: list[LedgerEntry] = []
    self.path = path
    self._digest = _FIRST_DIGEST
    # The whole chain is read, keys included, even to ask for one data set: an
    # edit anywhere is found by the next command, whatever that is about.
    rows = connection.execute(
      "SELECT seq, body, digest, keys FROM entry ORDER BY seq"
    )
    for row in rows:
      self._append_checked(*row)
    # A chain does not show that entries at its end are missing. This row does:
    # it is written in the same transaction as the last entry.
    last = connection.execute("SELECT seq, digest FROM last").fetchall()
    if last != [(len(self.entries), self._digest)]:
      raise damaged(path, "entries at its end are missing")

  def _append_checked(
    self, seq: Any, body: Any, digest: Any, keys: Any
  ) -> None:
    """Appends the next entry of the file, if it continues the chain.

    SQLite gives whatever was written into a row, of any type.
    """
    number = len(self.entries) + 1
    self._digest = sha256(f"{self._digest}\n{body}".encode())
    if (seq, digest) != (number, self._digest):
      raise damaged(self.path, f"entry {number} is not as written")
    try:
      entry = msgspec.json.decode(body, type=LedgerEntry)
    except (msgspec.MsgspecError, RecursionError, TypeError, ValueError):
      raise damaged(self.path, f"entry {number} is not as written") from None
    # The chain has the digest of the keys; the keys themselves lie beside it.
    is_as_written = keys is None
    if entry.keys_sha256:
      is_as_written = (
        isinstance(keys, bytes) and sha256(keys) == entry.keys_sha256
      )
    if not is_as_written:
      raise damaged(self.path, f"keys of entry {number} are not as written")
    self.entries.append(entry)

  def select(self, kind: str, dataset: str | None = None) -> list[LedgerEntry]:
    """The entries of one kind, oldest first.

    Args:
      kind: "charge", "cap", "left" or "rows"; see `LedgerEntry`.
      dataset: whose entries; None for those of all data sets.
    """
    # All entries were read to check the chain, so that an index in the file
    # would make nothing faster.
    return [
      entry
      for entry in self.entries
      if entry.kind == kind and dataset in (None, entry.dataset)
    ]

  def read_keys(
    self, dataset: str, key_kind: str
  ) -> UInt64[np.ndarray, " keys"]:
    """All keys of one kind that a data set was charged for. PRIVATE.

    Args:
      dataset: the name of the data set.
      key_kind: "image", "direction" or "unit"; see `extract.cache.keys`.

    Returns:
      64-bit words [n] in the order in which they were added; none if there are
      none of this kind.
    """
    parts = [np.empty(0, np.uint64)]
    for seq, entry in enumerate(self.entries, start=1):
      if entry.dataset == dataset and entry.key_kind == key_kind:
        # Keys were compared with their digests above, and not kept: they are
        # most of the file, and most commands need none.
        ((blob,),) = self.connection.execute(
          "SELECT keys FROM entry WHERE seq = ?", (seq,)
        )
        parts.append(np.frombuffer(blob, "<u8").astype(np.uint64, copy=False))
    return np.concatenate(parts)

  def add(
    self, entry: LedgerEntry, keys: UInt64[np.ndarray, " keys"] | None = None
  ) -> None:
    """Adds an entry, as of now, and for "rows" their keys beside it.

    It is in the file only when the transaction has ended without an error.

    Args:
      entry: without time and digest of keys, which are filled in here.
      keys: of the rows that the entry is about, 64-bit words [n]; PRIVATE. None
        for entries of another kind.
    """
    # The time is for people. The order of entries is that of the chain,
    # whatever a clock says.
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # Little-endian on every machine, since the digest is of these bytes.
    blob = None
    keys_sha256 = ""
    if keys is not None:
      blob = keys.astype("<u8").tobytes()
      keys_sha256 = sha256(blob)
    dated = msgspec.structs.replace(entry, time=now, keys_sha256=keys_sha256)
    body = msgspec.json.encode(dated).decode()
    self.entries.append(dated)
    self._digest = sha256(f"{self._digest}\n{body}".encode())
    seq = len(self.entries)
    self.connection.execute(
      "INSERT INTO entry VALUES (?, ?, ?, ?)", (seq, body, self._digest, blob)
    )
    self.connection.execute(
      "UPDATE last SET seq = ?, digest = ?", (seq, self._digest)
    )


def default_ledger() -> Path:
  """$ONESHOT_DP_LEDGER, or a file in the user's state folder.

  Raises:
    InputError: there is neither.
  """
  # One file for all data sets of a user, wherever a command is typed: what was
  # spent in a ledger that nobody names any more is not counted.
  chosen = os.environ.get("ONESHOT_DP_LEDGER")
  if chosen:
    return Path(chosen)
  home = os.environ.get("HOME", os.path.expanduser("~"))
  state_folder = os.environ.get("XDG_STATE_HOME", "")
  if not os.path.isabs(state_folder):
    state_folder = f"{home}/.local/state"
  if not home or not os.path.isabs(state_folder):
    raise InputError(
      f"HOME={home!a} is not a place for a ledger: name its file with --ledger,"
      " or in $ONESHOT_DP_LEDGER."
    )
  return Path(state_folder) / "oneshot-dp" / "ledger.sqlite"


def is_default_ledger(path: Path) -> bool:
  """Whether commands that name no ledger use this file."""
  try:
    return path == default_ledger()
  except InputError:  # there is none
    return False


def ledger_exists(path: Path) -> bool:
  """Whether a ledger's file is there.

  Raises:
    InputError: something other than a file is in its place.
  """
  try:
    is_file = stat.S_ISREG(path.stat().st_mode)
  except FileNotFoundError:
    return False
  except (OSError, ValueError) as error:
    raise _not_a_ledger(path, str(error)) from error
  if not is_file:
    raise _not_a_ledger(path, "it is not a file")
  return True


@contextlib.contextmanager
def transaction(
  path: Path, *, wait: float, write: bool = False, if_it_fails: str = ""
) -> Iterator[Transaction]:
  """Reads all entries at one moment; what the block adds is written whole.

  *Formal guarantees*: what was added is on the disk when the block has ended
  (journal_mode=DELETE, synchronous=EXTRA), or none of it is there. Of processes
  that write, one comes after the other (BEGIN IMMEDIATE), and each sees all
  that those before it added.

  Args:
    path: the file; to read one that does not exist is to read no entries.
    wait: seconds to wait for another process that writes.
    write: whether the block adds entries; makes the file if there is none.
    if_it_fails: the consequence of a failure, for the message, such as "nothing
      was charged".

  Raises:
    InputError: it is damaged, or not a ledger.
    RunError: another process writes for `wait` seconds; or the disk refuses.
  """
  if write and not ledger_exists(path):
    # Made in memory and written whole: an empty file is never a ledger.
    with contextlib.closing(_new_database()) as new:
      write_once(path.resolve(), new.serialize())
  try:
    with contextlib.closing(_connect(path, wait, write)) as connection:
      # The file may come from elsewhere: a view or trigger in its schema must
      # not call functions before the schema is compared with ours.
      connection.execute("PRAGMA trusted_schema = OFF")
      connection.execute("PRAGMA synchronous = EXTRA")
      _check_format(path, connection)
      connection.execute("PRAGMA journal_mode = DELETE")
      # IMMEDIATE takes the write lock before anything is read. Two processes
      # that read first, and write later, could both find that their charge fits
      # under the cap.
      connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
      if write:
        # A read-only file is found out by a write alone, and it is to be found
        # out now.
        connection.execute("UPDATE last SET seq = seq")
      yield Transaction(path, connection)
      # Reached only if the block ended without an error. Otherwise the
      # connection is closed within the transaction, which rolls it back.
      connection.commit()
  except sqlite3.Error as error:
    raise _readable_error(path, error, if_it_fails) from error


def damaged(path: Path, fault: str) -> InputError:
  """Returns the error for a ledger that is not whole.

  Args:
    path: the file.
    fault: what is wrong with it.
  """
  return InputError(
    f"the ledger {path} is damaged ({fault}): nothing is released until it is"
    " restored from a backup."
  )


def _not_a_ledger(path: Path, fault: str) -> InputError:
  return InputError(f"{path} cannot be a ledger: {fault}; choose another.")


def _connect(path: Path, wait: float, write: bool) -> sqlite3.Connection:
  """Opens the file; one that does not exist, and is to be read, has nothing.

  Nothing else in this process may open and close the file: on POSIX that would
  drop the locks that SQLite holds on it.
  """
  if not write and not ledger_exists(path):
    return _new_database()
  return sqlite3.connect(
    f"{path.resolve().as_uri()}?mode=rw",
    uri=True,
    timeout=wait,
    isolation_level=None,
  )


def _new_database() -> sqlite3.Connection:
  """A ledger without entries, in memory."""
  connection = sqlite3.connect(":memory:", isolation_level=None)
  for statement in _SCHEMA:
    connection.execute(statement)
  for name, value in _FORMAT.items():
    connection.execute(f"PRAGMA {name} = {value}")
  connection.execute("INSERT INTO last VALUES (0, ?)", (_FIRST_DIGEST,))
  return connection


def _check_format(path: Path, connection: sqlite3.Connection) -> None:
  """Refuses another program's database, and tables or triggers of others."""
  stored = {}
  for name in _FORMAT:
    stored[name] = connection.execute(f"PRAGMA {name}").fetchone()[0]
  schema = connection.execute("SELECT sql FROM sqlite_master ORDER BY name")
  expected_schema = [(statement,) for statement in _SCHEMA]
  if stored != _FORMAT or schema.fetchall() != expected_schema:
    raise damaged(path, "it is empty, or of another format or program")


def _readable_error(
  path: Path, error: sqlite3.Error, if_it_fails: str
) -> Exception:
  """Translates an error of SQLite."""
  # (Not every error of the module has a code.)
  code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
  if code in _DAMAGED:
    return damaged(path, str(error))
  if code in _BUSY:
    reason = "is busy: another process is writing to it; try again"
  else:
    reason = (
      f"cannot be read or written ({error}); fix the disk or the permissions"
    )
  if if_it_fails:
    reason += f"; {if_it_fails}"
  return RunError(f"the ledger {path} {reason}.")
