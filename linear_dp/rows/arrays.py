"""Rows that are already in memory: two arrays as a block of a cache."""

import dataclasses
import operator

import jax
import ml_dtypes
import numpy as np
from jaxtyping import Float, Float32, Int32, Int64, Shaped

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.rows.secret import Secret

_STORED = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
_ROWS_AT_ONCE = 4096

Numbers = Shaped[np.ndarray | jax.Array, "..."]
"""An array that is still to be looked at: whatever shape and dtype it has."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ArrayRows(Secret):
  """Labelled embeddings in memory, as the `RowBlock` that this package reads.

  >>> import numpy as np
  >>> embeddings = np.eye(4, dtype=np.float32)
  >>> ArrayRows.of(embeddings, np.array([0, 1, 1, 0]), num_classes=2)
  ArrayRows(num_examples=4, feature_dim=4, num_classes=2, <private>)

  Attributes:
    num_classes: K, public.
    embedding: float16, bfloat16 or float32.
    embedding_norm: L2 norm of each embedding.
    label: in [0, K).
    example_id: the row.
    unit_id: whose each row is; None where every row is a privacy unit.
  """

  public = ("num_examples", "feature_dim", "num_classes")

  num_classes: int
  embedding: Float[np.ndarray, "n d"]
  embedding_norm: Float32[np.ndarray, " n"]
  label: Int32[np.ndarray, " n"]
  example_id: Int64[np.ndarray, " n"]
  unit_id: Int64[np.ndarray, " n"] | None = None

  @classmethod
  def of(
    cls,
    embeddings: Numbers,
    labels: Numbers,
    *,
    num_classes: int,
    unit_ids: Numbers | None = None,
  ) -> "ArrayRows":
    """Checks arrays, and measures their rows.

    Args:
      embeddings: [n, d] floats; float64 is rounded to float32, others are used
        as they are, uncopied.
      labels: [n] integers in [0, K).
      num_classes: K, at least 2; known without the labels, which are private.
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
    if num_classes < 2:
      raise InputError(
        f"num_classes={num_classes}: a classifier needs at least 2."
      )
    embedding = _embedding(np.asarray(embeddings))
    n = len(embedding)
    label = _integers("labels", labels, n)
    outside = (label < 0) | (label >= num_classes)
    if outside.any():
      raise InputError(
        f"labels[{outside.argmax()}] is not one of the num_classes="
        f"{num_classes} classes: labels run from 0 to {num_classes - 1}."
      )
    norm = _norm(embedding)
    if not np.isfinite(norm).all():
      raise InputError(
        f"embeddings[{np.isfinite(norm).argmin()}] is not finite, or too long"
        " for float32: mend the row, or leave it out."
      )
    return cls(
      num_classes=num_classes,
      embedding=embedding,
      embedding_norm=norm,
      label=label.astype(np.int32),
      example_id=np.arange(n),
      unit_id=None if unit_ids is None else _integers("unit_ids", unit_ids, n),
    )

  @property
  def feature_dim(self) -> int:
    return self.embedding.shape[1]

  @property
  def num_examples(self) -> int:
    return len(self.label)


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
    for start in range(0, len(embedding), _ROWS_AT_ONCE):
      part = slice(start, start + _ROWS_AT_ONCE)
      wide = embedding[part].astype(np.float64)
      norm[part] = np.linalg.norm(wide, axis=1)
  return norm
