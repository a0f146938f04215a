"""A private data set of arrays that a caller has in memory."""

from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Float32, Int64

from oneshot_dp.configs.errors import InputError
from oneshot_dp.linear_dp.dataset import PrivateDataset

_EMBEDDING_DTYPES = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
_ROWS_AT_ONCE = 4096


def dataset_from_arrays(
  embeddings: Any,
  labels: Any,
  *,
  num_classes: int,
  unit_ids: Any = None,
) -> PrivateDataset:
  """Makes a private data set of labeled embeddings in memory, all checked.

  Args:
    embeddings: [n, d] floats. float64 is rounded to float32, and other dtypes
      are used without a copy.
    labels: [n] integers in [0, K).
    num_classes: K.
    unit_ids: [n] integers or strings, or None; see `train_heads`.

  Returns:
    The data set; its ids are positions, and one pass is one block.

  Raises:
    InputError: a wrong dtype or shape, no rows, an embedding that is not
      finite in float32, or a label outside [0, K). A row is named by its index
      alone, never by its label or numbers.
  """
  array = np.asarray(embeddings)
  # Arrays of a file may be of a machine of the other byte order.
  array = array.astype(array.dtype.newbyteorder("="), copy=False)
  if array.dtype not in _EMBEDDING_DTYPES or array.ndim != 2 or not array.size:
    raise InputError(
      f"embeddings are {array.dtype} {array.shape}: give [n, d], at least one"
      " row, of floats of 16, 32 or 64 bits."
    )
  n, feature_dim = array.shape
  label = _integers("labels", labels, n)
  is_outside = (label < 0) | (label >= num_classes)
  if is_outside.any():
    raise InputError(
      f"labels[{is_outside.argmax()}] is not one of the"
      f" num_classes={num_classes} classes: labels run from 0 to"
      f" {num_classes - 1}."
    )
  embedding = array
  if array.dtype == np.float64:
    # A number that overflows makes an infinite norm, which is refused below.
    with np.errstate(over="ignore"):
      embedding = array.astype(np.float32)
  # Ids are positions, which no two rows share.
  columns = {
    "embedding": embedding,
    "embedding_norm": _finite_norms(embedding),
    "label": label.astype(np.int32),
    "example_id": np.arange(n),
  }
  # Without ids each row is a unit. They are not guessed from the rows: nobody
  # but the owner of the data knows who is in two of them.
  unit = "example"
  if unit_ids is not None:
    unit = "unit"
    columns["unit_id"] = _unit_numbers(unit_ids, n)
  return PrivateDataset(
    blocks=lambda: [columns],
    n=n,
    feature_dim=feature_dim,
    num_classes=num_classes,
    unit=unit,
  )


def _finite_norms(embedding: np.ndarray) -> Float32[np.ndarray, " n"]:
  """Computes the Euclidean norms of the rows, some rows at a time."""
  norm = np.empty(len(embedding), np.float32)
  # In float64, because squares may overflow the dtype of the rows. A norm that
  # float32 cannot hold becomes infinite, and is refused.
  with np.errstate(over="ignore"):
    for start in range(0, len(embedding), _ROWS_AT_ONCE):
      piece = slice(start, start + _ROWS_AT_ONCE)
      wide = embedding[piece].astype(np.float64)
      norm[piece] = np.linalg.norm(wide, axis=1)
  is_finite = np.isfinite(norm)
  if not is_finite.all():
    raise InputError(
      f"embeddings[{is_finite.argmin()}] is not finite, or too long for"
      " float32: fix the row, or leave it out."
    )
  return norm


def _integers(name: str, values: Any, n: int) -> Int64[np.ndarray, " n"]:
  array = np.asarray(values)
  if array.dtype.kind not in "iu" or array.shape != (n,):
    raise InputError(
      f"{name} are {array.dtype} {array.shape}: give {n} integers, one a row."
    )
  return array.astype(np.int64)


def _unit_numbers(unit_ids: Any, n: int) -> Int64[np.ndarray, " n"]:
  """Numbers the units; strings are numbered in sorted order.

  The numbers only tell which rows belong together. No sum depends on them.
  """
  array = np.asarray(unit_ids)
  if array.dtype.kind == "O" and all(isinstance(i, str) for i in array.flat):
    array = array.astype(np.str_)
  if array.dtype.kind == "U" and array.shape == (n,):
    _, array = np.unique(array, return_inverse=True)
  if array.dtype.kind not in "iu" or array.shape != (n,):
    raise InputError(
      f"unit_ids are {array.dtype} {array.shape}: give {n} integers or"
      " strings, one a row."
    )
  return array.astype(np.int64)
