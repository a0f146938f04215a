"""The tables of a page, line by line."""

import dataclasses
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.pipeline.report.command_lines import (
  exactly,
  in_lines,
  run_again,
)
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.report.run_record import mean_top1, spread_top1
from oneshot_dp.pipeline.runs.results import by_epsilon, by_method

MOST_CLASSES = 40
"""A longer table of classes shows the weakest of them only."""
_WEAKEST = 20
_MOST_CONFUSED = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccuracyLine:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassLine:
  """A class: how often it is named right, and what it has over the noise."""

  name: str
  rows: int
  top1: float | None
  spread: float | None
  over_noise: float | None


def accuracies(findings: Findings) -> list[AccuracyLine]:
  """Every method and epsilon."""
  lines = []
  for method, of_method in by_method(findings.run.rows).items():
    for epsilon, group in sorted(by_epsilon(of_method).items()):
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
  over: np.ndarray | None = None
  if not isinstance(findings.compared, str):
    noise = findings.compared.noise[findings.chosen[0].epsilon]
    over = findings.compared.apart / noise
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
  return [
    (names[label], names[answer], share) for label, answer, share in pairs
  ]


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
    rows = f"{cache['num_examples']:,} examples"
    skipped = cache["num_skipped"]
    if skipped:
      rows += f" ({skipped:,} could not be decoded)"
    yield (
      name,
      f"{cache['dataset']} ({version}), split {cache['split']}, {rows}",
    )
  yield (
    "backbone",
    f"{backbone['name']}, embedding {backbone['layer'] or unknown}",
  )
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


def commands(findings: Findings) -> list[tuple[str, str]]:
  """What each does, and the command."""
  run, places, row = findings.run, findings.places, findings.chosen[0]
  here, ledgers = run.directory.absolute(), str(places.ledger_dir)
  head = str(here / row.path)
  ledger = ["--ledger-dir", ledgers]
  program = "oneshot-dp"
  seeded = run.config["privacy"]["noise_seed"] is not None
  noise = "the same seed" if seeded else "the noise will be other noise"
  lines = [
    (
      "Check this head: recompute its receipt, compare the weights, look up the"
      " charge",
      [program, "verify", head, *ledger],
    ),
    (
      "What is spent and left",
      [program, "budget", "--cache", str(places.cache), *ledger],
    ),
    (
      f"Do it again: {noise}, and it is charged again",
      run_again(run, places),
    ),
    (
      "This page",
      [
        program,
        "report",
        str(here),
        "--epsilon",
        exactly(row.epsilon),
        "--head",
        row.head,
        "--cache",
        str(places.cache),
        "--eval-cache",
        str(places.eval_cache),
        *ledger,
      ],
    ),
  ]
  return [(what, in_lines(words)) for what, words in lines]


def _pairs(values: dict[str, Any]) -> str:
  return ", ".join(f"{name} {_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
  if isinstance(value, dict):
    return f"({_pairs(value)})"
  return "none" if value is None else f"{value}"


def as_printed(epsilon: float) -> str:
  """ε or δ, rounded up."""
  return "∞" if math.isinf(epsilon) else printable(epsilon)
