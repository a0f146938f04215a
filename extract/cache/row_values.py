"""Checks of rows before they are written, and the norm that is stored."""

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float, Float32

from oneshot_dp.configs.errors import InputError
from oneshot_dp.extract.cache.format import DTYPES, CacheInfo, Column, Rows

_FLOATS = (np.dtype(np.float64), *DTYPES.values())
_MAX_ROUNDING = 0.01
"""A row has underflown if storing changes it by more than this share of its
norm. Where values are not subnormal, the dtypes round by 2⁻⁹ at most."""


def validate_and_cast_rows(rows: Rows, info: CacheInfo, place: str) -> Rows:
  """Checks rows and casts them to the dtypes of the cache.

  Args:
    rows: all columns but `embedding_norm`, which is computed here.
    info: the metadata that they must fit.
    place: whose rows they are, for messages.

  Returns:
    All columns of the cache.

  Raises:
    InputError: columns, shapes or dtypes that the cache does not take, an
      embedding that overflows or underflows the precision it is stored in, or
      a label outside [0, K). The message names the example's id, never its
      label or embedding.
  """
  # What is stored is checked beside what was given: the cast may overflow or
  # underflow, and the norm is that of the numbers that will be read back.
  _check_columns(rows, info, place)
  columns = info.columns()
  # An error says what does not fit; NumPy's warnings would only come before it.
  with np.errstate(over="ignore", invalid="ignore"):
    stored = rows["embedding"].astype(columns["embedding"].dtype)
    norm = stored_norm(stored)
    _check_values(rows, stored, norm, info, place)
  complete = rows | {"embedding": stored, "embedding_norm": norm}
  cast = {}
  for name, column in columns.items():
    cast[name] = complete[name].astype(column.dtype, copy=False)
  return cast


def _check_columns(rows: Rows, info: CacheInfo, place: str) -> None:
  """Raises InputError unless names, shapes and dtypes fit the cache."""
  columns = info.columns()
  names = sorted(columns.keys() - {"embedding_norm"})
  if sorted(rows) != names:
    raise InputError(f"{place}: got columns {sorted(rows)}; expected {names}.")
  num_rows = len(rows["embedding"])
  for name in names:
    column = columns[name]
    shape = (num_rows, *column.shape)
    values = rows[name]
    if values.shape != shape or not _takes(column, name, values.dtype):
      raise InputError(
        f"{place}: {name} is {values.dtype} {list(values.shape)}; the cache"
        f" takes {column.dtype} {list(shape)}, or what it holds."
      )


def _takes(column: Column, name: str, dtype: np.dtype) -> bool:
  """Whether values of this dtype can become the column's."""
  if dtype == column.dtype:
    return True
  if name == "embedding":
    return dtype in _FLOATS
  return dtype.kind in "iu" and np.can_cast(dtype, np.int64)


def _check_values(
  rows: Rows, stored: np.ndarray, norm: np.ndarray, info: CacheInfo, place: str
) -> None:
  """Raises InputError for the first row of values that a cache cannot hold."""
  # Only the first fault of a block is reported, by the id of its row. Checks go
  # from what was given to what storing makes of it.
  k = info.num_classes
  label = rows["label"]
  is_class = (label >= 0) & (label < k)
  is_finite = np.isfinite(rows["embedding"]).all(axis=1)
  fits = np.isfinite(stored).all(axis=1) & np.isfinite(norm)
  advice = f"{info.embedding_dtype}: scale it, or store float32"
  for is_good, fault in (
    (is_class, f"a label outside [0, {k})"),
    (is_finite, "an embedding that is not finite"),
    (fits, f"an embedding that overflows {advice}"),
    (
      ~_has_underflown(rows["embedding"], stored),
      f"an embedding that underflows {advice}",
    ),
  ):
    if not is_good.all():
      first = rows["example_id"][~is_good][0]
      raise InputError(f"{place}: example_id {first} has {fault}.")


def _has_underflown(
  embedding: Float[np.ndarray, "rows d"], stored: Float[np.ndarray, "rows d"]
) -> Bool[np.ndarray, " rows"]:
  """Whether rows of numbers became zeros or subnormal numbers in their dtype.

  A few such values in a row of larger ones are as harmless as any rounding. So
  what counts is the change of the whole row, relative to its norm.
  """
  num_rows, d = embedding.shape
  # A subnormal value is off by half of its spacing at most. That is no more
  # than `_MAX_ROUNDING` of a row whose largest value is above the threshold, so
  # rows of usual size cost no more than a look at it.
  spacing = float(ml_dtypes.finfo(stored.dtype).smallest_subnormal)
  threshold = 0.5 * spacing * np.sqrt(d) / _MAX_ROUNDING
  largest = np.abs(embedding).max(axis=1).astype(np.float64)
  is_small = (largest > 0) & (largest <= threshold)
  has_underflown = np.zeros(num_rows, bool)
  if is_small.any():
    # Divided by the largest value first, or squares would underflow, too.
    scale = largest[is_small, None]
    exact = embedding[is_small].astype(np.float64) / scale
    rounded = stored[is_small].astype(np.float64) / scale
    error = np.linalg.norm(rounded - exact, axis=1)
    has_underflown[is_small] = error > _MAX_ROUNDING * np.linalg.norm(
      exact, axis=1
    )
  return has_underflown


def stored_norm(
  embedding: Float[np.ndarray, "rows d"],
) -> Float32[np.ndarray, " rows"]:
  """L2 norm of each row as stored, the same bits on every machine.

  ‖x‖ = float32(√Σ x²), in float64 and rounded once; relative error under 2⁻²³
  (over 2⁻¹²⁶, float32's least normal number). The sum halves the row again and
  again with elementwise additions, because the order in which numpy's own
  reductions add depends on the width of the CPU's vectors.

  Args:
    embedding: rows in the dtype that they are stored in.

  Returns:
    One norm per row.
  """
  total = np.square(embedding, dtype=np.float64)
  width = total.shape[1]
  while width > 1:
    half = width // 2
    total[:, :half] += total[:, width - half :]
    total = total[:, : width - half]
    width = total.shape[1]
  with np.errstate(over="ignore"):
    return np.sqrt(total[:, 0]).astype(np.float32)
