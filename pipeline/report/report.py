"""Writes the page about a run, DIR/report.html, and pictures, DIR/report/*.

Run again, it replaces these once all are made, each whole or not at all, and
removes pictures of its own that are no longer on the page. It touches nothing
else. Of a run with a head that is NOT PRIVATE, they have mode 0600, and their
folder 0700.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  keep_from_others,
)
from oneshot_dp.pipeline.report.findings import look
from oneshot_dp.pipeline.report.run_record import read_back
from oneshot_dp.pipeline.runs.pictures import INSTALL

PAGE = "report.html"
FOLDER = "report"


class WrittenReport(NamedTuple):
  """A page, pictures beside it, and what it could not show, a line each."""

  page: Path
  figures: tuple[Path, ...]
  notes: tuple[str, ...]


def write_report(directory: Path, **options: Any) -> WrittenReport:
  """Reads a run, and writes the page about it; for the options see `look`.

  InputError: see `look`, or the extra `plots` is not installed. RunError: the
  directory cannot be written.
  """
  try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
  except ImportError as error:
    raise InputError(
      f"reports need {error.name}, which is not installed: {INSTALL}"
    ) from error
  from oneshot_dp.pipeline.report import page  # only now: it needs both

  with read_back(directory):
    findings = look(directory, **options)
  target = directory / FOLDER
  with (
    disk_errors(directory),
    tempfile.TemporaryDirectory(prefix=f".{FOLDER}-", dir=directory) as name,
  ):
    folder = Path(name)
    pictures = page.draw_all(findings, folder)
    drawn = sorted(folder.iterdir())
    (folder / PAGE).write_text(page.render(findings, pictures), "utf-8")
    target.mkdir(exist_ok=True)
    if not all(row.private for row in findings.run.rows):
      keep_from_others(folder)
      target.chmod(0o700)
    figures = tuple(_move(file, target) for file in drawn)
    written = _move(folder / PAGE, directory)
    for name in page.PICTURES:
      for picture in (target / f"{name}.png", target / f"{name}.pdf"):
        if picture not in figures:
          picture.unlink(missing_ok=True)
  return WrittenReport(written, figures, findings.notes)


def _move(file: Path, target: Path) -> Path:
  """Replaces in one step whatever had the name."""
  place = target / file.name
  os.replace(file, place)
  return place
