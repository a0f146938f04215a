"""Fills in the page about a run: `report.html.j2` has the words."""

import importlib.resources
import math
from pathlib import Path
from typing import Any

import jinja2

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.pipeline.report import page_tables
from oneshot_dp.pipeline.report.command_lines import commands
from oneshot_dp.pipeline.report.drawings import PICTURES
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.report.pictures import Picture, draw_picture
from oneshot_dp.pipeline.runs.results import mean_top1, spread_top1

_TEMPLATE = "report.html.j2"
_NEIGHBOURS = {
  "REPLACE_SPECIAL": "is in the data, or nothing in its place,",
  "REPLACE_ONE": "is in the data, or another in its place,",
}


def draw_all(findings: Findings, folder: Path) -> dict[str, Picture]:
  """Draws what there is to draw, each for the page and as PNG and PDF files.

  Returns:
    By name, with "-" as "_".
  """
  is_private = findings.chosen[0].private
  return {
    name.replace("-", "_"): draw_picture(
      plan, folder / name, is_private=is_private
    )
    for name, of_findings in PICTURES.items()
    if (plan := of_findings(findings))
  }


def render(findings: Findings, pictures: dict[str, Picture]) -> str:
  """The page, as HTML. Everything that is filled in is escaped.

  Raises:
    InputError: the files of the run lack something that the page tells.
  """
  try:
    return _fill_in(findings, pictures)
  except (KeyError, jinja2.UndefinedError) as error:
    raise InputError(
      f"{findings.run.directory} is damaged ({error!r}); run it again."
    ) from error


def _fill_in(findings: Findings, pictures: dict[str, Picture]) -> str:
  run, chosen, receipt = findings.run, findings.chosen, findings.receipt
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {
    "percent": _percent,
    "guarantee": page_tables.as_printed,
    "at_most": _at_most,
    "sentence": _sentence,
    "points": _points,
  }
  source = importlib.resources.files("oneshot_dp.pipeline.report").joinpath(
    _TEMPLATE
  )
  template = environment.from_string(source.read_text())
  privacy = receipt["privacy"]
  unit = privacy["privacy_unit"]
  return template.render(
    NOT_PRIVATE=NOT_PRIVATE,
    run=run,
    row=chosen[0],
    draws=len(chosen),
    factor=_factor(chosen[0].epsilon),
    top1=mean_top1(chosen),
    spread=spread_top1(chosen),
    is_private=all(row.private for row in run.noisy),
    ceiling=run.ceiling,
    receipt=receipt,
    privacy=privacy,
    unit=unit,
    unit_is_example=unit == EXAMPLE_UNIT,
    neighbours=_NEIGHBOURS[privacy["neighboring_relation"]],
    trained=mechanism_of(receipt["mechanism"]).in_words(receipt["training"]),
    evaluation=run.results["evaluation"],
    checks=findings.checks,
    cost=findings.cost,
    problems=[p for check in findings.checks for p in check.problems],
    budget=_or_none(findings.budget),
    why_no_budget=findings.budget,
    answers=_or_none(findings.answers),
    why_no_answers=findings.answers,
    compared=_or_none(findings.compared),
    compared_head=findings.compared_head,
    why_not_compared=findings.compared,
    notes=findings.notes,
    pictures=pictures,
    accuracies=page_tables.accuracies(findings),
    scopes=page_tables.scopes(findings),
    false_alarms=page_tables.FALSE_ALARMS,
    classes=page_tables.classes(findings),
    confused=page_tables.confused(findings),
    provenance=list(page_tables.provenance(findings)),
    commands=commands(run, chosen[0], findings.places),
  )


def _or_none(value: Any) -> Any:
  """What was found; None where a sentence says why there is none."""
  return None if isinstance(value, str) else value


def _percent(share: float, digits: int = 1) -> str:
  return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def _at_most(share: float) -> str:
  """A bound, rounded up."""
  return f"{math.ceil(1000 * share - 1e-9) / 10:g}\N{NO-BREAK SPACE}%"


def _points(share: float) -> str:
  """A difference of percentages, with its sign; zero has none below it."""
  return f"{100 * share:+z.1f}".replace("-", "\N{MINUS SIGN}")


def _factor(epsilon: float) -> str:
  """e^ε, in words."""
  # Not much further float64 overflows.
  if epsilon > 300 * math.log(10):
    return "more than 10^300"
  return f"≈\N{NO-BREAK SPACE}{math.exp(epsilon):.3g}"


def _sentence(words: str) -> str:
  """With a capital and a full stop."""
  return words[:1].upper() + words[1:].rstrip(".") + "."
