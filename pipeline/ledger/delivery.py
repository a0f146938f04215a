"""A run's results: charged before noise is drawn, shown once, or not at all.

The order of a run is the guarantee:

    lock → try the disk → charge → train → sync → note the heads → rename

A killed run is run again, and pays nothing. Into a bucket it is the same with
the objects put in place of the rename (`bucket_output`).

*Formal guarantees*: before the ledger notes the heads, nobody has seen anything
that was drawn, so to draw all of it anew is the first release, at the law of
one; this needs that no failure depends on the noise. Once they are noted, these
very bytes are shown, by this run or by the next. The ledger notes heads for a
charge once, so of two runs with one charge (on machines that share no locks,
say) the second ends before its heads are shown.
"""

import contextlib
import enum
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract import places
from oneshot_dp.extract.files import disk_errors, sync, sync_tree
from oneshot_dp.pipeline.ledger.bucket_output import BucketOutput, is_half_put
from oneshot_dp.pipeline.ledger.entries import (
  ChargeRequest,
  ReleasedHead,
  sha256,
)
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.staged_output import DiskOutput, StagedOutput

WEIGHTS_FILE = "head.safetensors"
RECEIPT_FILE = "receipt.json"
_MOST_WEIGHTS_BYTES = 1 << 34  # `train` refuses to make so many
_LEDGER_BYTES_OF_CHARGE = 1 << 16
"""The most bytes of a charge and its note in the ledger, without keys."""


def output_at(out: Path, ledger: Path | None = None) -> StagedOutput:
  """Returns the output at a place on a disk or in a bucket.

  Args:
    out: the folder that is to be shown.
    ledger: the file of the ledger that notes what is shown, so that a later
      process can resume with what is staged; None if there is none.
  """
  if isinstance(out, places.Url):
    return BucketOutput(out, ledger)
  return DiskOutput(out, resumable=ledger is not None)


class _Stage(enum.Enum):
  """How far a delivery is."""

  CLOSED = "nothing was charged"
  CHARGED = "charged, and nothing was noted"
  NOTING = "the ledger may have noted the heads, or not"
  NOTED = "the ledger has noted the heads"


