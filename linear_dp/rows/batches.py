"""Blocks of any size as batches of one shape, so that one compilation does."""

from collections.abc import Iterable, Iterator

import numpy as np

from oneshot_dp.linear_dp.rows.block import RowBlock


def padded_batches(
  blocks: Iterable[RowBlock], rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Embeddings and labels, `rows` at a time; see `padded_pairs`."""
  return padded_pairs(((b.embedding, b.label) for b in blocks), rows)


def padded_pairs(
  pairs: Iterable[tuple[np.ndarray, np.ndarray]], rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Embeddings and what labels they have, `rows` at a time.

  Args:
    pairs: in any order and any block size.
    rows: in a batch.

  Yields:
    [rows, d] embeddings as stored and [rows, …] labels; the last batch is
    padded with rows of zeros, whose labels are −1.
  """
  waiting, waiting_rows = [], 0
  for pair in pairs:
    waiting.append(pair)
    waiting_rows += len(pair[1])
    while waiting_rows >= rows:
      embedding, label = map(np.concatenate, zip(*waiting, strict=True))
      yield embedding[:rows], label[:rows]
      waiting = [(embedding[rows:], label[rows:])]
      waiting_rows -= rows
  if waiting_rows:
    embedding, label = map(np.concatenate, zip(*waiting, strict=True))
    padding = rows - waiting_rows
    yield (
      np.pad(embedding, [(0, padding), (0, 0)]),
      np.pad(
        label,
        [(0, padding)] + [(0, 0)] * (label.ndim - 1),
        constant_values=-1,
      ),
    )
