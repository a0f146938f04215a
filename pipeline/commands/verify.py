"""`oneshot-dp verify`."""

import dataclasses
import os
from pathlib import Path
from typing import ClassVar

from oneshot_dp.configs.errors import InputError, RunError, format_count
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import LEDGER, CommandFlags, Flag

_RUN_FILE = "results.json"
_HEAD_FILES = ("receipt.json", "head.safetensors")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Check a cache (every byte and row), or a head and its charge.

  A receipt's numbers are computed again, weights and card are compared with it,
  and the ledger is asked whether these very weights were charged. Exit status 1
  if anything is wrong, if the ledger does not know the head, or if there is no
  ledger. A card that was edited is noted, and is no fault.
  """

  EXAMPLES: ClassVar = (
    "oneshot-dp verify heads/2",
    "oneshot-dp verify caches/train",
  )

  path: str = Flag(
    form="PATH",
    positional=True,
    help="Folder of a cache, of a head, or of a sweep's results.",
  ).required()
  ledger: Path | None = LEDGER.default(None)


def run(flags: Flags) -> Answer:
  """Checks the cache or the head."""
  from oneshot_dp.extract import places

  folder = places.parse_place(flags.path)
  for name in _HEAD_FILES:
    if places.exists(folder / name):
      return _verify_head(flags, folder)
  if places.exists(folder / _RUN_FILE):
    return _verify_run(flags, folder)
  return _verify_cache(flags)


def _verify_head(flags: Flags, folder: Path) -> Answer:
  from oneshot_dp.pipeline.heads.verify import LedgerStatus, verify_head
  from oneshot_dp.pipeline.ledger.ledger import open_existing_ledger

  verdict = verify_head(folder, open_existing_ledger(flags.ledger))
  failure = None
  if verdict.faults:
    failure = RunError(
      f"{flags.path}: {format_count(len(verdict.faults), 'fault')} found."
    )
  # What the ledger says weighs more than faults of files: without it nobody can
  # tell that there is noise at all. So its failures replace the one above.
  if verdict.status is LedgerStatus.NO_LEDGER:
    failure = RunError(
      f"{flags.path} is not verified: no ledger was found; name the one that"
      " was charged with --ledger."
    )
  if verdict.status is LedgerStatus.NOT_RECORDED:
    failure = RunError(f"{flags.path} is not verified by the ledger.")
  return _answer(
    flags, "head", verdict.vouched, verdict.findings, verdict.faults, failure
  )


def _verify_run(flags: Flags, folder: Path) -> Answer:
  """Checks the results of a sweep, and each of its heads as if alone."""
  from oneshot_dp.pipeline.heads.verify import LedgerStatus, verify_head
  from oneshot_dp.pipeline.ledger.ledger import open_existing_ledger
  from oneshot_dp.pipeline.report.saved_run import read_run

  ledger = open_existing_ledger(flags.ledger)
  findings = []
  faults = []
  # One head that the ledger does not know is enough: a run is published as a
  # whole.
  statuses = set()
  rows = read_run(folder).rows
  for row in rows:
    verdict = verify_head(folder / row.path, ledger)
    findings += [f"{row.path}: {finding}" for finding in verdict.findings]
    faults += [f"{row.path}: {fault}" for fault in verdict.faults]
    statuses.add(verdict.status)
  # So is one that nobody asked about.
  named = [row.path for row in rows]
  faults += [
    f"{path}: a head that {_RUN_FILE} does not name"
    for path in _heads_below(folder)
    if path not in named
  ]
  failure = None
  if faults:
    failure = RunError(
      f"{flags.path}: {format_count(len(faults), 'fault')} found."
    )
  all_recorded = statuses == {LedgerStatus.RECORDED}
  if all_recorded and not faults:
    findings.insert(0, f"all {len(rows)} heads are in the ledger")
  if not all_recorded:
    failure = RunError(f"{flags.path} has heads that are not verified.")
  vouched = None if LedgerStatus.NO_LEDGER in statuses else all_recorded
  return _answer(flags, "run", vouched, tuple(findings), tuple(faults), failure)


def _heads_below(folder: Path) -> list[str]:
  """The folders of all heads of a run, relative to it."""
  from oneshot_dp.extract import places
  from oneshot_dp.pipeline.ledger.delivery import WEIGHTS_FILE

  paths = []
  for file in places.files_below(folder):
    if file.name == WEIGHTS_FILE:
      paths.append(file.parent.relative_to(folder).as_posix())
  return paths


def _verify_cache(flags: Flags) -> Answer:
  from oneshot_dp.extract import storage
  from oneshot_dp.extract.cache.check import check_cache
  from oneshot_dp.pipeline.commands.inspect import is_cache

  if not is_cache(flags.path):
    fault = "is neither a head, nor a run, nor a finished cache"
    if not storage.is_url(flags.path) and not os.path.lexists(flags.path):
      fault = "does not exist"
    raise InputError(
      f"{flags.path} {fault}: name what `train`, `sweep`, `extract` or `import`"
      " wrote."
    )
  faults = tuple(check_cache(flags.path))
  failure = None
  findings: tuple[str, ...] = ("every byte and every row is as stated",)
  if faults:
    failure = RunError(
      f"{flags.path}: {format_count(len(faults), 'fault')} found."
    )
    findings = ()
  return _answer(flags, "cache", None, findings, faults, failure)


def _answer(
  flags: Flags,
  kind: str,
  vouched: bool | None,
  findings: tuple[str, ...],
  faults: tuple[str, ...],
  failure: RunError | None,
) -> Answer:
  lines = list(findings)
  if failure is None:
    lines[0] = f"ok: {lines[0]}"
  return Answer(
    text="\n".join(lines),
    facts={
      "path": flags.path,
      "kind": kind,
      "ok": failure is None,
      "vouched": vouched,
      "said": findings,
      "faults": faults,
    },
    faults=faults,
    failure=failure,
  )
