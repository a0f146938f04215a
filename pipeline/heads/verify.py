"""Verifies that a head is what its receipt says, and that it was charged."""

import dataclasses
import enum
from pathlib import Path

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import places
from oneshot_dp.extract.cache.read import FeatureCache
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.pipeline.heads.head_folder import SavedHead, read_head
from oneshot_dp.pipeline.heads.receipt import NOT_PRIVATE
from oneshot_dp.pipeline.ledger.delivery import WEIGHTS_FILE
from oneshot_dp.pipeline.ledger.entries import ReleasedHead, sha256, spent
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.ledger.store import ledger_exists

_MOST_WEIGHTS_BYTES = 1 << 34  # `train` refuses to make so many
_FILES_CANNOT_TELL = (
  "nobody can tell from files alone that weights contain noise"
)


class LedgerStatus(enum.Enum):
  """What a ledger says of a head's weights."""

  RECORDED = "released for a charge that covers what the receipt states"
  NOT_RECORDED = "not released for any such charge"
  NO_LEDGER = "there is no ledger to ask"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """What was found about a head.

  Attributes:
    status: what the ledger says.
    findings: for people; what the ledger says comes first.
    faults: what is wrong with the files, one line each.
  """

  status: LedgerStatus
  findings: tuple[str, ...]
  faults: tuple[str, ...]

  @property
  def vouched(self) -> bool | None:
    """The status as `--json` has it; None where there is no ledger."""
    if self.status is LedgerStatus.NO_LEDGER:
      return None
    return self.status is LedgerStatus.RECORDED


def verify_head(path: Path, ledger: Ledger) -> Verdict:
  """Asks the ledger about a head, and computes what its receipt claims anew.

  That there is noise in the weights at all follows from nothing in their files:
  only the ledger knows which bytes were released for a charge.

  Args:
    path: the head's folder.
    ledger: the ledger that was charged; its file may not exist.

  Returns:
    What was found.

  Raises:
    InputError: there is no head, or the ledger is damaged.
  """
  try:
    saved = read_head(path)
  except InputError as error:
    # The ledger is asked even where the files are damaged.
    weights = places.read(path / WEIGHTS_FILE, _MOST_WEIGHTS_BYTES)
    return _judge(None, sha256(weights), ledger, (str(error),))
  return verify_saved_head(saved, ledger)


def verify_saved_head(saved: SavedHead, ledger: Ledger) -> Verdict:
  """Verifies a head that was read already; see `verify_head`.

  Whoever uses a head afterwards should verify the very bytes that were read:
  its files may be exchanged between two reads.

  Args:
    saved: the head.
    ledger: the ledger that was charged; its file may not exist.

  Returns:
    What was found.
  """
  # `read_head` compared the digest with the very bytes that it parsed.
  return _judge(saved, saved.stated["weights_sha256"], ledger, ())


def _judge(
  saved: SavedHead | None,
  weights_sha256: str,
  ledger: Ledger,
  faults: tuple[str, ...],
) -> Verdict:
  """Asks the ledger about weights, and about the head if it could be read."""
  # A missing ledger says nothing about the head, unlike one that does not know
  # it.
  if ledger_exists(ledger.path):
    released = ledger.heads().get(weights_sha256)
    difference = _difference_to_ledger(saved, ledger, released)
    status = LedgerStatus.RECORDED
    if difference:
      status = LedgerStatus.NOT_RECORDED
  else:
    difference = ""
    status = LedgerStatus.NO_LEDGER
  findings = [_ledger_finding(status, ledger, difference)]
  if saved is not None:
    findings += _receipt_findings(saved)
  return Verdict(status=status, findings=tuple(findings), faults=faults)


