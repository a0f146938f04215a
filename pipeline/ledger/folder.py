"""A folder of ledgers, and which private rows they know between them.

What was spent on a row is in one ledger of the folder, whatever the row is
called (`RowSketch`); and what any of them was charged for is not public.
"""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oneshot_dp.configs.errors import InputError, RunError
from oneshot_dp.extract.cache.content_keys import is_among
from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.pipeline.ledger.charge import Charge
from oneshot_dp.pipeline.ledger.row_sketch import RowSketch, unit_keys


def default_ledger_dir() -> Path:
  """$ONESHOT_DP_LEDGER_DIR, or a folder in the user's state folder."""
  if chosen := os.environ.get("ONESHOT_DP_LEDGER_DIR"):
    return Path(chosen)
  state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
  return Path(state) / "oneshot-dp" / "ledgers"


def ledgers_in(directory: Path) -> list[Path]:
  """The ledgers of a folder, by what they are called."""
  pattern = re.compile(r"\w*-[0-9a-f]{12}\.jsonl", re.ASCII)
  found = directory.glob("*.jsonl")
  return sorted(path for path in found if pattern.fullmatch(path.name))


def check_in_one_ledger(
  ledger: Path, dataset: str, charges: Sequence[Charge]
) -> None:
  """Refuses charges for rows that another ledger of the folder was charged for.

  The folder is locked.

  Raises:
    InputError: names the other ledger and data set.
    RunError: a ledger cannot be read.
  """
  rows = {charge.rows for charge in charges if charge.rows is not None}
  digests = {charge.facts.get("private_digest") for charge in charges}
  for other in ledgers_in(ledger.parent):
    if other == ledger:
      continue
    entries, known = _entries_and_rows(other)
    if any(known.common(each) for each in rows) or any(
      # Of entries from before there were keys.
      entry.get("private_digest") in digests - {None}
      for entry in entries
    ):
      raise InputError(
        f"rows of this cache, which calls them {dataset!r}, were charged"
        f" to {other.name} before, as {entries[0].get('dataset')!r}: use a"
        " cache of that name, so that what is spent on them adds up, or leave"
        " them out."
      )


def check_never_charged(
  cache: FeatureCache,
  directory: Path | None,
  why: str,
  *,
  trained_on: str | None = None,
) -> None:
  """Refuses rows that any ledger of a folder was charged for: private ones.

  And other rows of units that the ledger of the cache's data set knows, or
  that of the data set that a head was trained on; in another data set a number
  may be anybody.

  Raises:
    InputError: how many there are, in which ledger, and `why` they must not
      leave; for their holder.
    RunError: a ledger cannot be read.
  """
  for path in ledgers_in(directory or default_ledger_dir()):
    entries, known = _entries_and_rows(path)
    shared = sum(int(known.holds(keys).sum()) for keys in cache.key_blocks())
    if shared:
      raise InputError(
        f"at least {shared} of the {len(cache)} rows of {cache.path} were"
        f" charged to {path}, as private rows: {why}; give a cache of other"
        " rows, or leave these out."
      )
    dataset = entries[0].get("dataset") if entries else None
    if dataset is not None and dataset in (cache.info.dataset, trained_on):
      units = unit_keys(cache, dataset)
      if shared := int(is_among(known.keys, units).sum()):
        others = "say --not-trained-on, if they are others with their numbers"
        is_other = dataset != cache.info.dataset
        raise units_refused(shared, cache, path, others if is_other else None)


def units_refused(
  shared: int, cache: FeatureCache, where: Path, otherwise: str | None = None
) -> InputError:
  """Rows of units that are protected, as `where` knows; for their holder."""
  unit = cache.info.privacy_unit
  return InputError(
    f"{shared} of the {unit}s of {cache.path} are in {where}, too: all rows of"
    f" a {unit} are protected together, and accuracy on some is an exact"
    f" statistic of them; give a cache of other {unit}s, or"
    f" {otherwise or 'number them apart, if they are others'}."
  )


def _entries_and_rows(path: Path) -> tuple[list[dict[str, Any]], RowSketch]:
  """What is in another ledger, whose chain its own use checks."""
  unknown = "so it is unknown if it was charged for the same rows"
  try:
    content = path.read_bytes()
    # A line without an end was never finished.
    whole = content[: content.rfind(b"\n") + 1]
    entries = [dict(json.loads(line)) for line in whole.splitlines()]
    return entries, RowSketch.of_entries(entries)
  except OSError as error:
    raise RunError(
      f"The ledger {path} cannot be read ({error.strerror}), {unknown}."
    ) from error
  except (ValueError, TypeError, RecursionError) as error:
    raise InputError(
      f"{path} was damaged, {unknown}; restore it from a backup."
    ) from error
