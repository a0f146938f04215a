"""What `oneshot-dp report` does and answers."""

import sys

from oneshot_dp.pipeline.commands.report_arguments import Report
from oneshot_dp.pipeline.report.report import write_report
from oneshot_dp.pipeline.shell.answer import Answer


def report(command: Report) -> Answer:
  """Writes the page about a run."""
  written = write_report(command)
  for note in written.notes:
    print(note, file=sys.stderr)
  return Answer(
    text=str(written.page),
    facts={
      "page": written.page,
      "figures": written.figures,
      "notes": written.notes,
    },
  )
