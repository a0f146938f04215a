"""`oneshot-dp report`."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from oneshot_dp.configs.errors import escaped
from oneshot_dp.pipeline.commands.checks import check_kind
from oneshot_dp.pipeline.shell.answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
  """Write a page about a sweep or comparison: DIR/report.html, for the browser.

  One file that needs no network: what was promised, to whom, what it cost, how
  sure that is, and what is not protected; accuracy against epsilon, noise
  against signal of each class, the confusion matrix, the budget spent and left,
  the receipt in plain words, and the commands that reproduce it. The figures
  are written beside it as PNG and PDF, in DIR/report. Run again, it replaces
  these and nothing else.

  It trains nothing and costs no budget: it reads what the run wrote, the
  ledger, and the evaluation rows where their labels are public.

  Example: oneshot-dp report results --epsilon 2
  """

  directory: Annotated[Positional[Path], arg(metavar="DIR")]
  """What `sweep` or `compare` wrote."""
  epsilon: float | None = None
  """The head that is looked at closely: noise and signal, confusion matrix,
  receipt. Default: the middle one of the run."""
  head: str | None = None
  """The method of that head, of a comparison. Default: the most accurate at
  that epsilon."""
  cache: Path | None = None
  """Where the private training cache is now, for the commands that the page
  shows; default: where it was. Its rows are not read."""
  eval_cache: Path | None = None
  """Where the evaluation cache is now; default: where it was. Without it the
  page has no confusion matrix."""
  ledger_dir: Path | None = None
  """Where ledgers are kept; default: where the run's was."""


def run(flags: Flags) -> Answer:
  """Writes the page about a run."""
  from oneshot_dp.pipeline.report.report import write_report

  check_kind(flags.directory, "report")
  written = write_report(**vars(flags))
  for note in written.notes:
    print(escaped(note), file=sys.stderr)
  return Answer(text=str(written.page), facts=written._asdict())
