"""Fills in the page about a run: `report.html.j2` has the words."""

import importlib.resources
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.linear_dp.heads.registry import mechanism_of
from oneshot_dp.pipeline.report.command_lines import commands
from oneshot_dp.pipeline.report.drawings import PICTURES
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.report.pictures import Picture, draw_picture
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
    "mean_top1": results.mean_top1,
    "mean_top5": results.mean_top5,
    "spread_top1": results.spread_top1,
  }
  room = importlib.resources.files("oneshot_dp.pipeline.report")
  template = environment.from_string((room / "report.html.j2").read_text())
  try:
    return template.render(_facts(findings), pictures=pictures)
  except (KeyError, jinja2.UndefinedError) as error:
    raise InputError(
      f"{findings.run.directory} is damaged ({error!r}); run it again."
    ) from error


def _facts(findings: Findings) -> dict[str, Any]:
  run, chosen, receipt = findings.run, findings.chosen, findings.receipt
  privacy = receipt["privacy"]
  unit = privacy["privacy_unit"]
  found = vars(findings)
  why_no = {name: why for name, why in found.items() if isinstance(why, str)}
  return {
    **found,
    **dict.fromkeys(why_no),
    "why_no": why_no,
    "notes": findings.notes,
    "NOT_PRIVATE": NOT_PRIVATE,
    "row": chosen[0],
    "draws": len(chosen),
    "factor": _factor(chosen[0].epsilon),
    "top1": results.mean_top1(chosen),
    "spread": results.spread_top1(chosen),
    "is_private": all(row.private for row in run.noisy),
    "ceiling": run.ceiling,
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
    "classes": _classes(findings),
    "confused": _confused(findings),
    "provenance": _provenance(findings),
    "commands": commands(run, chosen[0], findings.places),
  }


def _accuracies(findings: Findings) -> list[list[results.SweepRow]]:
  """The draws of every method and epsilon; without noise last."""
  groups = [
    group
    for of_method in results.grouped(findings.run.rows, "head").values()
    for _, group in sorted(results.grouped(of_method, "epsilon").items())
  ]
  return sorted(groups, key=lambda group: math.isinf(group[0].epsilon))


class _ClassLine(NamedTuple):
  """A class: how often it is named right, and what it has over the noise."""

  name: str
  rows: int
  top1: float | None
  spread: float | None
  over_noise: float | None


def _classes(findings: Findings) -> list[_ClassLine]:
  """Weakest first; all of them, or the weakest of very many."""
  answers, names = findings.answers, findings.run.class_names
  if isinstance(answers, str):
    return []
  shares = answers.class_accuracy(len(names))
  rows = answers.rows_of_classes(len(names))
  compared, over = findings.compared, None
  if not isinstance(compared, str):
    over = compared.apart / compared.noise[findings.chosen[0].epsilon]
  order = np.argsort(shares.mean(axis=0), kind="stable").tolist()
  several = len(shares) > 1
  return [
    _ClassLine(
      name=names[i],
      rows=int(rows[i]),
      top1=float(shares[:, i].mean()) if rows[i] else None,
      spread=float(shares[:, i].std(ddof=1)) if several and rows[i] else None,
      over_noise=None if over is None else float(over[i]),
    )
    for i in (order[:_WEAKEST] if len(order) > _MOST_CLASSES else order)
  ]


def _confused(findings: Findings) -> list[tuple[str, str, float]]:
  """Label, wrong answer, and how often."""
  if isinstance(findings.answers, str):
    return []
  names = findings.run.class_names
  pairs = findings.answers.most_confused(len(names), _MOST_CONFUSED)
  return [(names[label], names[other], share) for label, other, share in pairs]


class _Scope(NamedTuple):
  """What somebody sees, and what that may tell of one privacy unit.

  Attributes:
    who: sees what.
    epsilon, delta: of all that together.
    private: whether its noise is from no seed.
    uncovered: ledger entries beside it that no ε covers.
  """

  who: str
  epsilon: float
  delta: float
  private: bool
  uncovered: int = 0

  @property
  def guesses(self) -> float:
    """The most often that a guess at even odds is right."""
    return right_guesses(self.epsilon, self.delta)

  @property
  def found(self) -> float:
    """The most of the members that a test finds."""
    return found(self.epsilon, self.delta, _FALSE_ALARMS)


