"""`oneshot-dp report`."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from oneshot_dp.extract.places import parse_place
from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline.commands import CommandFlags, Flag


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags(CommandFlags):
  """Write an HTML report about a run or a head: DIR/report.html.

  One file for the browser: guarantee, cost, accuracy, the weakest classes,
  receipt, how to load the head, limits. It is made of the results and receipts
  in DIR alone; no cache and no ledger is read.
  """

  EXAMPLES: ClassVar = ("oneshot-dp report results",)

  directory: Path = Flag(
    parse=parse_place,
    form="DIR",
    positional=True,
    help="Folder that sweep or train wrote.",
  ).required()


def run(flags: Flags) -> Answer:
  """Writes the page."""
  from oneshot_dp.pipeline.report.page import write_report

  page = write_report(flags.directory)
  return Answer(text=str(page), facts={"page": page})
