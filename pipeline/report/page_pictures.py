"""The pictures of a page: which there are, and what is to be seen in them."""

import dataclasses
from pathlib import Path

import numpy as np

from oneshot_dp.linear_dp.accounting.gaussian import printable
from oneshot_dp.linear_dp.accounting.plan import NOT_PRIVATE
from oneshot_dp.pipeline.report import answer_drawings, drawings
from oneshot_dp.pipeline.report.findings import Findings
from oneshot_dp.pipeline.report.lettering import MOST_NAMED
from oneshot_dp.pipeline.report.pictures import Draw, Picture, draw_picture
from oneshot_dp.pipeline.report.run_record import mean_top1
from oneshot_dp.pipeline.runs.results import by_epsilon, by_method


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Plan:
  """What a picture will be.

  Attributes:
    alt: what is to be seen, for whoever cannot.
    draw: fills a figure.
    heights: of the wide and the narrow one, inches.
  """

  alt: str
  draw: Draw
  heights: tuple[float, float]


def draw_all(findings: Findings, folder: Path) -> dict[str, Picture]:
  """Draws what there is to draw; writes each as PNG and PDF.

  Args:
    findings: about a run.
    folder: where the files go.

  Returns:
    By name, with "-" as "_".
  """
  is_private = findings.chosen[0].private
  pictures = {}
  for name, of_findings in _PICTURES.items():
    if plan := of_findings(findings):
      draw = plan.draw if is_private else drawings.not_private(plan.draw)
      pictures[name.replace("-", "_")] = draw_picture(
        name, plan.alt, draw, plan.heights, folder
      )
  return pictures


def _accuracy(findings: Findings) -> _Plan:
  run = findings.run
  return _Plan(
    alt=_alt_of_accuracy(findings),
    draw=drawings.accuracy(run, findings.chosen[0].epsilon),
    heights=(3.9, 3.9 + 0.2 * len(by_method(run.rows))),
  )


def _noise_and_signal(findings: Findings) -> _Plan | None:
  compared, names = findings.compared, findings.run.class_names
  if isinstance(compared, str):
    return None
  epsilon, apart = findings.chosen[0].epsilon, compared.apart
  noise = compared.noise[epsilon]
  weakest = int(np.argmin(apart))
  height = _height(len(names)) + 0.8
  return _Plan(
    alt=f"Of {len(names)} classes, {int((apart > noise).sum())} stand out of"
    f" the noise of epsilon {printable(epsilon)} by themselves; the weakest is"
    f" {names[weakest]}, {apart[weakest] / noise:.2g} times the noise.",
    draw=drawings.noise_and_signal(compared, names, epsilon),
    heights=(height, height),
  )


def _class_accuracy(findings: Findings) -> _Plan | None:
  answers, names = findings.answers, findings.run.class_names
  if isinstance(answers, str):
    return None
  shares = answers.class_accuracy(len(names))
  mean = shares.mean(axis=0)
  best, worst = int(np.nanargmax(mean)), int(np.nanargmin(mean))
  height = _height(len(names))
  return _Plan(
    alt=f"Best: {names[best]}, {100 * mean[best]:.1f} %; worst:"
    f" {names[worst]}, {100 * mean[worst]:.1f} %.",
    draw=answer_drawings.class_accuracy(
      shares, names, f"Accuracy of each class ({_of_head(findings)})"
    ),
    heights=(height, height),
  )


def _confusion(findings: Findings) -> _Plan | None:
  answers, names = findings.answers, findings.run.class_names
  if isinstance(answers, str) or len(names) > MOST_NAMED:
    return None
  return _Plan(
    alt="Lines are labels, columns are answers; the table of the most confused"
    " pairs says the same in words.",
    draw=answer_drawings.confusion(
      answers.confusion(len(names)),
      names,
      f"Answers to each class, % ({_of_head(findings)})",
    ),
    heights=(6.2, 4.1),
  )


_PICTURES = {
  "accuracy": _accuracy,
  "noise-and-signal": _noise_and_signal,
  "class-accuracy": _class_accuracy,
  "confusion": _confusion,
}
NAMES = tuple(_PICTURES)
"""All that a page may have; the page itself says where each goes."""


def _height(classes: int) -> float:
  """Inches of a picture with a line for each class."""
  return 1.3 + 0.22 * classes if classes <= MOST_NAMED else 3.4


def _of_head(findings: Findings) -> str:
  row = findings.chosen[0]
  return f"{row.head}, epsilon {printable(row.epsilon)}"


def _alt_of_accuracy(findings: Findings) -> str:
  """The line of the method that is looked at, in words."""
  run = findings.run
  method = findings.chosen[0].head
  groups = by_epsilon(by_method(run.noisy)[method])
  points = ", ".join(
    f"{100 * mean_top1(groups[epsilon]):.1f} % at epsilon {printable(epsilon)}"
    for epsilon in sorted(groups)
  )
  noisy = "" if run.labels_are_public else " (noisy counts)"
  alt = f"Top-1 accuracy of {method}{noisy}: {points}"
  if run.ceiling is not None:
    alt += f"; without noise ({NOT_PRIVATE}) {100 * run.ceiling.top1:.1f} %"
  return alt + "."
