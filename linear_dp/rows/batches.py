"""Blocks of any size as batches of one shape, so that one compilation does."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np


def regrouped(
  parts: Iterable[Sequence[np.ndarray]], rows: int
) -> Iterator[list[np.ndarray]]:
  """Columns of `rows` rows each, the last ones perhaps of fewer.

  They are copies: whoever reads a cache may use its memory again.
  """
  waiting: list[list[np.ndarray]] = []
  count = 0
  for columns in parts:
    start = 0
    while start < len(columns[0]):
      part = [np.array(c[start : start + rows - count]) for c in columns]
      waiting.append(part)
      count += len(part[0])
      start += len(part[0])
      if count == rows:
        yield _joined(waiting)
        waiting, count = [], 0
  if waiting:
    yield _joined(waiting)


def padded(column: np.ndarray, rows: int, value: int = 0) -> np.ndarray:
  """The column with rows of one value behind it, up to `rows`."""
  missing = [(0, rows - len(column))] + [(0, 0)] * (column.ndim - 1)
  return np.pad(column, missing, constant_values=value)


def padded_batches(
  columns: Iterable[Sequence[np.ndarray]], rows: int
) -> Iterator[list[np.ndarray]]:
  """[rows, d] embeddings and columns of [rows, …] numbers, of any blocks.

  The last batch is padded with rows of zeros, whose numbers are −1.
  """
  for embedding, *numbers in regrouped(columns, rows):
    others = [padded(column, rows, -1) for column in numbers]
    yield [padded(embedding, rows), *others]


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
  return [np.concatenate(column) for column in zip(*parts, strict=True)]
