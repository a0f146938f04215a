"""`oneshot-dp recover`."""

import dataclasses
from pathlib import Path

from tyro.conf import Positional

from oneshot_dp.pipeline.commands.flags import LedgerDir
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Deliver the heads of a run that failed after they were charged.

  A run that cannot write its results, or is stopped, keeps every head that it
  released and paid for. They are put where its --out was: a single head as it
  is, several in heads/, and private accuracies of them in evaluation.json.
  Nothing is charged, and no noise is drawn. (A run that was stopped between the
  steps of a head goes on by itself, when its own command is given again.)

  Example: oneshot-dp recover heads/epsilon-4
  """

  out: Positional[Path]
  """The --out of the run that failed."""
  ledger_dir: LedgerDir = None


def run(flags: Flags) -> Answer:
  """Delivers them."""
  import shutil

  from oneshot_dp.configs.errors import InputError
  from oneshot_dp.pipeline.ledger.folder import default_ledger_dir
  from oneshot_dp.pipeline.ledger.ledger import Ledger
  from oneshot_dp.pipeline.runs import output_dir
  from oneshot_dp.pipeline.saved_head.directory import (
    RECEIPT_FILE,
    bytes_of,
    note_published,
    read_head,
  )

  ledgers = flags.ledger_dir or default_ledger_dir()
  with (
    output_dir.reserved(flags.out, ledgers, recovers=True) as here,
    output_dir.whole_directory(flags.out) as directory,
  ):
    heads = [kept for kept in here.kept if (kept / RECEIPT_FILE).exists()]
    places = []
    for kept in here.kept:
      place = directory
      if kept in heads:
        if len(here.kept) > 1:
          place = directory / "heads" / kept.name
        places.append(place)
      shutil.copytree(kept, place, dirs_exist_ok=True)
      shutil.copystat(kept, place)
    for place in places:
      dataset = read_head(place).receipt["data"]["dataset"]
      ledger, published = Ledger(dataset, flags.ledger_dir), bytes_of(place)
      if not any(e["entry"] == published.entry for e in ledger.entries()):
        raise InputError(
          f"{ledger.path} was not charged for what is kept; say where the"
          " ledger is with --ledger-dir."
        )
      if published not in ledger.published(published.entry):
        note_published(ledger, [place])
  return Answer(
    text=f"{flags.out}: {len(places)} head(s), paid for before; nothing was"
    " charged",
    facts={"out": flags.out, "heads": len(places)},
  )
