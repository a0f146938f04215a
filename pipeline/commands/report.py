"""`oneshot-dp report`."""

import dataclasses
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from oneshot_dp.pipeline import Answer
from oneshot_dp.pipeline import commands as f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Write a page about a run or a head: DIR/report.html, for the browser.

  One file: promise, cost, accuracy, the weakest classes, receipt, how to load
  it, limits. It is made of the results and receipts in DIR alone.

  oneshot-dp report results
  """

  directory: Annotated[
    Positional[Path], f.flag("What `sweep` or `train` wrote.", "DIR")
  ]


def run(flags: Flags) -> Answer:
  """Writes the page."""
  from oneshot_dp.pipeline.report.page import write_report

  page = write_report(flags.directory)
  return Answer(text=str(page), facts={"page": page})
