"""The classes of images, or of the rows of a cache, by a head: a CSV file."""

import csv
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from oneshot_dp.extract.cache.reader import FeatureCache
from oneshot_dp.extract.storage.durable_files import (
  disk_errors,
  publish,
  temporary_file,
)
from oneshot_dp.linear_dp.calibration import fit_temperature, probabilities
from oneshot_dp.linear_dp.evaluate import logits_of
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.pipeline.ledger.ledger import Ledger
from oneshot_dp.pipeline.runs.evaluation import check_not_trained_on
from oneshot_dp.pipeline.saved_head.directory import SavedHead
from oneshot_dp.pipeline.saved_head.feature_space import FeatureSpace
from oneshot_dp.pipeline.serving.embedding import Embedded


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
  """T of softmax(logits / T), and what it makes of the rows it was fitted on.

  `confidence` is the mean of the largest probability, `accuracy` the share of
  rows that are right.
  """

  temperature: float
  confidence: float
  accuracy: float
  num_examples: int


def write_predictions(
  out: Path,
  head: LinearHead,
  class_names: tuple[str, ...],
  rows: Embedded,
  name_of: Callable[[int], object],
  *,
  expected: int | None,
  top_k: int,
  temperature: float | None,
) -> tuple[int, int]:
  """Writes a line for each image; how many, and how many without a class.

  A line has the image's name and its best classes with numbers: probabilities
  if there is a temperature, else logits, which compare the classes of one image
  and nothing else. The file has mode 0600: it is as private as the images.

  A row is called `name_of` its place or id. Where so many are `expected`, in
  places 0, 1, …, those without an embedding get a line without a class.
  """
  number = "logit" if temperature is None else "probability"
  columns = ["image", "class", number]
  for rank in range(2, top_k + 1):
    columns += [f"class_{rank}", f"{number}_{rank}"]
  written = missing = 0

  def lines() -> Iterator[list[object]]:
    nonlocal written, missing
    for logits, places in logits_of(head, rows):
      # Stable: of equal ones the first, as `evaluate` counts.
      best = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
      if temperature is not None:
        logits = probabilities(logits, temperature)
      values = np.take_along_axis(logits, best, axis=1)
      for place, classes, numbers in zip(places, best, values, strict=True):
        if expected is not None:
          yield from without_class(int(place))
        written += 1
        line: list[object] = [name_of(int(place))]
        for label, value in zip(classes, numbers, strict=True):
          line += [class_names[label], f"{value:.6g}"]
        yield line
    yield from without_class(written if expected is None else expected)

  def without_class(end: int) -> Iterator[list[object]]:
    nonlocal written, missing
    for place in range(written, end):
      written, missing = written + 1, missing + 1
      yield [name_of(place), *[""] * (len(columns) - 1)]

  with disk_errors(out):
    out.parent.mkdir(parents=True, exist_ok=True)
  with temporary_file(out.parent, out.name) as temporary:
    with temporary.open("w", newline="", encoding="utf-8") as file:
      writer = csv.writer(file)
      writer.writerow(columns)
      for line in lines():
        with disk_errors(out):
          writer.writerow(line)
    publish(temporary, out)
  return written, missing


def calibrate(
  saved: SavedHead,
  owner: Path,
  cache: FeatureCache,
  ledger_dir: Path | None,
  *,
  insisted: bool = False,
) -> Calibration:
  """Fits a temperature to the labels of a cache, which are taken for public.

  InputError: other features or classes, rows that a ledger knows as private, or
  no temperature fits.
  """
  space = FeatureSpace.of_receipt(owner, saved.receipt)
  space.check_evaluates_on(FeatureSpace.of_cache(cache.path, cache.info))
  ledger = Ledger(space.rows[0], ledger_dir)
  check_not_trained_on(ledger, cache, insisted=insisted)
  rows = ((b.embedding, b.label) for b in cache.blocks())
  parts = zip(*logits_of(saved.head, rows), strict=True)
  logits, labels = map(np.concatenate, parts)
  temperature = fit_temperature(logits, labels)
  return Calibration(
    temperature=temperature,
    confidence=float(probabilities(logits, temperature).max(axis=1).mean()),
    accuracy=float((logits.argmax(axis=1) == labels).mean()),
    num_examples=len(labels),
  )
