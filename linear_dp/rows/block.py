"""Rows on their way in, and what a pass over them is held to."""

from collections.abc import Iterable, Iterator
from typing import NoReturn, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.hosts import ALONE, Hosts

OFF_THE_BALL = (
  "its embedding is not finite, or longer than its embedding_norm says"
)


@runtime_checkable
class RowBlock(Protocol):
  """Consecutive rows of a feature cache.

  Attributes:
    embedding: [rows, d] float16, bfloat16 or float32.
    embedding_norm: [rows] float32.
    label: [rows] int32.
    example_id: [rows] int64.
    unit_id: [rows] int64, whose each row is; None where the privacy unit is an
      example.
  """

  @property
  def embedding(self) -> np.ndarray: ...
  @property
  def embedding_norm(self) -> np.ndarray: ...
  @property
  def label(self) -> np.ndarray: ...
  @property
  def example_id(self) -> np.ndarray: ...
  @property
  def unit_id(self) -> np.ndarray | None: ...


def check_labels(block: RowBlock, num_classes: int) -> None:
  """Raises an InputError for rows of no class, which never says the label."""
  bad = (block.label < 0) | (block.label >= num_classes)
  if bad.any():
    refuse(block.example_id, bad, f"its label is outside [0, {num_classes})")


def refuse(
  example_id: Int64[np.ndarray, " rows"],
  bad: Bool[np.ndarray, " rows"],
  reason: str,
) -> NoReturn:
  """Raises an InputError for the first bad row, by its id alone."""
  raise InputError(
    f"example_id={example_id[np.flatnonzero(bad)[0]]}: {reason}. Run"
    " `oneshot-dp verify` on the cache, then extract it again."
  )


def refuse_units(block: RowBlock) -> None:
  """Refuses rows whose sum would pass for one that bounds the units'."""
  if block.unit_id is not None:
    raise InputError(
      "The rows have a unit_id, so a unit may have many: clip the sum of each,"
      " or choose how many of each are summed."
    )


def checked(
  blocks: Iterable[RowBlock],
  *,
  feature_dim: int,
  num_classes: int,
  num_examples: int,
  hosts: Hosts = ALONE,
) -> Iterator[RowBlock]:
  """The blocks of one pass, each checked; the whole pass at its end.

  Where there are several hosts, of one of them, which may have no rows.

  InputError: a shape, norm or label that cannot be; an example_id that comes
  twice; no rows, or not `num_examples`. Labels and embeddings are never in the
  message.
  """
  seen = []
  for block in blocks:
    _check_block(block, feature_dim, num_classes)
    seen.append(np.array(block.example_id, np.int64))
    yield block
  ids = np.concatenate(seen) if seen else np.empty(0, np.int64)
  if not ids.size and hosts.count == 1:
    raise InputError("The cache has no rows, so there is nothing to train on.")
  if ids.size != num_examples:
    raise InputError(
      f"The cache gave {ids.size} rows where its metadata says {num_examples}:"
      " run `oneshot-dp verify` on it."
    )
  hosts.saw(ids)


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
