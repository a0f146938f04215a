"""Reads and checks what the directory of a run or of a head holds.

A results.json may come from anywhere, so every number in it is bounded before
anything is made of it, and what it says of a head must be what the head's own
receipt says.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract import places
from oneshot_dp.linear_dp import accounting
from oneshot_dp.pipeline.heads.head_folder import read_head
from oneshot_dp.pipeline.report.results import FORMAT, EvaluationSet, HeadRow

_MAX_COUNT = 2**53
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MAX_COUNT)]
_Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Epsilon = Annotated[float, msgspec.Meta(ge=0, le=1e308)]
_EPSILON_TOLERANCE = 1e-6
"""Relative. A receipt's ε follows from noise that was rounded up, so it may be
a little below the ε that was asked for."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
  """How the heads of a run were scored.

  Attributes:
    labels: "public", scored exactly, or "private", by noisy counts.
    dataset, split, rows: which rows they were scored on.
    num_examples: how many; of noisy counts about how many.
    private: whether the noise was of the operating system, not of a seed.
    epsilon, delta: what noisy counts cost the test data; None of exact ones.
    accuracy_sd: standard deviation of the noise on an accuracy, a fraction.
  """

  labels: Literal["public", "private"]
  dataset: str
  split: str
  rows: str
  num_examples: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
  private: bool = True
  epsilon: _Epsilon | None = None
  delta: _Fraction | None = None
  accuracy_sd: Annotated[float, msgspec.Meta(ge=0, le=1e300)] = 0.0

  @property
  def evaluation_set(self) -> EvaluationSet:
    """What intervals of accuracies follow from."""
    return EvaluationSet(
      num_examples=self.num_examples, accuracy_sd=self.accuracy_sd
    )


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
  """The entries of results.json about the whole run that a page shows.

  Attributes:
    epsilon: of all private heads together; None where noise was seeded.
    test_counts: test rows of each class, [K]; None where labels are private.
    evaluation: how the heads were scored.
  """

  epsilon: _Epsilon | None = None
  test_counts: tuple[_Count, ...] | None = None
  evaluation: Evaluation


class Run(NamedTuple):
  """The checked content of the directory of a run or a head.

  Attributes:
    file: results.json, or the receipt of a head alone.
    rows: its heads. The accuracies of a head alone are NaN.
    receipts: of each head, by its path.
    facts: what results.json says of the run; None of a head alone.
    content: all of results.json but the heads; empty of a head alone.
  """

  file: Path
  rows: tuple[HeadRow, ...]
  receipts: dict[str, dict[str, Any]]
  facts: RunFacts | None
  content: dict[str, Any]


class Results(NamedTuple):
  """The parsed content of results.json.

  Attributes:
    rows: the heads.
    facts: what a page shows of the run as a whole.
    content: all but the heads, as it was written.
  """

  rows: tuple[HeadRow, ...]
  facts: RunFacts
  content: dict[str, Any]


def read_run(directory: Path) -> Run:
  """Reads what `train` or `sweep` wrote with --out.

  Args:
    directory: of a run, or of a single head; a path or a URL.

  Returns:
    What it holds, checked: every head has the digests that its receipt states,
    and results.json says nothing else of it than the receipt.

  Raises:
    InputError: the directory is of neither, or something in it is damaged.
  """
  directory = places.as_place(directory)
  if places.exists(directory / "receipt.json"):
    return _single_head(directory)
  file = directory / "results.json"
  if not places.exists(file):
    fault = "is neither a head nor a run"
    if not isinstance(directory, places.Url) and not directory.exists():
      fault = "does not exist"
    raise InputError(
      f"{directory} {fault}: give the directory that `train` or `sweep` wrote"
      " with --out."
    )
  results = parse_results(file, places.read(file))
  receipts = {}
  folders: set[Path] = set()
  for row in results.rows:
    # A path in results.json may be anything, such as "../../other": a report
    # about one folder shows nothing of another.
    head_folder = directory / row.path
    if not _is_inside(directory, head_folder):
      raise InputError(f"{file} names {row.path!r}, outside of {directory}.")
    # Each is read whole, so a file of some megabytes would take hours.
    if not isinstance(head_folder, places.Url):
      head_folder = head_folder.resolve()
    if head_folder in folders:
      raise InputError(
        f"{file} names {row.path!r} twice: restore the file, or run the sweep"
        " again."
      )
    folders.add(head_folder)
    receipts[row.path] = read_head(directory / row.path).receipt
    _check_against_receipt(file, row, receipts[row.path])
    _check_classes(file, row, results.facts, receipts[row.path])
  _check_together(file, results.facts, receipts)
  return Run(file, results.rows, receipts, results.facts, results.content)


