"""The page about a run or a head: DIR/report.html, one file for the browser.

It is made of results.json and of the heads' receipts, which are public but for
what they mark as NOT PRIVATE: no cache and no ledger is read. The words are in
`templates/report.html.j2`; this file computes what they need.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import places
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.pipeline.heads.head_folder import refuse_exposed
from oneshot_dp.pipeline.heads.model_card import (
  describe_size,
  percent_rounded_up,
  right_guesses,
  template_environment,
)
from oneshot_dp.pipeline.report.accuracy_plot import charts_of
from oneshot_dp.pipeline.report.results import (
  NOT_PRIVATE,
  HeadRow,
  accuracy_interval_95,
  format_interval,
  group_draws,
  percent,
  shows_top5,
)
from oneshot_dp.pipeline.report.saved_run import Run, RunFacts, read_run

PAGE = "report.html"
_MAX_LISTED_CLASSES = 60
_WEAKEST_CLASSES = 30
"""How many classes are listed if there are more than `_MAX_LISTED_CLASSES`."""
_MAX_MATRIX_CLASSES = 12
"""A confusion matrix of more classes cannot be read on a page."""
_LISTED_CONFUSIONS = 20


class _HeadLine(NamedTuple):
  """A line of the table of accuracies: the draws of one kind of head and ε."""

  head: str
  epsilon: float
  noise_multiplier: float
  is_chosen: bool
  private: bool
  draws: int
  top1: str
  interval: str
  top5: str
  balanced: str


class _ClassLine(NamedTuple):
  """A line of the table of classes.

  Attributes:
    name: the class's.
    recall: mean top-1 accuracy over draws, a fraction; None without test rows.
    test_rows: how many rows of the test set are of this class.
  """

  name: str
  recall: float | None
  test_rows: int | None


class _MatrixLine(NamedTuple):
  """A line of the confusion matrix.

  Attributes:
    name: the class that the test rows are of.
    counts: how many were answered with each class; of several draws the mean.
    shares: the same as fractions of the line.
  """

  name: str
  counts: list[float]
  shares: list[float]


class _Confusion(NamedTuple):
  """Test rows of one class that were answered with another.

  Attributes:
    label: the class they are of.
    answer: the class they were answered with.
    rows: how many; of several draws the mean.
    share: of all test rows of their class, a fraction.
  """

  label: str
  answer: str
  rows: float
  share: float


def write_report(directory: Path) -> Path:
  """Writes the page into the directory of a run or of a head.

  The page appears whole or not at all, and replaces an older one. It has mode
  0600 where something in it is NOT PRIVATE.

  Args:
    directory: what `train` or `sweep` wrote with --out.

  Returns:
    The path of the page.

  Raises:
    InputError: the directory is of neither a run nor a head, or is damaged; or
      it is in a bucket, and something is NOT PRIVATE.
    RunError: the disk refuses.
  """
  # The page is made of files that may come from anywhere; `read_run` checks
  # them.
  run = read_run(directory)
  content = render_page(run).encode()
  page = places.as_place(directory) / PAGE
  # A new file has mode 0600 unless it is as public as the results.
  mode = 0o600
  is_private = all(row.private for row in run.rows)
  if not is_private:
    refuse_exposed(page)
  elif not isinstance(page, places.Url):
    # Whoever may read the results may read the page.
    mode = run.file.stat().st_mode & 0o666
  places.replace(page, content, mode)
  return page


def render_page(run: Run) -> str:
  """Fills in the template.

  Raises:
    InputError: something that the page shows is missing or not printable.
  """
  try:
    template = _TEMPLATES.get_template(f"{PAGE}.j2")
    return template.render(_template_values(run))
  except (
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    jinja2.UndefinedError,
  ) as error:
    raise InputError(
      f"results.json or a receipt lacks something ({error!r:.100}); run it"
      " again."
    ) from error


def _template_values(run: Run) -> dict[str, Any]:
  # The templates refuse a name that is missing, so that no mistake is hidden:
  # every value is given, also where there is nothing to show.
  chosen = _choose_draws(run.rows)
  receipt = run.receipts[chosen[0].path]
  private_rows = [row for row in run.rows if math.isfinite(row.epsilon)]
  baselines = [row.top1 for row in run.rows if math.isinf(row.epsilon)]
  values = {
    **receipt,
    "NOT_PRIVATE": NOT_PRIVATE,
    "size": describe_size(receipt["stated"]),
    "row": chosen[0],
    "draws": len(chosen),
    "seeded": not all(row.private for row in private_rows),
    "guess": right_guesses,
    "scored": run.facts is not None,
    "num_epsilons": len({row.epsilon for row in private_rows}),
    "num_kinds": len({row.head for row in private_rows}),
    "top1": statistics.mean(row.top1 for row in chosen),
    "baseline": max(baselines, default=None),
    "together": None,
    "charts": [],
    "lines": [],
    "shows_top5": False,
    "classes": [],
    "classes_without_rows": 0,
    "matrix": [],
    "confusions": [],
  }
  # A head alone was not scored: its page is about the guarantee.
  if run.facts is not None:
    values |= _scored_values(run, run.facts, chosen, private_rows)
  return values


def _scored_values(
  run: Run,
  facts: RunFacts,
  chosen: Sequence[HeadRow],
  private_rows: Sequence[HeadRow],
) -> dict[str, Any]:
  """Returns the values that only a run has: accuracies and their test set."""
  # Of a checked receipt, and not of results.json, which anybody may have
  # edited.
  class_names = run.receipts[chosen[0].path]["stated"]["class_names"]
  charts = []
  if private_rows:
    charts = charts_of(run.rows, facts.evaluation.evaluation_set)
  counts = facts.test_counts
  empty_classes = 0
  if counts is not None:
    empty_classes = sum(count == 0 for count in counts)
  # Noisy counts have top-1 alone.
  has_top5 = any(row.top5 is not None for row in run.rows)
  return {
    "test": facts.evaluation,
    "together": facts.epsilon,
    "charts": charts,
    "lines": _head_lines(run.rows, facts, chosen),
    "shows_top5": has_top5 and shows_top5(len(class_names)),
    "classes": _class_lines(chosen, class_names, counts),
    "classes_without_rows": empty_classes,
    **_confusion_values(chosen, class_names),
  }


def _confusion_values(
  chosen: Sequence[HeadRow], names: Sequence[str]
) -> dict[str, Any]:
  """The confusion matrix, mean over draws, and its largest wrong entries."""
  matrices = [row.confusion for row in chosen if row.confusion is not None]
  if not matrices:
    return {}
  # A mean over draws: one draw is as good an answer as another.
  counts = np.mean(np.array(matrices, np.float64), axis=0)
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  matrix = []
  if len(names) <= _MAX_MATRIX_CLASSES:
    for i, name in enumerate(names):
      matrix.append(_MatrixLine(name, counts[i].tolist(), shares[i].tolist()))
  return {
    "matrix": matrix,
    "confusions": _largest_confusions(counts, shares, names),
  }


def _largest_confusions(
  counts: np.ndarray, shares: np.ndarray, names: Sequence[str]
) -> list[_Confusion]:
  """The pairs of classes that are confused most often, in that order."""
  # Only mistakes: the diagonal is recall, which has a table of its own.
  confusions = []
  for label, answer in zip(*np.nonzero(counts), strict=True):
    if label != answer:
      confusions.append(
        _Confusion(
          label=names[label],
          answer=names[answer],
          rows=float(counts[label, answer]),
          share=float(shares[label, answer]),
        )
      )
  confusions.sort(key=lambda pair: -pair.rows)
  return confusions[:_LISTED_CONFUSIONS]


def _choose_draws(rows: Sequence[HeadRow]) -> list[HeadRow]:
  """Chooses the draws that the page is about.

  Those of the middle ε, or of the smaller of two middle ones, and there of the
  kind of head with the best mean accuracy. The template says so.
  """
  # Not the best ε of all, which would always be the weakest guarantee.
  candidates = [row for row in rows if math.isfinite(row.epsilon)]
  if not candidates:
    candidates = list(rows)
  epsilons = sorted({row.epsilon for row in candidates})
  middle = epsilons[(len(epsilons) - 1) // 2]
  groups = group_draws(row for row in candidates if row.epsilon == middle)
  return max(
    groups.values(),
    key=lambda draws: statistics.mean(row.top1 for row in draws),
  )


def _head_lines(
  rows: Sequence[HeadRow], facts: RunFacts, chosen: Sequence[HeadRow]
) -> list[_HeadLine]:
  """Makes a line for the draws of each kind of head and ε."""
  test = facts.evaluation.evaluation_set
  lines = []
  # Draws of one kind and ε have the same noise multiplier, so the first one's
  # stands for all.
  for (head, epsilon), draws in group_draws(rows).items():
    top1 = [row.top1 for row in draws]
    interval = accuracy_interval_95(statistics.mean(top1), test)
    lines.append(
      _HeadLine(
        head=head,
        epsilon=epsilon,
        noise_multiplier=draws[0].noise_multiplier,
        is_chosen=draws[0].path == chosen[0].path,
        private=all(row.private for row in draws),
        draws=len(draws),
        top1=percent(top1),
        interval=format_interval(interval),
        top5=percent([row.top5 for row in draws]),
        balanced=percent([row.balanced for row in draws]),
      )
    )
  return lines


def _class_lines(
  chosen: Sequence[HeadRow],
  names: Sequence[str],
  counts: Sequence[int] | None,
) -> list[_ClassLine]:
  """Each class's recall, mean over draws, the weakest first.

  Classes without test rows have no recall, and come last; where there are too
  many classes to list them all, these are left out with the strong ones.
  """
  recalls = [row.recall for row in chosen if row.recall is not None]
  if not recalls:
    return []
  lines = []
  for i, name in enumerate(names):
    shares = [recall[i] for recall in recalls]
    known = [share for share in shares if share is not None]
    mean = statistics.mean(known) if known else None
    count = None if counts is None else counts[i]
    lines.append(_ClassLine(name, mean, count))
  lines.sort(key=lambda line: math.inf if line.recall is None else line.recall)
  if len(lines) > _MAX_LISTED_CLASSES:
    return lines[:_WEAKEST_CLASSES]
  return lines


# Filters of the template; in it they have no underscore.


def _percent(share: float | None) -> str:
  """A fraction in percent, or a dash."""
  if share is None:
    return "–"
  return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _epsilon(epsilon: float | str) -> str:
  """An ε or δ, rounded up."""
  number = float(epsilon)
  return "∞" if math.isinf(number) else format_rounded_up(number)


def _upper_bound(share: float) -> str:
  return f"{percent_rounded_up(share)}\N{NO-BREAK SPACE}%"


def _mean_count(count: float) -> str:
  """A number of images, with one digit where it is a mean of draws."""
  return f"{count:.1f}".removesuffix(".0")


def _points(share: float) -> str:
  """A difference of fractions in percentage points, with its sign."""
  return f"{100 * share:+z.1f}".replace("-", "\N{MINUS SIGN}")


_TEMPLATES = template_environment(
  {
    "percent": _percent,
    "epsilon": _epsilon,
    "upper_bound": _upper_bound,
    "mean_count": _mean_count,
    "points": _points,
  }
)
