"""An append-only file of JSON lines that outlives kills and shows tampering.

PATH        one JSON object per line; `entry` is the SHA-256 of the line, and
            `previous` that of the line before
PATH.head   how many lines there are, and the last one's `entry`

A line is added under an exclusive lock, in this order. The head comes last, and
a head that is late is mended before the next line is begun; so whatever a kill
leaves behind is one of these states, and everything else is tampering:

    killed before …               lines      head     what the next use does
    1 head of the empty file      0          none     nothing was added
    2 a torn line is cut off, a
      late head is mended, the
      folder is flushed           as below   as below does it again
    3 the line is written         n          n        nothing was added
      (within)                    n, a piece n        cuts the piece off
    4 the line is flushed         n + 1      n        counts the line, and
    5 the head's new version is                       writes the head for it
      written, flushed, renamed   n + 1      n
    6 the folder is flushed       n + 1      n + 1    counts the line
    7 `append` returns            n + 1      n + 1    counts the line

Whoever waits for `append` before acting has never acted without a line. (A line
of which a power cut in step 4 kept the end alone is reported as damage.)

What the files alone cannot show is that somebody replaced both with a pair that
fits, such as an older copy: keep the names of entries elsewhere as well.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.storage.durable_files import sync
from oneshot_dp.pipeline.ledger.locks import exclusive, wait_for, writing

_FIRST = "0" * 64
_checked: dict[tuple[Path, bytes], tuple[bytes, list[dict[str, Any]]]] = {}
"""Whole lines that this process found sound, and their entries."""


class ChainedFile:
  """A file of entries, each naming the one before.

  Formal guarantees: see the table of the module. Processes take turns; entries
  that were edited, reordered, repeated or dropped, at the end too, are found at
  the next use. Both files are created with mode 0600, their folder with 0700.

  `identity` are facts that every entry starts with; entries of another are not
  accepted.
  """

  def __init__(self, path: Path, identity: dict[str, Any]):
    self.path = path
    self.head_path = path.with_name(path.name + ".head")
    # One name for all: the lock leaves one writer, a kill leaves one file.
    self.temporary_head = path.with_name(path.name + ".head.tmp")
    self.identity = identity

  def entries(self) -> list[dict[str, Any]]:
    """All entries, oldest first, after checking them and the head.

    Raises:
      InputError: the file was damaged or tampered with.
      RunError: it cannot be read.
    """
    try:
      return self._read()
    except OSError as error:
      raise RunError(
        f"The ledger {self.path} cannot be read: {error.strerror}."
      ) from error

  @contextlib.contextmanager
  def locked(self) -> Iterator["LockedChain"]:
    """The checked entries, with nobody else reading or writing until the end.

    Raises:
      InputError: the file was damaged or tampered with.
      RunError: it cannot be written.
    """
    with writing(self.path), exclusive(self.path) as descriptor:
      yield LockedChain(self, descriptor)

  def _read(self) -> list[dict[str, Any]]:
    for _ in range(2):
      try:
        with self.path.open("rb") as file:
          wait_for(file.fileno(), self.path, fcntl.LOCK_SH)
          return self.check(file.read())
      except (FileNotFoundError, NotADirectoryError):
        # The file is made before its head: with a head it is there by now.
        if not self.head_path.exists():
          return []
    return self.check(b"")

  def check(self, content: bytes) -> list[dict[str, Any]]:
    """The entries of a content, which the caller has locked."""
    key = self.path, canonical(self.identity)
    before, known = _checked.get(key, (b"", []))
    if not content.startswith(before):
      before, known = b"", []
    entries = known.copy()
    previous = known[-1]["entry"] if known else _FIRST
    whole = content.rfind(b"\n") + 1
    lines = content[len(before) : whole].splitlines()
    for number, line in enumerate(lines, start=len(known) + 1):
      entry = self._sound_entry(line, previous)
      if entry is None:
        raise self._tampering(
          f", line {number}: the entry was damaged or edited"
        )
      entries.append(entry)
      previous = entry["entry"]
    self._check_head(entries, content)
    _checked[key] = content[:whole], entries.copy()
    return entries

  def _check_head(self, entries: list[dict[str, Any]], content: bytes) -> None:
    head = self.read_head()
    if head is None:
      if content:
        raise self._tampering(f": its {self.head_path.name} is missing")
      return
    count, last = head
    if len(entries) < count:
      raise self._tampering(
        f": {count - len(entries)} of {count} entries are missing from its end"
      )
    named = entries[count - 1]["entry"] if count else _FIRST
    if len(entries) > count + 1 or named != last:
      raise self._tampering(
        f": its {len(entries)} entries are not those that"
        f" {self.head_path.name} is about"
      )

  def _sound_entry(self, line: bytes, previous: str) -> dict[str, Any] | None:
    """The entry of a line; None unless it was written after `previous`."""
    try:
      try:  # Five times as fast; what it does not read, NaN, say, json does.
        entry = msgspec.json.decode(line)
      except msgspec.DecodeError:
        entry = json.loads(line)
      name = entry["entry"]
      # As `canonical` wrote it: to write it again takes longer than all else.
      unsigned = line.replace(b'"entry":"%s",' % name.encode(), b"", 1)
      sound = (
        entry["previous"] == previous
        and hashlib.sha256(unsigned).hexdigest() == name
        and self.identity.items() <= entry.items()
      )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
      return None
    return entry if sound else None

  def read_head(self) -> tuple[int, str] | None:
    """How many entries were finished, and the last one's name."""
    try:
      head = json.loads(self.head_path.read_bytes())
      count, last = head["count"], head["entry"]
      if not (isinstance(count, int) and count >= 0 and isinstance(last, str)):
        raise ValueError("not a head")
    except FileNotFoundError:
      return None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
      raise self._tampering(
        f": its {self.head_path.name} was damaged or edited"
      ) from error
    return count, last

  def write_head(self, entries: list[dict[str, Any]]) -> None:
    """Replaces the head by that of `entries`; its name is not synced yet."""
    name = entries[-1]["entry"] if entries else _FIRST
    head = canonical({"count": len(entries), "entry": name}) + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
      descriptor = os.open(self.temporary_head, flags, 0o600)
      try:
        _write_all(descriptor, head)
        os.fsync(descriptor)
      finally:
        os.close(descriptor)
      os.replace(self.temporary_head, self.head_path)
    except OSError:
      with contextlib.suppress(OSError):
        self.temporary_head.unlink(missing_ok=True)
      raise

  def _tampering(self, what: str) -> InputError:
    return InputError(
      f"{self.path}{what}; restore the ledger from a backup, for what was spent"
      " is unknown."
    )


