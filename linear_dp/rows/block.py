"""Rows on their way in: what a feature cache streams to this package."""

from typing import NoReturn, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from oneshot_dp.configs.errors import InputError

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
  """Refuses rows of no class.

  Raises:
    InputError: names the first such example, never its label.
  """
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
  """Refuses rows that are not a privacy unit each.

  Raises:
    InputError: a sum of them would pass for one that bounds the units'.
  """
  if block.unit_id is not None:
    raise InputError(
      "The rows have a unit_id, so a unit may have many: clip the sum of each,"
      " or choose how many of each are summed."
    )
