"""Fills in the page about a run: `report.html.j2` has the words."""

import importlib.resources
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.configs.head_config import called
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.pipeline.report.command_lines import commands
from oneshot_dp.pipeline.report.drawings import PICTURES
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.report.pictures import Picture, draw_picture
from oneshot_dp.pipeline.report.run_record import read_back
from oneshot_dp.pipeline.runs import results
from oneshot_dp.pipeline.saved_head.odds import found, right_guesses

_NEIGHBOURS = {
  "REPLACE_SPECIAL": "is in the data, or nothing in its place,",
  "REPLACE_ONE": "is in the data, or another in its place,",
}
_MOST_CLASSES, _WEAKEST = 40, 20
"""A longer table of classes shows the weakest of them only."""
_MOST_CONFUSED = 10
_FALSE_ALARMS = 0.01
"""The rate at which a test for membership is looked at."""


def draw_all(findings: Findings, folder: Path) -> dict[str, Picture]:
  """By name, with "-" as "_"; drawn for the page, and as PNG and PDF files."""
  is_private = findings.chosen[0].private
  return {
    name.replace("-", "_"): draw_picture(
      plan, folder / name, is_private=is_private
    )
    for name, of_findings in PICTURES.items()
    if (plan := of_findings(findings))
  }


def render(findings: Findings, pictures: dict[str, Picture]) -> str:
  """The page, as HTML; InputError where the files of the run lack something."""
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= {
    "percent": _percent,
    "sd": _sd,
    "guarantee": _as_printed,
    "at_most": _at_most,
    "sentence": _sentence,
    "points": _points,
    "called": called,
    "pairs": _pairs,
    "mean_top1": results.mean_top1,
    "mean_top5": results.mean_top5,
    "mean_balanced": results.mean_balanced,
    "spread_top1": results.spread_top1,
  }
  room = importlib.resources.files("oneshot_dp.pipeline.report")
  template = environment.from_string(
    (room / "report.html.j2").read_text("utf-8")
  )
  with read_back(findings.run.directory, jinja2.UndefinedError):
    return template.render(_facts(findings), pictures=pictures)


def _facts(findings: Findings) -> dict[str, Any]:
  run, chosen, receipt = findings.run, findings.chosen, findings.receipt
  privacy = receipt["privacy"]
  unit = privacy["privacy_unit"]
  looked = vars(findings)
  why_no = {name: why for name, why in looked.items() if isinstance(why, str)}
  return {
    **looked,
    **dict.fromkeys(why_no),
    "why_no": why_no,
    "notes": findings.notes,
    "NOT_PRIVATE": NOT_PRIVATE,
    "right_guesses": right_guesses,
    "found": found,
    "row": chosen[0],
    "draws": len(chosen),
    "factor": _factor(chosen[0].epsilon),
    "top1": results.mean_top1(chosen),
    "spread": results.spread_top1(chosen),
    "is_private": all(row.private for row in run.noisy),
    "balanced": results.mean_balanced(chosen),
    "ceiling": run.ceiling,
    "exact": _without_noise(findings),
    "privacy": privacy,
    "unit": unit,
    "unit_is_example": unit == EXAMPLE_UNIT,
    "neighbours": _NEIGHBOURS[privacy["neighboring_relation"]],
    "trained": mechanism_of(receipt["mechanism"]).in_words(receipt["training"]),
    "evaluation": run.results["evaluation"],
    "problems": [p for check in findings.checks for p in check.problems],
    "accuracies": _accuracies(findings),
    "scopes": list(_scopes(findings)),
    "false_alarms": _FALSE_ALARMS,
    "classes": list(_classes(findings)),
    "confused": _confused(findings),
    "commands": commands(run, chosen[0], findings.places),
  }


def _without_noise(findings: Findings) -> list[tuple[str, float]]:
  """What the heads without noise are, and their top-1; the best is first."""
  rows = [row for row in findings.run.rows if math.isinf(row.epsilon)]
  names = {findings.chosen[0].head: "the same method without noise"}
  names = {"logistic": "a logistic regression without noise"} | names
  found = [
    (names.get(row.head, f"{called(row.head)} without noise"), row.top1)
    for row in rows
  ]
  return sorted(found, key=lambda each: -each[1])


