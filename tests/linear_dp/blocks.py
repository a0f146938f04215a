"""Rows of a cache, without a cache."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from oneshot_dp.linear_dp.rows.integers import GRID_RADIUS
from oneshot_dp.linear_dp.rows.unit_norm_rows import SecretRows
from oneshot_dp.linear_dp.statistics.exact_map import ReleasedMap
from oneshot_dp.linear_dp.statistics.step_rows import StepRows

DTYPES = {
  "float16": np.dtype(np.float16),
  "float32": np.dtype(np.float32),
  "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
  embedding: np.ndarray
  embedding_norm: np.ndarray
  label: np.ndarray
  example_id: np.ndarray
  unit_id: np.ndarray | None = None

  def __getitem__(self, rows: slice | np.ndarray) -> "Block":
    return Block(
      embedding=self.embedding[rows],
      embedding_norm=self.embedding_norm[rows],
      label=self.label[rows],
      example_id=self.example_id[rows],
      unit_id=None if self.unit_id is None else self.unit_id[rows],
    )

  def __len__(self) -> int:
    return len(self.label)

  def but(self, **changes: Any) -> "Block":
    return dataclasses.replace(self, **changes)


def norm_of(embedding: np.ndarray) -> np.ndarray:
  """What the cache stores: the float32 nearest to the true norm."""
  wide = embedding.astype(np.float64)
  with np.errstate(over="ignore"):
    return np.sqrt((wide * wide).sum(axis=1)).astype(np.float32)


def make_block(
  embedding: np.ndarray, label: np.ndarray | Sequence[int]
) -> Block:
  return Block(
    embedding=embedding,
    embedding_norm=norm_of(embedding),
    label=np.asarray(label, np.int32),
    example_id=np.arange(len(embedding), dtype=np.int64) * 3 + 1000,
  )


def random_block(
  n: int,
  d: int,
  num_classes: int,
  *,
  seed: int = 0,
  dtype: str = "float32",
  spread: float = 1.5,
) -> Block:
  """Rows of very different lengths, so that some are clipped and some not."""
  rng = np.random.default_rng(seed)
  length = np.exp(spread * rng.standard_normal((n, 1))) / np.sqrt(d)
  rows = (rng.standard_normal((n, d)) * length).astype(DTYPES[dtype])
  return make_block(rows, rng.integers(0, num_classes, n))


def in_blocks(block: Block, sizes: Sequence[int]) -> Iterator[Block]:
  """The rows in blocks of these sizes, again and again until none is left."""
  start, turn = 0, 0
  while start < len(block):
    stop = start + sizes[turn % len(sizes)]
    yield block[start:stop]
    start, turn = stop, turn + 1


def rows_of(
  block: Block, devices: int = 1, sizes: Sequence[int] = (256,), **changes: Any
) -> SecretRows:
  """The rows of four classes, as heads of several steps read them."""
  options: dict[str, Any] = {
    "feature_dim": block.embedding.shape[1],
    "num_classes": 4,
    "num_examples": len(block),
    "devices": jax.local_devices()[:devices],
  }
  return SecretRows(lambda: in_blocks(block, sizes), **options | changes)


def steps_of(
  block: Block,
  devices: int = 1,
  sizes: Sequence[int] = (256,),
  *,
  a_map: ReleasedMap | None = None,
  resident_bytes: int = 2**30,
  **changes: Any,
) -> StepRows:
  """The rows as the steps of a head read them."""
  rows = rows_of(block, devices, sizes, **changes)
  return StepRows(rows, a_map, resident_bytes)


def integers_of(block: Block) -> np.ndarray:
  """u by plain numpy, [n, d] int64."""
  norm = block.embedding_norm.astype(np.float64)
  radius = GRID_RADIUS - math.sqrt(block.embedding.shape[1]) / 2 - 1
  scale = np.zeros_like(norm)
  scale[norm > 1e-30] = radius / norm[norm > 1e-30]
  factor = scale.astype(np.float32)[:, None]
  products = block.embedding.astype(np.float32) * factor
  return np.rint(products).astype(np.int64)


def with_row(block: Block, row: int, **values: Any) -> Block:
  """The block with other values in one row."""
  changed = {}
  for name, value in values.items():
    changed[name] = getattr(block, name).copy()
    changed[name][row] = value
  return block.but(**changed)


class Reader:
  """Reads blocks as often as asked, the last again, and counts the readings."""

  def __init__(self, *readings: Block, sizes: Sequence[int] = (7, 256)):
    self.readings, self.sizes, self.passes = readings, sizes, 0

  def __call__(self) -> Iterator[Block]:
    reading = self.readings[min(self.passes, len(self.readings) - 1)]
    self.passes += 1
    return in_blocks(reading, self.sizes)


def squared_distance(one: np.ndarray, other: np.ndarray) -> int:
  """In integers of Python."""
  return sum(int(x) ** 2 for x in (one - other).ravel())