def earlier_head(
  path: Path, ledger: Ledger, cache: FeatureCache, delta: float
) -> SavedHead:
  """Reads and verifies a head to continue from.

  Args:
    path: the head's folder.
    ledger: the ledger that it was charged to.
    cache: the rows, which must be those that it was trained on.
    delta: δ, which must be the head's.

  Returns:
    The head; its μ² is what was charged for it.

  Raises:
    InputError: it is another's, or edited; the ledger does not know its charge
      and its bytes; it was trained on other rows or at another δ; or it is NOT
      PRIVATE.
  """
  saved = read_head(path)
  verdict = verify_saved_head(saved, ledger)
  # The head, and those that it continues from: their charges together are what
  # its releases cost.
  paid = ledger.paid(saved.stated["charge"])
  # The cache's fingerprint is of public metadata, and another cache may share
  # it. The private digest is of the rows, and only the ledger has it.
  trained_on = ""
  if paid:
    trained_on = paid[0].identity.get("private_digests", [""])[0]
  if verdict.status is not LedgerStatus.RECORDED:
    reason = verdict.findings[0]
  else:
    reason = _difference_to_request(saved, cache, delta)
    if not reason and trained_on != cache.private_digest:
      reason = f"it was trained on other rows than {cache.name} has"
  if reason:
    raise InputError(f"cannot continue from {path}: {reason}.")
  # The σ of its releases were rounded up, so that what was charged for it alone
  # is a hair more than follows from its receipt. With the rest it adds up to
  # the larger budget, which may be the cap.
  trained = saved.trained
  charged = float(spent(paid))
  if charged <= (trained.mu_squared or 0.0) * (1 + 1e-9):
    trained = dataclasses.replace(trained, mu_squared=charged)
  return dataclasses.replace(saved, trained=trained)


def _difference_to_ledger(
  saved: SavedHead | None, ledger: Ledger, released: ReleasedHead | None
) -> str:
  """Says how a head differs from what was released and paid for; "" if not.

  `saved` is None where the head's files are damaged.
  """
  # The ledger noted both digests: weights that were paid for cannot be shown
  # with a receipt that promises more.
  if released is None:
    return "these weights were not released for any of its charges"
  if saved is None:
    return "these weights were released, but a file beside them is damaged"
  if saved.receipt_sha256 != released.receipt_sha256:
    return "these weights were released, but with another receipt"
  # What is NOT PRIVATE has no cost: it must be in the ledger all the same.
  cost = 0.0
  if saved.trained.private:
    cost = saved.receipt["follows"]["mu_squared"]
  paid = ledger.paid(released.charge)
  for charge in paid:
    is_same_data = charge.dataset == saved.stated["dataset"]
    is_same_unit = charge.unit == saved.stated["privacy_unit"]
    if not (is_same_data and is_same_unit):
      return "the charge is of another data set or privacy unit"
  if spent(paid) < cost:
    return "less was charged for these rows than the head cost"
  return ""


def _difference_to_request(
  saved: SavedHead, cache: FeatureCache, delta: float
) -> str:
  """Says why this run cannot continue from a head; "" if it can."""
  rows = f"it was trained with --rows {saved.stated['rows']!a}; pass the same"
  if not saved.stated["rows"]:
    rows = "it was trained on all rows; leave --rows out"
  expected = {
    "cache_fingerprint": (cache.info.fingerprint, "it is of another cache"),
    "private": (True, f"it is {NOT_PRIVATE}"),
    "rows": (str(cache.part), rows),
    "delta": (
      delta,
      f"its delta is {saved.stated['delta']}; pass the same --delta",
    ),
  }
  for name, (value, reason) in expected.items():
    if saved.stated[name] != value:
      return reason
  return ""


def _ledger_finding(
  status: LedgerStatus, ledger: Ledger, difference: str
) -> str:
  if status is LedgerStatus.RECORDED:
    return f"these weights match a charge in {ledger.path}"
  if status is LedgerStatus.NO_LEDGER:
    return (
      f"NOT VERIFIED: the ledger {ledger.path} does not exist;"
      f" {_FILES_CANNOT_TELL}"
    )
  return f"NOT VERIFIED by {ledger.path}: {difference}; {_FILES_CANNOT_TELL}"


def _guarantee_of(saved: SavedHead) -> str:
  if not saved.trained.private:
    return NOT_PRIVATE
  epsilon = format_rounded_up(saved.receipt["follows"]["epsilon"])
  delta = format_rounded_up(saved.stated["delta"])
  return f"epsilon {epsilon} at delta {delta}"


def _receipt_findings(saved: SavedHead) -> list[str]:
  findings = ["the files agree: all numbers follow from the stated noise"]
  if not saved.trained.private:
    findings.append(f"this head is {NOT_PRIVATE}")
  if saved.has_edited_card:
    findings.append(
      "note: README.md is not as it was written after training; what counts"
      f" is the receipt, which states {_guarantee_of(saved)}"
    )
  if saved.stated["charge"] is None:
    findings.append(
      "no ledger was charged for it: nobody counts what else was released"
    )
  return findings