class LockedChain:
  """The entries of a `ChainedFile` while nobody else can add any."""

  def __init__(self, file: ChainedFile, descriptor: int):
    self._file = file
    self._descriptor = descriptor
    with os.fdopen(descriptor, "rb", closefd=False) as reader:
      self.entries = file.check(content := reader.read())
    self._end = content.rfind(b"\n") + 1
    if len(content) > self._end:
      os.ftruncate(descriptor, self._end)
    head = file.read_head()
    if head is None or head[0] < len(self.entries):
      # Its line may not be on the disk yet, and the head must not be sooner.
      os.fsync(descriptor)
      file.write_head(self.entries)
    # So that no line to come is lost with the name of its file.
    sync(file.path.parent)

  def append(self, facts: dict[str, Any]) -> str:
    """Adds an entry of anything in JSON; returns its name when it is on disk.

    The SHA-256 of the entry: it says nothing of what is in it, since 256 random
    bits are, and never leave the file.
    """
    previous = self.entries[-1]["entry"] if self.entries else _FIRST
    # The name of an entry is published in receipts, and all else in it can be
    # tried, the digest of private rows too: without the nonce the name would
    # tell whoever tries the right rows that they are right.
    nonce = {"nonce": secrets.token_hex(32)}
    linked = self._file.identity | facts | nonce | {"previous": previous}
    linked["entry"] = hashlib.sha256(canonical(linked)).hexdigest()
    line = canonical(linked) + b"\n"
    try:
      os.lseek(self._descriptor, self._end, os.SEEK_SET)
      _write_all(self._descriptor, line)
      os.fsync(self._descriptor)
      self._file.write_head([*self.entries, linked])
    except OSError as error:
      self._undo(error)
      raise
    with contextlib.suppress(OSError):  # the line is there, and a head is late
      sync(self._file.path.parent)
    self._end += len(line)
    self.entries.append(linked)
    return linked["entry"]

  def take_back(self) -> None:
    """Drops the last entry, made under this lock; OSError if it stays."""
    # The head first: a kill in between leaves one that is late.
    self._file.write_head(self.entries[:-1])
    self._end -= len(canonical(self.entries.pop())) + 1
    os.ftruncate(self._descriptor, self._end)
    os.fsync(self._descriptor)

  def check_writable(self) -> None:
    """Tries what else `append` needs of the disk; OSError if it has it not."""
    temporary = self._file.temporary_head
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600))
    temporary.unlink()

  def _undo(self, error: OSError) -> None:
    """Takes a line back whose head could not be written.

    Raises:
      RunError: it may stay, and so be charged for nothing.
    """
    try:
      head = self._file.read_head()
      if head is None or head[0] <= len(self.entries):
        os.ftruncate(self._descriptor, self._end)
        os.fsync(self._descriptor)
        return
    except (OSError, InputError):
      pass
    raise RunError(
      f"The ledger {self._file.path} was charged, as far as can be told, and"
      f" then could not be written ({error.strerror}): nothing is released for"
      " it; mend the disk, and see `oneshot-dp budget`."
    ) from error


def canonical(value: dict[str, Any]) -> bytes:
  """The one spelling of a JSON object that is hashed."""
  return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _write_all(descriptor: int, content: bytes) -> None:
  """A disk that is nearly full takes a part, then complains."""
  while content:
    content = content[os.write(descriptor, content) :]