def _is_inside(directory: Path, folder: Path) -> bool:
  if isinstance(directory, places.Url):
    # Stores have no links; a path that begins with / leaves the URL.
    is_below = folder.is_relative_to(directory)
    return is_below and ".." not in folder.parts
  return folder.resolve().is_relative_to(directory.resolve())


def _single_head(directory: Path) -> Run:
  receipt = read_head(directory).receipt
  row = _row_of_receipt(receipt, ".")
  file = directory / "receipt.json"
  return Run(file, (row,), {".": receipt}, None, {})


def parse_results(file: Path, text: bytes) -> Results:
  """Parses results.json.

  What is odd is refused before a page is made of it: the file may come from
  anywhere.

  Args:
    file: its path, for messages.
    text: its content.

  Returns:
    The heads, what a page shows of the run, and all the rest as it was written.

  Raises:
    InputError: it is damaged, or a number in it is NaN, infinite or out of
      bounds.
  """
  try:
    content = json.loads(text)
    if content["format"] != FORMAT:
      raise ValueError(f"format {content['format']!s:.20}")
    # JSON has no infinity, but Python reads `Infinity`, `NaN` and 1e999.
    json.dumps(content, allow_nan=False)
    heads = []
    for head in content.pop("heads"):
      # The ε of a baseline is the string "inf".
      heads.append({**head, "epsilon": float(head["epsilon"])})
    rows = msgspec.convert(heads, tuple[HeadRow, ...])
    if not rows:
      raise ValueError("no heads")
    for row in rows:
      _check_numbers(row)
    facts = msgspec.convert(content, RunFacts)
  except (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
  ) as error:
    raise InputError(
      f"{file} is damaged ({error!r:.100}); run the sweep again."
    ) from error
  return Results(rows, facts, content)


def _check_numbers(row: HeadRow) -> None:
  """Raises ValueError for a number that no run writes."""
  # NaN fails these comparisons, so it is refused with what is out of bounds.
  fractions = {"top1": row.top1, "top5": row.top5, "balanced": row.balanced}
  for i, share in enumerate(row.recall or ()):
    fractions[f"recall of class {i}"] = share
  for name, share in fractions.items():
    if share is not None and not 0 <= share <= 1:
      raise ValueError(f"{name} is {share:g}")
  if not row.epsilon >= 0:
    raise ValueError(f"epsilon is {row.epsilon:g}")
  if not 0 <= row.delta < 1:
    raise ValueError(f"delta is {row.delta:g}")
  if not 0 <= row.noise_multiplier < 1e300:
    raise ValueError(f"noise_multiplier is {row.noise_multiplier:g}")
  if not 0 <= row.draw <= 10**6:
    raise ValueError("draw is out of range")
  for counts in row.confusion or ():
    if not all(0 <= count <= _MAX_COUNT for count in counts):
      raise ValueError("confusion holds what is not a number of rows")


