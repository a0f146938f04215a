"""`oneshot-dp verify`."""

import dataclasses
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from oneshot_dp.configs.errors import InputError
from oneshot_dp.pipeline.commands.checks import check_kind
from oneshot_dp.pipeline.commands.flags import LedgerDir
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Check a cache (every checksum, count, norm and id) or a head (its receipt).

  Of a head: the numbers of its receipt follow from the noise that is stated;
  receipt, card and weights belong together; and, where the ledger is at hand,
  it was charged for, and these very bytes were published. Nobody can tell from
  files alone that weights contain noise, and without the ledger it says so.

  Exit status 2 if anything is wrong, with one line for each fault.

  With --duplicates, look for rows of a cache that are one image twice instead:
  a receipt's epsilon is per row, and two rows have twice the influence of one.
  What is found is PRIVATE and stays with the private data; with --json it is in
  the file of --out only. Duplicates are no damage: exit status 0. Copies of one
  image may differ in their last bits, so --min-cosine 0.99999 is the check to
  make; without it, only equal bits count.

  Example: oneshot-dp verify caches/train

  Example: oneshot-dp verify caches/train --duplicates --min-cosine 0.99999
  --against caches/public --out duplicates.csv
  """

  path: Positional[Path]
  """Directory of a cache or of a head."""
  duplicates: FlagCreatePairsOff[bool] = False
  """Look for duplicate rows instead."""
  against: Path | None = None
  """Another cache of the same backbone (public images, say): look for rows of
  the one that are in the other, to remove them from the public set."""
  min_cosine: float | None = None
  """Count rows as duplicates from this cosine of their embeddings on, in (0,
  1]; all pairs are decided exactly. Lower ones take longer. Default: equal
  bits."""
  out: Path | None = None
  """CSV file for all pairs found (mode 0600): PRIVATE, not there yet."""
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Checks it, or looks for duplicates."""
  from oneshot_dp.extract.cache.verify import verify_cache
  from oneshot_dp.extract.progress import step_bar
  from oneshot_dp.pipeline.commands.privacy.duplicate_report import (
    report_duplicates,
  )
  from oneshot_dp.pipeline.saved_head.directory import (
    RECEIPT_FILE,
    WEIGHTS_FILE,
  )
  from oneshot_dp.pipeline.saved_head.verify import verify_head

  path = flags.path
  check_kind(path, "verify")
  if flags.duplicates:
    return report_duplicates(
      path, against=flags.against, min_cosine=flags.min_cosine, out=flags.out
    )
  if not (flags.against is flags.min_cosine is flags.out is None):
    raise InputError(
      "--against, --min-cosine and --out are for --duplicates; add it."
    )
  if any((path / file).is_file() for file in (RECEIPT_FILE, WEIGHTS_FILE)):
    check = verify_head(path, flags.ledger_dir)
    kind, problems, sound = "head", check.problems, check.conclusion
    more = {"vouched": check.is_vouched}
  else:
    with step_bar("verify", "shard") as bar:

      def show(done: int, total: int) -> None:
        if bar.total is None:
          bar.reset(total)
        bar.update(done - bar.n)

      report = verify_cache(path, progress=show)
    sound = str(report).removeprefix("ok: ")
    kind, problems, more = "cache", report.problems, {}
  facts = {"path": path, "kind": kind, "ok": not problems, "faults": problems}
  facts |= more
  if not problems:
    return Answer(text=f"ok: {sound}", facts=facts | {"conclusion": sound})
  return Answer(
    text="",
    facts=facts,
    faults=problems,
    failure=InputError(f"{path}: {len(problems)} fault(s) found."),
  )
