"""The tables of a page, line by line."""

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.runs.results import (
  grouped,
  mean_top1,
  spread_top1,
)
from oneshot_dp.pipeline.saved_head.odds import found, right_guesses

MOST_CLASSES = 40
"""A longer table of classes shows the weakest of them only."""
_WEAKEST = 20
_MOST_CONFUSED = 10
FALSE_ALARMS = 0.01
"""The rate at which a test for membership is looked at."""


class AccuracyLine(NamedTuple):
  """A method at an epsilon, over draws; fractions."""

  head: str
  epsilon: float
  noise_multiplier: float
  top1: float
  spread: float | None
  top5: float
  draws: int
  private: bool
  is_chosen: bool


class ClassLine(NamedTuple):
  """A class: how often it is named right, and what it has over the noise."""

  name: str
  rows: int
  top1: float | None
  spread: float | None
  over_noise: float | None


class Scope(NamedTuple):
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
    return found(self.epsilon, self.delta, FALSE_ALARMS)


def accuracies(findings: Findings) -> list[AccuracyLine]:
  """Every method and epsilon."""
  lines = []
  for method, of_method in grouped(findings.run.rows, "head").items():
    for epsilon, group in sorted(grouped(of_method, "epsilon").items()):
      lines.append(
        AccuracyLine(
          head=method,
          epsilon=epsilon,
          noise_multiplier=group[0].noise_multiplier,
          top1=mean_top1(group),
          spread=spread_top1(group),
          top5=statistics.mean(row.top5 for row in group),
          draws=len(group),
          private=all(row.private for row in group),
          is_chosen=tuple(group) == findings.chosen,
        )
      )
  # Without noise last: it is what the others are held against.
  return sorted(lines, key=lambda line: math.isinf(line.epsilon))


def classes(findings: Findings) -> list[ClassLine]:
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
  if len(order) > MOST_CLASSES:
    order = order[:_WEAKEST]
  several = len(shares) > 1
  return [
    ClassLine(
      name=names[i],
      rows=int(rows[i]),
      top1=float(shares[:, i].mean()) if rows[i] else None,
      spread=float(shares[:, i].std(ddof=1)) if several and rows[i] else None,
      over_noise=None if over is None else float(over[i]),
    )
    for i in order
  ]


def confused(findings: Findings) -> list[tuple[str, str, float]]:
  """Label, wrong answer, and how often."""
  if isinstance(findings.answers, str):
    return []
  names = findings.run.class_names
  pairs = findings.answers.most_confused(len(names), _MOST_CONFUSED)
  return [(names[label], names[other], share) for label, other, share in pairs]


def scopes(findings: Findings) -> list[Scope]:
  """Who sees what: from one head to all that the ledger holds."""
  run, row, cost = findings.run, findings.chosen[0], findings.cost
  private = all(row.private for row in run.noisy)
  alone = f"this head alone (ε = {printable(row.epsilon)})"
  heads = f"all {len(run.noisy)} heads of this run"
  # Accuracies on private labels say more than the heads do.
  heads += ", and this page" if run.labels_are_public else ""
  lines = [
    Scope(alone, row.epsilon, row.delta, private),
    Scope(heads, cost.heads, run.delta, private),
  ]
  if cost.with_accuracies is not None:
    both = "these heads and their accuracies together, and this page"
    lines.append(Scope(both, cost.with_accuracies, run.delta, private))
  ledger = findings.budget
  if not isinstance(ledger, str) and ledger.charges > ledger.not_private:
    everything = f"all private releases from {run.dataset}"
    uncovered = ledger.not_private
    lines.append(Scope(everything, ledger.spent, ledger.delta, True, uncovered))
  return lines


def provenance(findings: Findings) -> Iterator[tuple[str, str]]:
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


def as_printed(epsilon: float) -> str:
  """ε or δ, rounded up."""
  return "∞" if math.isinf(epsilon) else printable(epsilon)
