"""Every row once: what a pass over a cache is held to."""

from collections.abc import Iterable, Iterator

import numpy as np

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.block import RowBlock, check_labels, refuse


def checked(
  blocks: Iterable[RowBlock],
  *,
  feature_dim: int,
  num_classes: int,
  num_examples: int,
) -> Iterator[RowBlock]:
  """The blocks of one pass, each checked; the whole pass at its end.

  Args:
    blocks: in any order and any block size.
    feature_dim: d.
    num_classes: K.
    num_examples: n, the number of rows that there must be.

  Raises:
    InputError: a shape, norm or label that cannot be; an example_id that comes
      twice; no rows, or not `num_examples`. Labels and embeddings are never in
      the message.
  """
  seen = []
  for block in blocks:
    _check_block(block, feature_dim, num_classes)
    seen.append(np.array(block.example_id, np.int64))
    yield block
  ids = np.concatenate(seen) if seen else np.empty(0, np.int64)
  if not ids.size:
    raise InputError("The cache has no rows, so there is nothing to train on.")
  if ids.size != num_examples:
    raise InputError(
      f"The cache gave {ids.size} rows where its metadata says {num_examples}:"
      " run `oneshot-dp verify` on it."
    )
  ids.sort()
  if (twice := ids[1:][ids[1:] == ids[:-1]]).size:
    raise InputError(
      f"example_id={twice[0]} comes more than once, which would double its"
      " influence: run `oneshot-dp verify` on the cache."
    )


def _check_block(block: RowBlock, feature_dim: int, num_classes: int) -> None:
  rows = len(block.label)
  if block.embedding.shape != (rows, feature_dim):
    raise InputError(
      f"A block of embeddings has shape {block.embedding.shape}, not"
      f" ({rows}, {feature_dim})."
    )
  for name in ("embedding_norm", "label", "example_id"):
    if (shape := getattr(block, name).shape) != (rows,):
      raise InputError(f"A block has {name} of shape {shape}, not ({rows},).")
  norm_ok = np.isfinite(block.embedding_norm) & (block.embedding_norm >= 0)
  if not norm_ok.all():
    refuse(block.example_id, ~norm_ok, "its embedding_norm is not finite")
  check_labels(block, num_classes)
