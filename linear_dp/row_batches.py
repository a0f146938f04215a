"""Blocks of any size as batches of one shape, so that one compilation does."""

from collections.abc import Iterable, Iterator

import numpy as np

from linear_dp.row_block import RowBlock


def padded_batches(
  blocks: Iterable[RowBlock], rows: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Embeddings and labels, `rows` at a time.

  Args:
    blocks: in any order and any block size.
    rows: in a batch.

  Yields:
    [rows, d] embeddings as stored and [rows] labels; the last batch is padded
    with rows of zeros, whose label is −1.
  """
  waiting, waiting_rows = [], 0
  for block in blocks:
    waiting.append((block.embedding, block.label))
    waiting_rows += len(block.label)
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
      np.pad(label, (0, padding), constant_values=-1),
    )
