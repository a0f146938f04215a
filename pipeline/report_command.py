"""What `oneshot-dp report` does and answers."""

import sys

from pipeline.answer import Answer
from pipeline.html_report.report import write_report
from pipeline.report_arguments import Report


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