class Delivery:
  """The results of one run, from the charge to the rename into view.

      with Delivery(out, ledger, requests, identity=identity) as delivery:
        delivery.open()
        if not delivery.already_done:
          ...  # train, and write into delivery.folder
        delivery.commit()

  When the block ends early, nothing is shown. What was charged stays charged,
  and the same run opened again resumes without a new charge. A delivery that
  was never opened does nothing.

  *Formal guarantees*: those of this module, where everything that shows what
  was drawn is written into `folder`, and nowhere else before `commit`.

  Attributes:
    folder: where the results are to be written; only its owner sees it. Known
      once it is open.
    charge_ids: the ids of the charges, in the order of the requests; empty if
      the run is already done.
    already_done: whether a killed run has written and noted these results, so
      that `commit` alone is left to do.
  """

  def __init__(
    self,
    out: Path,
    ledger: Ledger,
    requests: Sequence[ChargeRequest],
    *,
    identity: Mapping[str, Any],
    room: int = 1,
  ):
    """Describes a run; nothing happens before `open`.

    Args:
      out: the folder to be shown, which must not exist; on a disk, or a URL.
      ledger: what is charged.
      requests: all that the run costs.
      identity: everything that makes it this run and no other; JSON, PRIVATE.
      room: bytes that the disk must have, tried before the charge.
    """
    self._out = out
    self._ledger = ledger
    self._requests = requests
    self._identity = identity
    self._room = room
    self._output = output_at(out, ledger.path)
    self._stage = _Stage.CLOSED
    self.charge_ids: list[str] = []
    self.already_done = False

  @property
  def folder(self) -> Path:
    """Where the results are written before they are shown."""
    return self._output.staging

  def preview(self) -> list[str]:
    """Does what `open` does, up to the charge, and asks what that would be.

    Returns:
      The charges of this very run, if it was stopped and would resume without a
      new charge; empty if it would be charged.

    Raises:
      InputError, RunError: as `open`; nothing was charged.
    """
    kept = self._take_place()
    return self._ledger.preview(
      self._requests, self._output.path, self._identity, kept or None
    )

  def open(self) -> None:
    """Takes the place and charges the run, or finds it charged already.

    Raises:
      InputError: something is at `out`, another run is writing it, the
        credentials do not allow to, or the ledger refuses, or it has lost the
        note of what is in view. Nothing was charged.
      RunError: the disk or the store refuses.
    """
    kept = self._take_place()
    # When this returns, the charge is on the disk, and noise may be drawn. What
    # can fail was tried before: a failure from here on costs a budget, until
    # the same run is tried again.
    ids = self._ledger.charge(
      self._requests, self._output.path, self._identity, kept or None
    )
    self._stage = _Stage.CHARGED
    if self._were_noted(kept, ids):
      self.already_done = True
      self._stage = _Stage.NOTED
      return
    self.charge_ids = ids
    shutil.rmtree(self.folder, ignore_errors=True)
    # Its parent has mode 0700, so this one may have its final mode.
    self.folder.mkdir()

  def commit(self) -> None:
    """Notes the heads in the ledger, and only then shows the folder.

    Raises:
      InputError: something was delivered for these charges before.
      RunError: the ledger, the disk or the store refuses.
    """
    if not self.already_done:
      self._settle_on_disk()
      heads = find_heads(self.folder)
      if heads:
        # If the ledger fails from here on, it may have noted the heads all the
        # same: the files must stay until a later run has asked it.
        self._stage = _Stage.NOTING
      self._ledger.deliver(self.charge_ids, heads)
      self._stage = _Stage.NOTED
    self._output.publish()

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    # Staged files are removed where they cannot have been noted: before the
    # note was begun, or because the ledger refused it.
    cannot_be_noted = self._stage is _Stage.CHARGED
    if self._stage is _Stage.NOTING:
      cannot_be_noted = isinstance(error, InputError)
    if cannot_be_noted:
      shutil.rmtree(self.folder, ignore_errors=True)
    self._output.unlock()
    # An error that is told in one line says what became of the charge, too.
    is_charged = self._stage in (_Stage.CHARGED, _Stage.NOTING)
    is_told = isinstance(error, InputError | RunError | KeyboardInterrupt)
    if is_charged and is_told:
      reason = str(error) or "interrupted;"
      raise type(error)(
        f"{reason} {self._out} was not written; what was charged to"
        f" {self._ledger.path} stays charged, and the same command resumes"
        " without a new charge."
      ) from error

  def _take_place(self) -> dict[str, ReleasedHead]:
    """Locks the place and tries it; returns heads of a killed run."""
    # With the lock, no other process of this machine changes what is found
    # here.
    self._output.lock()
    self._try_the_room()
    # Heads of a killed run: either the ledger has noted them, and they are to
    # be shown; or nobody has seen them, and they are made anew.
    kept = find_heads(self.folder)
    self._refuse_shown_heads_without_note(kept)
    return kept

  def _try_the_room(self) -> None:
    """Allocates as many bytes as the run needs, and gives them back."""
    # Sizes of tables and pictures depend on the draw a little. On a disk that
    # is nearly full some draws would fail and others not, and a failed run is
    # drawn again: the disk would choose among draws (PRIVACY.md, section 5).
    # The ledger may be on the same disk, and grows before the draw.
    room = self._room + _ledger_bytes(self._requests)
    room_file = self.folder.parent / "room"
    with disk_errors(self.folder.parent), room_file.open("wb") as file:
      os.posix_fallocate(file.fileno(), 0, room)
      room_file.unlink()

  def _refuse_shown_heads_without_note(
    self, kept: Mapping[str, ReleasedHead]
  ) -> None:
    """Refuses to draw again what is partly in view already."""
    if not self._output.is_half_shown:
      return
    # Nothing is put before the note. So the ledger has lost it, as an older
    # copy has; charged again, or resumed, the run would release other heads for
    # what these have spent.
    charge_ids = self._ledger.preview(
      self._requests, self._output.path, self._identity, kept
    )
    if not self._were_noted(kept, charge_ids):
      raise InputError(
        f"{self._out} has objects of a run that the ledger {self._ledger.path}"
        " has not noted, or whose files beside it are damaged: put the newest"
        " ledger back, and these files; else choose another place."
      )

  def _were_noted(
    self, kept: Mapping[str, ReleasedHead], charge_ids: Sequence[str]
  ) -> bool:
    """Whether the ledger noted all these heads, for these charges."""
    if not kept:
      return False
    paid_by = {head.charge for head in kept.values()}
    noted = self._ledger.heads()
    return paid_by <= set(charge_ids) and kept.items() <= noted.items()

  def _settle_on_disk(self) -> None:
    """Syncs all files; what is NOT PRIVATE becomes its owner's alone."""
    is_exposed = any(
      charge.mu_squared is None
      for request in self._requests
      for charge in request.charges
    )
    with disk_errors(self.folder):
      if is_exposed:
        for folder, _, names in os.walk(self.folder):
          Path(folder).chmod(0o700)
          for name in names:
            Path(folder, name).chmod(0o600)
      sync_tree(self.folder)
      # What is noted is to be found again: by its hidden folder's name as well.
      sync(self.folder.parent)
      sync(self.folder.parent.parent)


