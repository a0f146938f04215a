"""Rows held out of training, and how often heads are right about them."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32, Int32, Int64

from oneshot_dp.linear_dp.evaluate import count_hits
from oneshot_dp.linear_dp.head import LinearHead
from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.rows.secret import Secret
from oneshot_dp.linear_dp.rows.whole_units import UnitSizes
from oneshot_dp.linear_dp.trainer import TrainingRows

HELD_OUT, COUNTS = "held out", "right answers"
"""What other hosts are asked for: to hold rows out, and to count on them."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Part:
  """Rows of a block."""

  embedding: Float[np.ndarray, "rows d"]
  embedding_norm: Float32[np.ndarray, " rows"]
  label: Int32[np.ndarray, " rows"]
  example_id: Int64[np.ndarray, " rows"]
  unit_id: Int64[np.ndarray, " rows"] | None


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class HeldOutRows(Secret):
  """Rows of which some are trained on, and the others are counted on.

  Attributes:
    rows: all of them; on one of several hosts, those of this one.
    secret_held_out: of each row, in the order of a pass, whether it is held
      out, if it is not of zeros.
  """

  rows: TrainingRows
  secret_held_out: Bool[np.ndarray, " n"]

  def share(self) -> None:
    """Has the other hosts hold out theirs, by the same rule."""
    self.rows.hosts.ask(HELD_OUT)
    self.rows.hosts.sum()

  def trained_on(self) -> TrainingRows:
    """All rows, those held out being of zeros and of class 0."""
    return dataclasses.replace(self.rows, blocks=self._trained_on)

  def count(
    self, heads: Sequence[LinearHead], sizes: UnitSizes | None = None
  ) -> Int64[np.ndarray, " heads"]:
    """Right answers on rows held out, on all hosts; see `count_hits`."""
    hosts = self.rows.hosts
    hosts.ask(
      COUNTS,
      kernels=np.stack([np.asarray(head.kernel) for head in heads]),
      biases=np.stack([np.asarray(head.bias) for head in heads]),
      unit_norms=np.array([head.unit_norm for head in heads]),
    )
    own = np.zeros(len(heads), np.int64)
    if any(held.any() for _, held in self._blocks()):
      own = count_hits(heads, self._scored(), sizes=sizes).secret_hits[0]
    return hosts.sum(own)[0]

  def _trained_on(self) -> Iterator[RowBlock]:
    for block, held in self._blocks():
      yield _Part(
        embedding=np.where(held[:, None], 0, block.embedding).astype(
          block.embedding.dtype
        ),
        embedding_norm=np.where(held, np.float32(0), block.embedding_norm),
        label=np.where(held, np.int32(0), block.label),
        example_id=block.example_id,
        unit_id=block.unit_id,
      )

  def _scored(self) -> Iterator[RowBlock]:
    for block, held in self._blocks():
      yield _Part(
        embedding=block.embedding[held],
        embedding_norm=block.embedding_norm[held],
        label=block.label[held],
        example_id=block.example_id[held],
        unit_id=None if block.unit_id is None else block.unit_id[held],
      )

  def _blocks(self) -> Iterator[tuple[RowBlock, Bool[np.ndarray, " rows"]]]:
    """Which rows of each are held out: none of zeros, which stand for none."""
    start = 0
    for block in self.rows.blocks():
      stop = start + len(block.label)
      yield block, self.secret_held_out[start:stop] & (block.embedding_norm > 0)
      start = stop
