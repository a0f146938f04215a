"""The page about a run or a head: DIR/report.html, one file for the browser.

It is made of results.json and of the heads' receipts, which are public but for
what they mark as NOT PRIVATE: no cache and no ledger is read. `report.html.j2`
has the words.
"""

import contextlib
import json
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import msgspec

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.files import disk_errors, read_regular, write_once
from oneshot_dp.linear_dp.accounting import format_rounded_up
from oneshot_dp.linear_dp.evaluate import accuracy_interval
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.heads.receipt import filled_in, right_guesses
from oneshot_dp.pipeline.report.accuracy_plot import charts_of
from oneshot_dp.pipeline.report.results import (
  FORMAT,
  NOT_PRIVATE,
  HeadRow,
  grouped,
  percent,
)

PAGE = "report.html"
_MOST_CLASSES, _WEAKEST = 60, 30
"""Classes with a line each; of more than these, only the weakest have one."""
_NORMAL_95 = 1.959964


def write_report(directory: Path) -> Path:
  """Writes the page into the directory of a run or of a head.

  It is there whole or not at all, of mode 0600 where something in it is NOT
  PRIVATE; an older one is replaced. InputError: the directory is of neither, or
  damaged.
  """
  run = read_run(directory)
  page = _render(run)
  file, new = directory / PAGE, directory / f".{PAGE}.new"
  with disk_errors(file), contextlib.ExitStack() as left:
    new.unlink(missing_ok=True)  # of a killed run
    left.callback(new.unlink, missing_ok=True)
    write_once(new, page.encode())
    if all(row.private for row in run.rows):
      new.chmod(run.file.stat().st_mode & 0o666)  # whoever may read the results
    os.replace(new, file)
  return file


class Run(NamedTuple):
  """What a directory holds: heads, their receipts by path, and scores.

  Of one head without a run, `facts` is empty and its accuracies are NaN.
  """

  file: Path
  rows: tuple[HeadRow, ...]
  receipts: dict[str, dict[str, Any]]
  facts: dict[str, Any]


def read_run(directory: Path) -> Run:
  """Reads it back; InputError: it is of no run and no head, or damaged."""
  if (directory / "receipt.json").is_file():
    receipt = read_head(directory).receipt
    file = directory / "receipt.json"
    return Run(file, (_row_of(receipt, "."),), {".": receipt}, {})
  file = directory / "results.json"
  if not file.is_file():
    raise InputError(
      f"{directory} is neither a head nor a run: give the directory that"
      " `train` or `sweep` wrote with --out."
    )
  content = read_regular(file)
  try:
    facts = json.loads(content)
    if facts["format"] != FORMAT:
      raise ValueError(f"format {facts['format']!s:.20}")
    heads = [h | {"epsilon": float(h["epsilon"])} for h in facts.pop("heads")]
    rows = msgspec.convert(heads, tuple[HeadRow, ...])
    if not rows:
      raise ValueError("no heads")
  except (LookupError, TypeError, ValueError, AttributeError) as error:
    raise InputError(
      f"{file} is damaged ({error!r:.100}); run the sweep again."
    ) from error
  receipts = {}
  for row in rows:
    place = directory / row.path
    if not place.resolve().is_relative_to(directory.resolve()):
      raise InputError(f"{file} names {row.path!r}, outside of {directory}.")
    receipts[row.path] = read_head(place).receipt
    of_receipt = _row_of(receipts[row.path], row.path)
    for name in ("head", "private", "noise_source", "epsilon", "delta"):
      said, known = getattr(row, name), getattr(of_receipt, name)
      if name == "delta" and math.isinf(row.epsilon):
        continue  # there it is of no meaning
      # ε follows from noise that was rounded up: it may be a little below.
      both = isinstance(said, float) and math.isclose(said, known, rel_tol=1e-6)
      if not both and said != known:
        raise InputError(
          f"{file} says {name} {said!r} of {row.path}, and its receipt"
          f" {known!r}: restore the file, or run the sweep again."
        )
  return Run(file, rows, receipts, facts)


def _row_of(receipt: dict[str, Any], path: str) -> HeadRow:
  """What a receipt says of a head; it knows no accuracy and no draw."""
  stated, follows = receipt["stated"], receipt["follows"]
  epsilon = follows["epsilon"]  # 0 where δ covers all
  return HeadRow(
    path=path,
    head=stated["head"],
    epsilon=math.inf if epsilon is None else epsilon,
    delta=stated["delta"] or 0.0,
    draw=0,
    private=stated["private"],
    noise_source=stated["noise_source"],
    noise_multiplier=follows["noise_multiplier"] or 0.0,
    top1=math.nan,
    top5=math.nan,
  )


