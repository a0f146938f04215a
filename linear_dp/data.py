"""Private rows as they are read: a cache's blocks, or arrays in memory."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NoReturn

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float, Float32, Int64, Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.hosts import ALONE, Hosts

WEIGHT = 2**20
"""W: what a privacy unit weighs, where n leaves room for it in int64."""
MOST_ROWS = 10**10
_STORED = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
_AT_ONCE = 4096

Numbers = Shaped[np.ndarray | jax.Array, "..."]
"""An array that is still to be looked at: whatever shape and dtype it has."""


Block = Mapping[str, np.ndarray]
"""Columns embedding [r, d], embedding_norm, label, example_id [r] and, where a
privacy unit may have many rows, unit_id [r]."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Data:
  """Private rows as they are read, and what is public of them.

  Attributes:
    blocks: starts a pass over this host's rows, in any order, any block size.
    n: the public number of rows; of a part, its mean.
    feature_dim: d.
    num_classes: K.
    unit: what the privacy unit is; where not "example", rows have a unit_id.
    hosts: that have a part of the rows each.
  """

  blocks: Callable[[], Iterable[Block]]
  n: int
  feature_dim: int
  num_classes: int
  unit: str = "example"
  hosts: Hosts = ALONE

  def __post_init__(self):
    if not 1 <= self.n <= MOST_ROWS:
      raise InputError(
        f"n={self.n} rows: exact sums are of 1 to {MOST_ROWS:.0e} rows."
      )
    if self.num_classes < 1 or self.feature_dim < 1:
      raise InputError(
        f"num_classes={self.num_classes} and feature_dim={self.feature_dim}"
        " must be at least 1."
      )

  @property
  def has_units(self) -> bool:
    return self.unit != "example"

  @property
  def weight(self) -> int:
    """W: a power of two, so small that n·W·R is at most 2⁶¹."""
    return min(WEIGHT, 2**47 >> (self.n - 1).bit_length())

  def checked_blocks(self) -> Iterator[Block]:
    """The blocks of a pass, checked; at its end, that no row came twice.

    InputError: a shape, norm or label that cannot be, by the example_id of the
    row alone.
    """
    seen = [np.empty(0, np.int64)]
    count = 0
    for block in self.blocks():
      self._check(block)
      seen.append(np.array(block["example_id"], np.int64))
      count += len(seen[-1])
      if count > 2 * self.n + WEIGHT:  # or sums might leave int64
        raise InputError(
          "The cache gave many more rows than its metadata says: run"
          " `oneshot-dp verify` on it."
        )
      yield block
    ids = np.sort(np.concatenate(seen))
    if (twice := ids[1:][ids[1:] == ids[:-1]]).size:
      raise InputError(
        f"example_id={twice[0]} comes more than once, which would double its"
        " influence: run `oneshot-dp verify` on the cache."
      )

  def _check(self, block: Block) -> None:
    r = len(block["label"])
    if (shape := block["embedding"].shape) != (r, self.feature_dim):
      raise InputError(
        f"A block of embeddings has shape {shape}, not"
        f" ({r}, {self.feature_dim})."
      )
    if self.has_units != ("unit_id" in block):
      raise InputError(
        f"The rows have {'no' if self.has_units else 'a'} unit_id, but the"
        f" privacy unit is {self.unit!r}."
      )
    norm, label = block["embedding_norm"], block["label"]
    fine = np.isfinite(norm) & (norm >= 0)
    if not fine.all():
      refuse(block["example_id"], ~fine, "its embedding_norm is not finite")
    bad = (label < 0) | (label >= self.num_classes)
    if bad.any():
      reason = f"its label is outside [0, {self.num_classes})"
      refuse(block["example_id"], bad, reason)


def array_data(
  embeddings: Numbers,
  labels: Numbers,
  *,
  num_classes: int,
  unit_ids: Numbers | None = None,
) -> Data:
  """Labelled embeddings in memory as private rows, all checked.

  >>> array_data(np.eye(4), np.array([0, 1, 1, 0]), num_classes=2).n
  4

  Args:
    embeddings: [n, d] floats; float64 is rounded to float32, others are used
      as they are, uncopied.
    labels: [n] integers in [0, K).
    num_classes: K, at least 1; known without the labels, which are private.
    unit_ids: [n] integers, whose each row is; None where every row is a unit.

  InputError: a num_classes that is no integer, a wrong dtype or shape, no
  rows, an embedding that is not finite in float32, a label outside [0, K).
  Names the first such row, never its label or numbers.
  """
  try:
    num_classes = operator.index(num_classes)
  except TypeError:
    raise InputError(
      f"num_classes={num_classes!r} must be an integer, K."
    ) from None
  embedding = _embedding(np.asarray(embeddings))
  n = len(embedding)
  label = _integers("labels", labels, n)
  outside = (label < 0) | (label >= num_classes)
  if outside.any():
    raise InputError(
      f"labels[{outside.argmax()}] is not one of the num_classes={num_classes}"
      f" classes: labels run from 0 to {num_classes - 1}."
    )
  norm = _norm(embedding)
  if not np.isfinite(norm).all():
    raise InputError(
      f"embeddings[{np.isfinite(norm).argmin()}] is not finite, or too long"
      " for float32: mend the row, or leave it out."
    )
  columns = {
    "embedding": embedding,
    "embedding_norm": norm,
    "label": label.astype(np.int32),
    "example_id": np.arange(n),
  }
  if unit_ids is not None:
    columns["unit_id"] = _integers("unit_ids", unit_ids, n)
  return Data(
    blocks=lambda: [columns],
    n=n,
    feature_dim=embedding.shape[1],
    num_classes=num_classes,
    unit="example" if unit_ids is None else "unit",
  )


def _embedding(array: np.ndarray) -> Float[np.ndarray, "n d"]:
  if array.dtype not in _STORED:
    raise InputError(
      f"embeddings are {array.dtype}: give float16, bfloat16, float32 or"
      " float64."
    )
  if array.ndim != 2 or not array.size:
    raise InputError(
      f"embeddings have shape {array.shape}: give [n, d], n and d at least 1."
    )
  if array.dtype != np.float64:
    return array
  with np.errstate(over="ignore"):  # what leaves float32 is refused by its row
    return array.astype(np.float32)


def _integers(name: str, values: Numbers, rows: int) -> Int64[np.ndarray, " n"]:
  array = np.asarray(values)
  if array.dtype.kind not in "iu":
    raise InputError(f"{name} are {array.dtype}: give integers.")
  if array.shape != (rows,):
    raise InputError(
      f"{name} have shape {array.shape}: give one for each of the {rows}"
      " embeddings."
    )
  return array.astype(np.int64)


def _norm(embedding: Float[np.ndarray, "n d"]) -> Float32[np.ndarray, " n"]:
  """L2 norms in float64, rounded once; in parts, as float64 takes room."""
  norm = np.empty(len(embedding), np.float32)
  with np.errstate(over="ignore"):
    for start in range(0, len(embedding), _AT_ONCE):
      part = slice(start, start + _AT_ONCE)
      wide = embedding[part].astype(np.float64)
      norm[part] = np.linalg.norm(wide, axis=1)
  return norm


def refuse(
  ids: np.ndarray, bad: Bool[np.ndarray, " r"], reason: str
) -> NoReturn:
  """Raises an InputError for the first bad row, by its id alone."""
  raise InputError(
    f"example_id={ids[bad.argmax()]}: {reason}. Run `oneshot-dp verify` on the"
    " cache, then extract it again."
  )
