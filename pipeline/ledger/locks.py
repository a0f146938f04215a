"""Locks of ledgers, and what is said where one cannot be had or written."""

import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from oneshot_dp.configs.errors import RunError

_PATIENCE = 2.0
"""Seconds; then it is said who is waited for."""


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[int]:
  """Opens a file that no other process has, made with its folder if need be."""
  with writing(path):
    # Whatever the umask, and not the last folder alone.
    for folder in (*reversed(path.parent.parents), path.parent):
      if not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
  try:
    with writing(path):
      wait_for(descriptor, path, fcntl.LOCK_EX)
    yield descriptor
  finally:
    with contextlib.suppress(OSError):  # what was synced stays
      os.close(descriptor)


def wait_for(descriptor: int, path: Path, kind: int) -> None:
  """Takes a lock; says who has it where that takes longer than usual."""
  patience = time.monotonic() + _PATIENCE
  while time.monotonic() < patience:
    try:
      return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
      time.sleep(0.02)
  print(f"waiting for {path}, which {_holder(descriptor)}", file=sys.stderr)
  return fcntl.flock(descriptor, kind)


def _holder(descriptor: int) -> str:
  inode = f":{os.fstat(descriptor).st_ino}"
  with contextlib.suppress(OSError):
    for line in Path("/proc/locks").read_text().splitlines():
      words = line.split()
      if "->" not in words and "FLOCK" in words and words[5].endswith(inode):
        return f"process {words[4]} holds"
  return "another process holds"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
  """Says in one line that what the disk refuses is a ledger."""
  try:
    yield
  except OSError as error:
    raise RunError(
      f"The ledger {path} cannot be written ({error.strerror}), so nothing is"
      " released, nor charged for it; mend the disk or the permissions, then"
      " run the same command again."
    ) from error