def _render(run: Run) -> str:
  filters = (_percent, _epsilon, _at_most, _points)
  try:
    return filled_in(PAGE, *filters, **_facts(run))
  except (jinja2.UndefinedError, LookupError, TypeError, ValueError) as error:
    said = f"results.json or a receipt lacks something ({error!r:.100})"
    raise InputError(f"{said}; run it again.") from error


def _facts(run: Run) -> dict[str, Any]:
  chosen = _chosen(run.rows)
  receipt = run.receipts[chosen[0].path]
  scored = not math.isnan(chosen[0].top1)
  without = [r.top1 for r in run.rows if math.isinf(r.epsilon)]
  noisy = [r for r in run.rows if math.isfinite(r.epsilon)]
  names = receipt["stated"]["class_names"]
  return {
    **receipt,
    "NOT_PRIVATE": NOT_PRIVATE,
    "row": chosen[0],
    "draws": len(chosen),
    "top1": statistics.mean(r.top1 for r in chosen),
    "scored": scored,
    "test": run.facts.get("evaluation", {}),
    "together": run.facts.get("epsilon"),
    "seeded": not all(r.private for r in noisy),
    "ceiling": max(without, default=None),
    "charts": charts_of(run.rows) if scored and noisy else [],
    "lines": _lines(run) if scored else [],
    "classes": _classes(chosen, names, run.facts.get("test_counts")),
    "guess": right_guesses,
  }


def _chosen(rows: Sequence[HeadRow]) -> list[HeadRow]:
  """The draws that the page looks at: the middle epsilon's, the best head's."""
  of = [r for r in rows if math.isfinite(r.epsilon)] or list(rows)
  epsilons = sorted({row.epsilon for row in of})
  middle = epsilons[(len(epsilons) - 1) // 2]
  groups = grouped([r for r in of if r.epsilon == middle]).values()
  return max(groups, key=lambda draws: statistics.mean(r.top1 for r in draws))


def _lines(run: Run) -> list[dict[str, Any]]:
  """The draws of each head and epsilon, with the interval of the test set."""
  test = run.facts.get("evaluation", {})
  return [
    {
      "row": draws[0],
      "private": all(r.private for r in draws),
      "top1": percent([r.top1 for r in draws]),
      "interval": _interval(statistics.mean(r.top1 for r in draws), test),
      "top5": percent([x for r in draws if (x := r.top5) is not None]),
      "balanced": percent([x for r in draws if (x := r.balanced) is not None]),
      "draws": len(draws),
    }
    for draws in grouped(run.rows).values()
  ]


def _interval(share: float, test: dict[str, Any]) -> tuple[float, float] | None:
  """95 % interval of an accuracy for the test set, and for noise on a count."""
  if not test:
    return None
  low, high = accuracy_interval(min(max(share, 0), 1), test["num_examples"])
  noise = _NORMAL_95 * test.get("accuracy_sd", 0.0)
  return max(0.0, low - noise), min(1.0, high + noise)


def _classes(
  chosen: Sequence[HeadRow], names: Sequence[str], counts: Any
) -> list[dict[str, Any]]:
  """Each class's recall, mean over draws, the weakest first."""
  recalls = [row.recall for row in chosen if row.recall is not None]
  if not recalls:
    return []
  lines = []
  for i, name in enumerate(names):
    found = [x for r in recalls if (x := r[i]) is not None]
    share = statistics.mean(found) if found else None
    lines.append({"name": name, "share": share, "images": counts and counts[i]})
  lines.sort(key=lambda of: math.inf if of["share"] is None else of["share"])
  return lines if len(lines) <= _MOST_CLASSES else lines[:_WEAKEST]


def _percent(share: float | None) -> str:
  return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _epsilon(epsilon: float | str) -> str:
  return (
    "∞" if math.isinf(float(epsilon)) else format_rounded_up(float(epsilon))
  )


def _at_most(share: float) -> str:
  """A bound, rounded up, and below 100 % where it is."""
  bound = 100.0
  for digits in range(1, 5):
    bound = math.ceil(share * 10 ** (2 + digits) - 1e-9) / 10**digits
    if bound < 100:
      break
  return f"{bound:g}\N{NO-BREAK SPACE}%"


def _points(share: float) -> str:
  return f"{100 * share:+z.1f}".replace("-", "\N{MINUS SIGN}")
