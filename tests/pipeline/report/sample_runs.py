"""Runs and their rows, made in a moment."""

import math
from typing import Any

from oneshot_dp.linear_dp.accounting import epsilon_of
from oneshot_dp.linear_dp.noise import NoiseSource
from oneshot_dp.pipeline.heads.head_folder import write_head
from oneshot_dp.pipeline.report.results import HeadRow, files_of, head_name
from tests.pipeline.sample_heads import mu2_of, sample_info, trained_head

NAMES = ("cat", "a dog of a very long breed indeed", "<b>rat</b>")
PUBLIC = {
  "labels": "public",
  "dataset": "pets",
  "split": "test",
  "rows": "",
  "num_examples": 1000,
}
NOISY = {
  **PUBLIC,
  "labels": "private",
  "private": True,
  "epsilon": 2.0,
  "delta": 1e-5,
  "accuracy_sd": 0.0123,
}


def head_row(head="auto", epsilon=1.0, draw=0, **changes):
  """A line of results.csv; 50 % right, and 10 points more with each draw."""
  noise_multiplier = 3.7 / epsilon  # none for a baseline, of epsilon inf
  fields: dict[str, Any] = {
    "path": f"heads/{head_name(head, epsilon, draw)}",
    "delta": 1e-5,
    "private": math.isfinite(epsilon),
    "noise_source": "the operating system",
    "noise_multiplier": noise_multiplier,
    "top1": 0.5 + draw / 10,
    "top5": 0.9321,
    "balanced": 0.4,
    "recall": (0.25, None, 1.0),
  }
  return HeadRow(head=head, epsilon=epsilon, draw=draw, **(fields | changes))


def write_run(
  folder,
  *,
  evaluation=PUBLIC,
  seed=None,
  baseline=True,
  draws=2,
  epsilons=(0.5, 1.0, 8.0),
  class_names=NAMES,
  recall=(0.95, 0.5, None),
  test_counts=(600, 400, 0),
  confusion=None,
):
  """Writes a run as `sweep` leaves it, without a ledger; returns its folder."""
  source = NoiseSource(seed=seed)
  exact = {
    "top5": 1.0,
    "balanced": 0.85,
    "recall": recall,
    "confusion": confusion,
  }
  if evaluation["labels"] == "private":  # noisy counts tell the accuracy alone
    exact = dict.fromkeys(exact)
    test_counts = None
  info = sample_info(class_names=class_names)
  wanted = [(epsilon, draw) for epsilon in epsilons for draw in range(draws)]
  if baseline:
    wanted.append((math.inf, 0))
  rows = []
  for epsilon, draw in wanted:
    if math.isinf(epsilon):
      trained = trained_head(noise=False, num_classes=len(class_names))
    else:
      trained = trained_head(
        epsilon, source=source, num_classes=len(class_names)
      )
    path = f"heads/{head_name('auto', epsilon, draw)}"
    # Heads of one draw are nested, and have one charge.
    write_head(folder / path, trained, info, charge_id=f"{draw:032x}")
    rows.append(
      head_row(
        epsilon=epsilon,
        draw=draw,
        private=trained.private,
        noise_source=trained.noise_source,
        noise_multiplier=(trained.mu_squared or math.inf) ** -0.5,
        top1=0.9004 - 0.05 / epsilon + 0.001 * draw,
        **exact,
      )
    )
  total_epsilon = None
  if seed is None:
    total_epsilon = epsilon_of(float(draws * mu2_of(max(epsilons))), 1e-5)
  facts = {
    "dataset": "pets",
    "epsilon": total_epsilon,
    "test_counts": test_counts,
    "evaluation": evaluation,
  }
  for name, content in files_of(rows, facts).items():
    (folder / name).write_bytes(content)
  return folder