def _scopes(findings: Findings) -> Iterator[_Scope]:
  """Who sees what: from one head to all that the ledger holds."""
  run, row, cost = findings.run, findings.chosen[0], findings.cost
  private = all(row.private for row in run.noisy)
  alone = f"this head alone (ε = {printable(row.epsilon)})"
  yield _Scope(alone, row.epsilon, row.delta, private)
  heads = f"all {len(run.noisy)} heads of this run"
  # Accuracies on private labels say more than the heads do.
  heads += ", and this page" if run.labels_are_public else ""
  yield _Scope(heads, cost.heads, run.delta, private)
  if cost.with_accuracies is not None:
    both = "these heads and their accuracies together, and this page"
    yield _Scope(both, cost.with_accuracies, run.delta, private)
  ledger = findings.budget
  if isinstance(ledger, str):
    return
  uncovered = ledger.spending.not_private
  if ledger.spending.charges > uncovered:
    everything = f"all private releases from {run.dataset}"
    yield _Scope(everything, ledger.spent, ledger.delta, True, uncovered)


def _provenance(findings: Findings) -> Iterator[tuple[str, str]]:
  """Where everything comes from; unknown things say so."""
  run, receipt = findings.run, findings.receipt
  data, privacy = receipt["data"], receipt["privacy"]
  train, test = run.config["train_cache"], run.config["eval_cache"]
  backbone = data["backbone"]
  unknown = "not recorded"
  yield "date of the run", run.config["run"]["date"].replace("+00:00", " UTC")
  for name, cache in (("private data", train), ("evaluated on", test)):
    version = cache["dataset_version"] or "version not recorded"
    what = f"{cache['dataset']} ({version}), split {cache['split']}"
    rows = f"{cache['num_examples']:,} examples"
    if skipped := cache["num_skipped"]:
      rows += f" ({skipped:,} could not be decoded)"
    yield name, f"{what}, {rows}"
  embedding = backbone["layer"] or unknown
  yield "backbone", f"{backbone['name']}, embedding {embedding}"
  yield "weights, SHA-256", backbone["weights_sha256"] or unknown
  yield "backbone's code, SHA-256", backbone["code_sha256"] or unknown
  yield (
    "embedding",
    f"{train['feature_dim']} values, {train['embedding_dtype']}, computed in"
    f" {backbone['compute_dtype'] or 'a precision not recorded'}",
  )
  yield "preprocessing", _pairs(data["preprocess"]) or unknown
  yield "random views", _pairs(data["views"] or {}) or "none"
  yield "image decoder", train["decoder"] or unknown
  yield "noise from", privacy["noise_source"]
  yield "accountant", privacy["accountant"]
  yield "mechanism", receipt["mechanism"]["name"]
  yield "settings of the head", _pairs(receipt["training"])
  yield "versions, training", _pairs(receipt["software"])
  yield "versions, extraction", _pairs(train["libraries"]) or unknown
  yield "fingerprint, private cache", train["fingerprint"]
  yield "fingerprint, evaluation cache", test["fingerprint"]
  yield "fingerprint, backbone", data["backbone_fingerprint"]
  yield "head.safetensors, SHA-256", receipt["head_sha256"]
  yield "ledger entry", receipt["composition"]["ledger_entry"]


def _pairs(values: dict[str, Any]) -> str:
  return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
  if isinstance(value, dict):
    return f"({_pairs(value)})"
  return "none" if value is None else f"{value}"


def _percent(share: float | None, digits: int = 1) -> str:
  return (
    "–" if share is None else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"
  )


def _sd(share: float | None) -> str:
  """A standard deviation, in points."""
  return "–" if share is None else f"{100 * share:.2f}"


def _as_printed(epsilon: float) -> str:
  """ε or δ, rounded up."""
  return "∞" if math.isinf(epsilon) else printable(epsilon)


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
