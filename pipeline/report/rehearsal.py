"""Rehearses the tables, pictures and page of a run before it is charged.

A sweep that is charged and then fails to draw a picture delivers nothing, and a
second try would cost as much again. So everything that is written beside the
heads is first made of placeholder accuracies, for the very heads, names and
numbers of the run. What fails then, fails before the charge.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from oneshot_dp.configs.head_config import HeadName
from oneshot_dp.configs.parts import Part
from oneshot_dp.extract.cache.format import CacheInfo
from oneshot_dp.linear_dp.accounting import mu_squared_from_epsilon
from oneshot_dp.linear_dp.evaluate import MAX_CONFUSION_CLASSES
from oneshot_dp.linear_dp.heads.linear_head import LinearHead
from oneshot_dp.linear_dp.private_sums import Release
from oneshot_dp.linear_dp.train import TrainedHead
from oneshot_dp.pipeline.heads.receipt import make_receipt
from oneshot_dp.pipeline.report.accuracy_plot import pictures_of
from oneshot_dp.pipeline.report.page import render_page
from oneshot_dp.pipeline.report.results import (
  HeadRow,
  files_of,
  head_name,
  table,
)
from oneshot_dp.pipeline.report.saved_run import Run, parse_results

_NO_SHA256 = "0" * 64
_ALL_OPTIONS = {"unlabeled_sha256": _NO_SHA256, "self_trained": True}
"""Options that a page has more lines for: all of them are tried."""
_EXTREMES = (0.0, 1.0, 0.5)
"""Accuracies of placeholder heads, in turn: both ends of an axis, and its
middle."""


class PlannedHead(NamedTuple):
  """A head that a run will train.

  Attributes:
    kind: of the head, such as "auto".
    epsilon: of the head; infinity for a baseline.
    draw: which of several heads of this ε, from 0.
  """

  kind: HeadName
  epsilon: float
  draw: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
  """The public facts about a run that are known before it is charged.

  Attributes:
    heads: what it will train.
    info: of the cache of the training rows.
    part: which rows of it are trained on.
    delta: of the guarantees.
    private: False where the noise will come from a seed.
    noise_source: as receipts state it.
    evaluation: what results.json says of the evaluation; see `Evaluation`.
    how: how accuracies are measured, in words.
  """

  heads: Sequence[PlannedHead]
  info: CacheInfo
  part: Part
  delta: float
  private: bool
  noise_source: str
  evaluation: Mapping[str, Any]
  how: str


def rehearse_report(run: PlannedRun) -> None:
  """Makes all that a sweep writes and prints beside its heads, and drops it.

  Raises:
    InputError: something of the run cannot be shown.
  """
  # The same code in the same order as after training, written to nowhere: names
  # that cannot be printed, and numbers that no axis has room for, are found
  # now.
  rows = [_placeholder_row(run, i) for i in range(len(run.heads))]
  facts = {
    "dataset": run.info.dataset,
    "split": run.info.split,
    "class_names": run.info.class_names,
    "rows": str(run.part),
    "privacy_unit": run.info.unit,
    "delta": run.delta,
    "epsilon": max(head.epsilon for head in run.heads) if run.private else None,
    "test_counts": _placeholder_counts(run),
    "evaluation": dict(run.evaluation),
  }
  # Any number will do here: the page only has to find one.
  if facts["epsilon"] == math.inf:
    facts["epsilon"] = 0.0  # of baselines alone
  files = files_of(rows, facts)
  parsed = parse_results(Path("results.json"), files["results.json"])
  receipts = {}
  for row, head in zip(rows, run.heads, strict=True):
    receipts[row.path] = _placeholder_receipt(run, head)
  render_page(
    Run(Path("results.json"), parsed.rows, receipts, parsed.facts, {})
  )
  test = parsed.facts.evaluation.evaluation_set
  pictures_of(rows, run.info.dataset, run.how, test)
  table(rows, test, run.info.num_classes)


def _placeholder_row(run: PlannedRun, index: int) -> HeadRow:
  """A head with accuracies, as exact or as few as the run's will be."""
  head = run.heads[index]
  num_classes = run.info.num_classes
  top1 = _EXTREMES[index % len(_EXTREMES)]
  is_baseline = math.isinf(head.epsilon)
  noise_multiplier = 0.0
  if not is_baseline:
    noise_multiplier = mu_squared_from_epsilon(head.epsilon, run.delta) ** -0.5
  row = HeadRow(
    path=f"heads/{head_name(head.kind, head.epsilon, head.draw)}",
    head=head.kind,
    epsilon=head.epsilon,
    delta=run.delta,
    draw=head.draw,
    private=run.private and not is_baseline,
    noise_source=run.noise_source,
    noise_multiplier=noise_multiplier,
    top1=top1,
  )
  # Noisy counts pay for top-1 alone, so the run will have nothing else to show.
  if run.evaluation["labels"] == "private":
    return row
  # The first class has no test rows, as may happen: what is shown of it is a
  # dash.
  confusion = None
  if num_classes <= MAX_CONFUSION_CLASSES:
    confusion = ((1,) * num_classes,) * num_classes
  return dataclasses.replace(
    row,
    top5=top1,
    balanced=top1,
    recall=(None,) + (top1,) * (num_classes - 1),
    confusion=confusion,
  )


def _placeholder_counts(run: PlannedRun) -> tuple[int, ...] | None:
  """Test rows of each class; the first class has none."""
  if run.evaluation["labels"] == "private":
    return None
  return (0,) + (1,) * (run.info.num_classes - 1)


def _placeholder_receipt(run: PlannedRun, head: PlannedHead) -> dict[str, Any]:
  """A receipt as the head's will be, of weights of zeros."""
  shape = (run.info.feature_dim, run.info.num_classes)
  is_baseline = math.isinf(head.epsilon)
  # One release that stands for all: the page shows what they cost together.
  releases: tuple[Release, ...] = ()
  if not is_baseline:
    sigma = mu_squared_from_epsilon(head.epsilon, run.delta) ** -0.5
    releases = (Release("placeholder", shape[::-1], sigma),)
  trained = TrainedHead(
    # Of one shape with the head's, without its memory.
    head=LinearHead(
      kernel=np.broadcast_to(np.float32(0), shape),
      bias=np.zeros(shape[1], np.float32),
    ),
    name=head.kind,
    delta=None if is_baseline else run.delta,
    releases=releases,
    options=_ALL_OPTIONS,
    noise_source=run.noise_source,
    private=run.private and not is_baseline,
  )
  return make_receipt(
    trained,
    run.info,
    run.part,
    charge_id=None,
    parent_charge_id=None,
    weights_sha256=_NO_SHA256,
    releases_sha256=_NO_SHA256,
  )
