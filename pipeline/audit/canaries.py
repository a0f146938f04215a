"""Canaries: made-up rows that a release is attacked by, each there or not.

Every canary has a feature to itself, which no other row has, so that what it
adds to any sum is at right angles to all else, and attacks on all of them are
made at once, in one run. Real rows are widened by these features, in which they
are zero: whoever knows them all can say nothing more of a canary than whoever
knows none.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from oneshot_dp.configs.extract_config import EXAMPLE_UNIT
from oneshot_dp.configs.head_config import HeadConfig
from oneshot_dp.extract.cache.block import Block
from oneshot_dp.linear_dp.rows.block import RowBlock
from oneshot_dp.linear_dp.trainer import TrainingRows

_ROWS_AT_ONCE = 256
_SHORT = 2.0**-12
"""Beside the 1 of a trained bias, the rest of a row that is so short is lost,
but it is not a row of zeros."""
_SPARE_FEATURES = 1
"""Features that no row has: room for the centre that a head may take off."""
_REACH = 1 / 0.15
"""Norm of a canary, in clip norms: some are wasted on a clipped gradient, but
with more the canary would soon be classified rightly, without a gradient."""
_LONG = 1024.0
"""In lengths at which clipping starts: beside it, the 1 of a trained bias is
lost."""


def canary_length(config: HeadConfig) -> float:
  """The norm that shows a canary best; where it counts."""
  if config.is_one_step:
    return _LONG * max(2 * config.l2_clip_norm, 1.0)
  if config.head == "multi-step" and not config.steps.unit_norm:
    return _REACH * (config.steps.l2_clip_norm or 1.0)
  return 1.0


class _Unused:
  """Ids that no row has: behind all others, or where these end, before them."""

  def __init__(self):
    self._least, self._most = 0, -1

  def see(self, ids: Int64[np.ndarray, " rows"]) -> None:
    self._least = min(self._least, int(ids.min(initial=0)))
    self._most = max(self._most, int(ids.max(initial=-1)))

  def first(self, count: int) -> int:
    """The first of so many."""
    if self._most + count < 2**63:
      return self._most + 1
    return self._least - count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """m canaries, and where each is in a row.

  What stands in the place of one that is not there keeps n as it is: a row of
  zeros, or where rows are replaced by others the opposite row, in its class.

  Attributes:
    num_classes: K; labels go round.
    sharing: how many canaries have one feature, each of another class.
    replaced: whether the opposite row stands for one that is not there.
    has_bias: whether the last has nothing but the 1 of a trained bias, as far
      as one can see; of another class where it is replaced.
    rows_per_unit: copies of each canary, which are one privacy unit.
    feature_dim: d of the real rows before which these features come.
  """

  number: int
  num_classes: int
  length: float = 1.0
  sharing: int = 1
  replaced: bool = False
  has_bias: bool = False
  rows_per_unit: int = 1
  feature_dim: int = 0

  @property
  def num_rows(self) -> int:
    """How many rows they are."""
    return self.number * self.rows_per_unit

  @property
  def label(self) -> Int[np.ndarray, " m"]:
    """The class of each."""
    return np.arange(self.number) % self.num_classes

  @property
  def absent_label(self) -> Int[np.ndarray, " m"]:
    """The class of what stands in the place of each."""
    label = self.label
    if self.has_bias and self.replaced:
      label[-1] = (label[-1] + 1) % self.num_classes
    return label

  @property
  def feature(self) -> Int[np.ndarray, " m"]:
    """The feature of each."""
    return self.feature_dim + np.arange(self.number) // self.sharing

  @property
  def width(self) -> int:
    """d of the rows with these features."""
    own = -(-self.number // self.sharing)
    return self.feature_dim + own + _SPARE_FEATURES

  def alone(
    self,
    coins: Bool[np.ndarray, " m"],
    *,
    num_examples: int,
    max_rows_per_unit: int | None,
  ) -> TrainingRows:
    """The canaries of a toss, and rows of zeros up to so many examples."""
    zeros = max(0, num_examples - self.num_rows)
    has_units = self.rows_per_unit > 1
    return TrainingRows(
      blocks=lambda: self._blocks(coins, 0, 0 if has_units else None, zeros),
      feature_dim=self.width,
      num_classes=self.num_classes,
      num_examples=self.num_rows + zeros,
      privacy_unit="unit" if has_units else EXAMPLE_UNIT,
      max_rows_per_unit=max_rows_per_unit,
      # With so few units a centre would be noise, and turn all rows one way.
      are_centred=has_units,
    )

  def among(
    self, real: TrainingRows, coins: Bool[np.ndarray, " m"]
  ) -> TrainingRows:
    """Real rows, widened, and the canaries of a toss behind them."""
    has_units = real.privacy_unit != EXAMPLE_UNIT

    def blocks() -> Iterator[RowBlock]:
      ids, units = _Unused(), _Unused()
      for block in real.blocks():
        ids.see(block.example_id)
        if block.unit_id is not None:
          units.see(block.unit_id)
        embedding = np.zeros((len(block.label), self.width), np.float32)
        embedding[:, : self.feature_dim] = block.embedding
        yield Block(
          embedding=embedding,
          embedding_norm=block.embedding_norm,
          label=block.label,
          example_id=block.example_id,
          unit_id=block.unit_id,
        )
      first_unit = units.first(self.num_rows) if has_units else None
      yield from self._blocks(coins, ids.first(self.num_rows), first_unit)

    return dataclasses.replace(
      real,
      blocks=blocks,
      feature_dim=self.width,
      num_examples=real.num_examples + self.num_rows,
      num_rows=real.counted + self.num_rows,
      most_rows=(real.most_rows or real.num_examples) + self.num_rows,
      own_rows=None,
    )

  def _blocks(
    self,
    coins: Bool[np.ndarray, " m"],
    first_id: int,
    first_unit: int | None,
    zeros: int = 0,
  ) -> Iterator[RowBlock]:
    canary = np.repeat(np.arange(self.number), self.rows_per_unit)
    canary = np.concatenate([canary, np.full(zeros, -1)])
    sizes = self._sizes(coins)
    label = np.where(coins, self.label, self.absent_label)
    for start in range(0, len(canary), _ROWS_AT_ONCE):
      of_block = canary[start : start + _ROWS_AT_ONCE]
      here = of_block >= 0
      embedding = np.zeros((len(of_block), self.width), np.float32)
      at = np.flatnonzero(here)
      embedding[at, self.feature[of_block[here]]] = sizes[of_block[here]]
      ids = np.arange(start, start + len(of_block))
      units = None
      if first_unit is not None:
        units = first_unit + ids // self.rows_per_unit
      yield Block(
        embedding=embedding,
        embedding_norm=np.abs(embedding).max(axis=1),
        label=np.where(here, label[of_block], 0).astype(np.int32),
        example_id=first_id + ids,
        unit_id=units,
      )

  def _sizes(self, coins: Bool[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """The one number of each that is not zero."""
    size = np.where(coins, self.length, -self.length * self.replaced)
    if self.has_bias:
      size[-1] = _SHORT if coins[-1] or self.replaced else 0.0
    return size