def _check_against_receipt(
  file: Path, row: HeadRow, receipt: dict[str, Any]
) -> None:
  """Raises InputError where results.json contradicts a head's receipt."""
  known = _row_of_receipt(receipt, row.path)
  # The receipt is what the ledger vouches for. A results.json that was edited
  # could otherwise give a head another ε.
  pairs: dict[str, tuple[Any, Any]] = {
    "head": (row.head, known.head),
    "private": (row.private, known.private),
    "noise_source": (row.noise_source, known.noise_source),
  }
  if not _is_close(row.epsilon, known.epsilon):
    pairs["epsilon"] = row.epsilon, known.epsilon
  if not _is_close(row.noise_multiplier, known.noise_multiplier):
    pairs["noise_multiplier"] = row.noise_multiplier, known.noise_multiplier
  # Without noise a δ means nothing, and a receipt has none.
  if math.isfinite(row.epsilon) and not _is_close(row.delta, known.delta):
    pairs["delta"] = row.delta, known.delta
  for name, (stated, expected) in pairs.items():
    if stated != expected:
      raise InputError(
        f"{file} says {name} {stated!r} of {row.path}, and its receipt"
        f" {expected!r}: restore the file, or run the sweep again."
      )


def _check_together(
  file: Path, facts: RunFacts, receipts: Mapping[str, dict[str, Any]]
) -> None:
  """Raises InputError where all heads are said to cost less than they do."""
  private = []
  for receipt in receipts.values():
    if receipt["stated"]["private"]:
      private.append(receipt)
  if not private:
    return
  delta = min(receipt["stated"]["delta"] for receipt in private)
  least = accounting.epsilon_of(_least_mu_squared(private), delta)
  stated = facts.epsilon
  if stated is None or stated < least * (1 - _EPSILON_TOLERANCE):
    raise InputError(
      f"{file} says epsilon {stated!r} of all heads together, which by their"
      f" receipts is {least:.5g} at least: restore the file, or run the sweep"
      " again."
    )


def _least_mu_squared(receipts: Sequence[dict[str, Any]]) -> float:
  """Computes a lower bound on what private heads cost together, by receipts.

  They cost more where noisy accuracies were charged to the same rows.
  """
  # Heads of one charge are nested, and cost what the dearest of them costs;
  # charges add up. But heads that continue from an earlier one all count what
  # that cost, and no receipt here says how much it was.
  dearest: dict[str | None, float] = {}
  continues = False
  for receipt in receipts:
    stated = receipt["stated"]
    mu_squared = receipt["follows"]["mu_squared"]
    charge = stated["charge"]
    dearest[charge] = max(dearest.get(charge, 0.0), mu_squared)
    continues = continues or stated["went_on_from"] is not None
  if continues:
    return max(dearest.values())
  return accounting.sum_mu_squared(dearest.values())


def _is_close(stated: float, known: float) -> bool:
  return math.isclose(stated, known, rel_tol=_EPSILON_TOLERANCE)


def _check_classes(
  file: Path, row: HeadRow, facts: RunFacts, receipt: dict[str, Any]
) -> None:
  """Raises InputError where a list has more or fewer classes than the head."""
  # A list of another length would be shown beside the names of other classes.
  num_classes = receipt["stated"]["num_classes"]
  lengths: dict[str, Sequence[Any] | None] = {
    "recall": row.recall,
    "test_counts": facts.test_counts,
    "confusion": row.confusion,
  }
  for i, counts in enumerate(row.confusion or ()):
    lengths[f"confusion of class {i}"] = counts
  for name, values in lengths.items():
    if values is not None and len(values) != num_classes:
      raise InputError(
        f"{file} has {name} of {len(values)} classes, and {row.path} has"
        f" {num_classes}: restore the file, or run the sweep again."
      )


def _row_of_receipt(receipt: dict[str, Any], path: str) -> HeadRow:
  """Makes a row of a receipt, which states neither accuracies nor the draw."""
  stated = receipt["stated"]
  follows = receipt["follows"]
  epsilon = follows["epsilon"]
  if epsilon is None:  # of a baseline; 0 is where δ covers all
    epsilon = math.inf
  return HeadRow(
    path=path,
    head=stated["head"],
    epsilon=epsilon,
    delta=stated["delta"] or 0.0,
    draw=0,
    private=stated["private"],
    noise_source=stated["noise_source"],
    noise_multiplier=follows["noise_multiplier"] or 0.0,
    top1=math.nan,
  )
