"""A run's results: paid for before noise is drawn, shown once, or not at all.

A run works in `.NAME.unfinished` beside its --out, which is its owner's alone
and locked while the run lives: charge → train → note the heads' digests in the
ledger → rename. A killed run is run again, and pays nothing.

*Formal guarantees*: before the ledger notes the heads, nobody sees anything
that was drawn, so to draw all of it anew is the first release, at the law of
one; it needs that no failure depends on the noise, and sizes do not. Once they
are noted, these bytes alone are shown, by this run or by the next. The ledger
notes heads for a charge once, so of two runs with one charge (on machines that
share no locks, say) the second ends before its heads are shown.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.files import disk_errors, sync
from oneshot_dp.extract.storage import is_url
from oneshot_dp.pipeline.ledger.entries import (
  ChargeRequest,
  ReleasedHead,
  sha256,
)
from oneshot_dp.pipeline.ledger.ledger import Ledger

WEIGHTS_FILE, RECEIPT_FILE = "head.safetensors", "receipt.json"


@contextlib.contextmanager
def deliver_once(
  out: Path,
  ledger: Ledger,
  bills: Sequence[ChargeRequest],
  *,
  asked: Mapping[str, Any],
  room: int = 1,
) -> Iterator[tuple[Path, list[str]]]:
  """Charges; the block trains; then notes what leaves, and shows it.

  The block writes all of it into the folder given, which only its owner sees:
  heads, with receipts that name the charges given. Without charges it has
  nothing to do: a killed run's heads are noted already. `asked` is all that
  makes it this run and no other, `room` the bytes that the disk must have,
  which is tried before the charge.

  Raises:
    InputError: something is at `out`, or another run is writing it; or the
      ledger refuses. Nothing is left behind, nothing was charged.
    RunError: the disk refuses.
  """
  with alone(out, for_next=True) as (place, whole):
    with disk_errors(out), (whole.parent / "room").open("wb") as file:
      os.posix_fallocate(file.fileno(), 0, room)
      os.unlink(file.name)
    heads = _heads_in(whole)  # of a killed run: noted, or never seen
    ids = ledger.charge(bills, place, asked, heads or None)
    of, noted = {left.charge for left in heads.values()}, ledger.heads()
    if heads.items() <= noted.items() and of and of <= {*ids}:
      yield whole, []
    else:
      heads = {}
      try:
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()  # in a folder of mode 0700, so that it has its final mode
        yield whole, ids
        with disk_errors(out):
          exposed = any(c.mu2 is None for bill in bills for c in bill.charges)
          _settle(whole, keep_from_others=exposed)
        heads = _heads_in(whole)
        ledger.deliver(ids, heads)
      except BaseException as error:
        if not heads or isinstance(error, InputError):  # they cannot be noted
          shutil.rmtree(whole, ignore_errors=True)
        if not isinstance(error, InputError | RunError | KeyboardInterrupt):
          raise
        raise type(error)(
          f"{str(error) or 'interrupted;'} {out} was not written; what was"
          f" charged to {ledger.path} stays charged, and the same command goes"
          " on without a new charge."
        ) from error
    with disk_errors(out):
      whole.rename(place)
    with contextlib.suppress(OSError):  # it is there, if not for a power cut
      sync(place.parent)


@contextlib.contextmanager
def alone(out: Path, for_next: bool = False) -> Iterator[tuple[Path, Path]]:
  """The place that `out` means, and one in a folder beside it to be renamed.

  What is not renamed is for the next run into this place, or is removed.
  """
  try:
    place = Path() if is_url(str(out)) else out.resolve()
  except (OSError, RuntimeError):  # a loop of links
    place = Path()
  if not place.name:
    raise InputError(f"{out} is no place on a disk; name another.")
  work = place.with_name(f".{place.name}.unfinished")
  with disk_errors(out):
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = _locked(work, out)
  try:
    if os.path.lexists(place):  # (perhaps of a run killed after that)
      raise InputError(f"{out} is there already; name another place.")
    if not for_next:
      shutil.rmtree(work / "whole", ignore_errors=True)  # of a killed one
    yield place, work / "whole"
  finally:
    if not (for_next and (work / "whole").exists()):  # the ledger knows it
      shutil.rmtree(work, ignore_errors=True)
    os.close(lock)


def _locked(work: Path, out: Path) -> int:
  """Makes the folder, and a lock of it that is there while it is open."""
  while True:
    work.mkdir(mode=0o700, exist_ok=True)
    if work.is_symlink() or work.stat().st_uid != os.geteuid():
      raise InputError(f"{work} is somebody else's; name another place.")
    with (
      contextlib.suppress(FileNotFoundError),  # it was just removed
      open(work / "lock", "ab") as file,
    ):
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        raise InputError(
          f"another run is writing {out}; wait for it, or name another place."
        ) from None
      if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
        return os.dup(file.fileno())


def _heads_in(folder: Path) -> dict[str, ReleasedHead]:
  """The heads in a folder, as the ledger knows them."""
  found = {}
  for weights in sorted(folder.rglob(WEIGHTS_FILE)):
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
      receipt = weights.with_name(RECEIPT_FILE).read_bytes()
      charge = json.loads(receipt)["stated"]["charge"]
      found[sha256(weights.read_bytes())] = ReleasedHead(
        charge, sha256(receipt)
      )
  return found


def _settle(directory: Path, *, keep_from_others: bool) -> None:
  """Puts all of it on the disk; what is not for others gets 0700 and 0600."""
  for folder, _, names in os.walk(directory, topdown=False):
    for path in *(Path(folder, name) for name in names), Path(folder):
      if keep_from_others:
        path.chmod(0o700 if path.is_dir() else 0o600)
      sync(path)