def _ledger_bytes(requests: Sequence[ChargeRequest]) -> int:
  """The bytes by which charges and their note make the ledger grow at most.

  SQLite's journal, which is there until a transaction ends, is counted as well:
  hence twice the bytes of all keys.
  """
  num_bytes = 0
  for request in requests:
    num_bytes += _LEDGER_BYTES_OF_CHARGE * len(request.charges)
    for keys in request.keys.values():
      num_bytes += 2 * keys.nbytes
  return num_bytes


def is_delivered(
  out: Path, ledger: Ledger, identity: Mapping[str, Any], last_file: str
) -> bool:
  """Whether this very run was charged before, and its results are in place.

  The ledger must know all heads that are at the place of the results, and the
  charges of these must be of a run with the same identity.

  Args:
    out: the folder of the results; on a disk, or a URL.
    ledger: what was charged.
    identity: everything that makes it this run and no other; JSON, PRIVATE.
    last_file: the file that is put last into a bucket.

  Raises:
    RunError: the store does not answer.
  """
  if not _is_in_place(out, ledger, last_file):
    return False
  # By bytes, not by names: the ledger knows the SHA-256 of the weights that it
  # released, so heads that were exchanged or edited are another run's.
  shown = find_heads(out)
  noted = ledger.heads()
  if not shown or not shown.items() <= noted.items():
    return False
  paid_by = {head.charge for head in shown.values()}
  wanted = json.loads(json.dumps(identity))
  charges = {}
  for entry in ledger.entries():
    if entry.id in paid_by:
      charges[entry.id] = entry
  if charges.keys() != paid_by:
    return False
  for charge in charges.values():
    for name, value in wanted.items():
      if charge.identity.get(name) != value:
        return False
  return True


def _is_in_place(out: Path, ledger: Ledger, last_file: str) -> bool:
  """Whether something whole is at the place of the results."""
  if not isinstance(out, places.Url):
    return out.is_dir()
  # Of a run that was killed the delivery puts the rest, or finds none.
  if is_half_put(out, ledger.path):
    return False
  return places.exists(out / last_file)


def find_heads(folder: Path) -> dict[str, ReleasedHead]:
  """The heads below a folder, as the ledger notes them: by weights' SHA-256.

  A folder whose files are damaged has no head.

  Args:
    folder: on a disk or in a bucket; it may not exist.

  Raises:
    RunError: the store does not answer.
  """
  # A killed run may have left files without a receipt, or cut short. These are
  # no heads: the run that finds them makes all heads anew.
  heads = {}
  for file in places.files_below(folder):
    if file.name != WEIGHTS_FILE:
      continue
    with contextlib.suppress(InputError, ValueError, LookupError, TypeError):
      receipt = places.read(file.with_name(RECEIPT_FILE))
      charge_id = json.loads(receipt)["stated"]["charge"]
      weights_sha256 = sha256(places.read(file, _MOST_WEIGHTS_BYTES))
      heads[weights_sha256] = ReleasedHead(charge_id, sha256(receipt))
  return heads