def _accuracies(findings: Findings) -> list[list[results.SweepRow]]:
  """The draws of every method and epsilon; without noise last."""
  groups = [
    group
    for of_method in results.grouped(findings.run.rows, "head").values()
    for _, group in sorted(results.grouped(of_method, "epsilon").items())
  ]
  return sorted(groups, key=lambda group: math.isinf(group[0].epsilon))


def _classes(findings: Findings) -> Iterator[dict[str, Any]]:
  """Each class, the weakest first: how often it is named right, over noise."""
  answers, names = findings.answers, findings.run.class_names
  if isinstance(answers, str):
    return
  shares, compared = answers.class_accuracy(), findings.compared
  order = np.argsort(shares.mean(axis=0), kind="stable").tolist()
  for i in order[:_WEAKEST] if len(order) > _MOST_CLASSES else order:
    line = {"name": names[i], "rows": int(answers.rows_of_classes[i])}
    if line["rows"]:
      line["top1"] = float(shares[:, i].mean())
      if len(shares) > 1:
        line["spread"] = float(shares[:, i].std(ddof=1))
    if not isinstance(compared, str):
      noise = compared.noise[findings.chosen[0].epsilon]
      line["over_noise"] = float(compared.apart[i] / noise)
    yield line


def _confused(findings: Findings) -> list[tuple[str, str, float]]:
  """Label, wrong answer, and how often."""
  if isinstance(findings.answers, str):
    return []
  names = findings.run.class_names
  pairs = findings.answers.most_confused(_MOST_CONFUSED)
  return [(names[label], names[other], share) for label, other, share in pairs]


def _scopes(findings: Findings) -> Iterator[dict[str, Any]]:
  """Who sees what, and the ε and δ of it: one head to all of the ledger.

  `uncovered` counts ledger entries beside it that no ε covers.
  """
  run, row, cost = findings.run, findings.chosen[0], findings.cost

  def scope(who: str, epsilon: float, **changes: Any) -> dict[str, Any]:
    private = all(row.private for row in run.noisy)
    found = {"who": who, "epsilon": epsilon, "delta": run.delta}
    return found | {"private": private, "uncovered": 0} | changes

  alone = f"this head alone (ε = {printable(row.epsilon)})"
  yield scope(alone, row.epsilon, delta=row.delta)
  heads = f"all {len(run.noisy)} heads of this run"
  # Accuracies on private labels say more than the heads do.
  heads += ", and this page" if run.labels_are_public else ""
  yield scope(heads, cost.heads)
  if cost.with_accuracies is not None:
    both = "these heads and their accuracies together, and this page"
    yield scope(both, cost.with_accuracies)
  ledger = findings.budget
  if isinstance(ledger, str):
    return
  uncovered = ledger.spending.not_private
  if ledger.spending.charges > uncovered:
    yield scope(
      f"all private releases from {run.dataset}",
      ledger.spent,
      delta=ledger.delta,
      private=True,
      uncovered=uncovered,
    )


def _pairs(values: dict[str, Any]) -> str:
  """Names and values, in a line."""

  def short(value: Any) -> str:
    if isinstance(value, dict):
      return f"({_pairs(value)})"
    return "none" if value is None else f"{value}"

  return ", ".join(f"{name} {short(value)}" for name, value in values.items())


def _percent(share: float | None, digits: int = 1) -> str:
  if share is None:
    return "–"
  return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def _sd(share: float | None) -> str:
  """A standard deviation, in points."""
  return "–" if share is None else f"{100 * share:.2f}"


def _as_printed(epsilon: float) -> str:
  """ε or δ, rounded up."""
  return "∞" if math.isinf(epsilon) else printable(epsilon)


def _at_most(share: float) -> str:
  """A bound, rounded up, and below 100 % where it is."""
  bound = 100.0
  for digits in range(1, 5):
    bound = math.ceil(share * 10 ** (2 + digits) - 1e-9) / 10**digits
    if bound < 100:
      break
  return f"{bound:g}\N{NO-BREAK SPACE}%"


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
