"""The pictures of a page: which there are, and what is to be seen in them."""

from pathlib import Path

import numpy as np

from linear_dp.accounting import printable
from linear_dp.plan import NOT_PRIVATE
from pipeline.html_report import drawings
from pipeline.html_report.findings import Findings
from pipeline.html_report.pictures import Picture, draw_picture
from pipeline.html_report.run_record import mean_top1
from pipeline.results import by_epsilon, by_method


def draw_all(findings: Findings, folder: Path) -> dict[str, Picture]:
  """Draws what there is to draw; writes each as PNG and PDF.

  Args:
    findings: about a run.
    folder: where the files go.

  Returns:
    By name, with "-" as "_".
  """
  run, chosen = findings.run, findings.chosen
  epsilon, classes = chosen[0].epsilon, len(run.class_names)
  of_head = f"{chosen[0].head}, epsilon {printable(epsilon)}"
  tall = 1.3 + 0.22 * classes if classes <= drawings.MOST_NAMED else 3.4
  mark = (lambda draw: draw) if chosen[0].private else drawings.not_private
  pictures = [
    draw_picture(
      "accuracy",
      _alt_of_accuracy(findings),
      mark(drawings.accuracy(run, epsilon)),
      (3.9, 3.9 + 0.2 * len(by_method(run.rows))),
      folder,
    )
  ]
  if not isinstance(findings.compared, str):
    apart, noise = findings.compared.apart, findings.compared.noise[epsilon]
    weakest = int(np.argmin(apart))
    pictures.append(
      draw_picture(
        "noise-and-signal",
        f"Of {classes} classes, {int((apart > noise).sum())} stand out of the"
        f" noise of epsilon {printable(epsilon)} by themselves; the weakest is"
        f" {run.class_names[weakest]}, {apart[weakest] / noise:.2g} times the"
        " noise.",
        mark(
          drawings.noise_and_signal(findings.compared, run.class_names, epsilon)
        ),
        (tall + 0.8, tall + 0.8),
        folder,
      )
    )
  if not isinstance(findings.answers, str):
    shares = findings.answers.class_accuracy(classes)
    mean = shares.mean(axis=0)
    best, worst = int(np.nanargmax(mean)), int(np.nanargmin(mean))
    pictures.append(
      draw_picture(
        "class-accuracy",
        f"Best: {run.class_names[best]}, {100 * mean[best]:.1f} %; worst:"
        f" {run.class_names[worst]}, {100 * mean[worst]:.1f} %.",
        mark(
          drawings.class_accuracy(
            shares, run.class_names, f"Accuracy of each class ({of_head})"
          )
        ),
        (tall, tall),
        folder,
      )
    )
    if classes <= drawings.MOST_NAMED:
      pictures.append(
        draw_picture(
          "confusion",
          "Lines are labels, columns are answers; the table of the most"
          " confused pairs says the same in words.",
          mark(
            drawings.confusion(
              findings.answers.confusion(classes),
              run.class_names,
              f"Answers to each class, % ({of_head})",
            )
          ),
          (6.2, 4.1),
          folder,
        )
      )
  return {picture.name.replace("-", "_"): picture for picture in pictures}


def _alt_of_accuracy(findings: Findings) -> str:
  """The line of the method that is looked at, in words."""
  run = findings.run
  method = findings.chosen[0].head
  groups = by_epsilon(by_method(run.noisy)[method])
  points = ", ".join(
    f"{100 * mean_top1(groups[epsilon]):.1f} % at epsilon {printable(epsilon)}"
    for epsilon in sorted(groups)
  )
  alt = f"Top-1 accuracy of {method}: {points}"
  if run.ceiling is not None:
    alt += f"; without noise ({NOT_PRIVATE}) {100 * run.ceiling.top1:.1f} %"
  return alt + "."
