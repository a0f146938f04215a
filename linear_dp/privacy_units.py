"""Privacy units of many rows: a mean row for each of their classes.

For class c of a unit, the mean of its k_c rows counts at the integer weight
⌊W·k_c/k⌋, k = Σ_c k_c, so that a unit of any number of rows weighs W at most:

    ‖Σ_c left_c ⊗ row_c‖ ≤ Σ_c w_c·R ≤ W·R

For class sums, whose blocks are orthogonal, the weight is ⌊W·k_c/√Σk_c²⌋. All
of it is computed from exact integers, so the order of rows changes nothing.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int16, Int32, Int64

_ROWS_AT_ONCE = 2**15


class StoredRows(NamedTuple):
  """Integer rows as they are stored, with the units that they belong to.

  Attributes:
    row: z int16 [r, d].
    label: [r].
    weight: [r]; 0 for rows of zeros, which do not count.
    unit: unit ids, int64 [r].
  """

  row: np.ndarray
  label: np.ndarray
  weight: np.ndarray
  unit: np.ndarray


class UnitRows(NamedTuple):
  """Rows that stand for the classes of privacy units.

  Attributes:
    row: z int16 [P, d].
    label: int32 [P].
    weight: int32 [P].
  """

  row: Int16[np.ndarray, "P d"]
  label: Int32[np.ndarray, " P"]
  weight: Int32[np.ndarray, " P"]


def unit_rows(
  parts: Iterable[StoredRows],
  is_own: Callable[[np.ndarray], np.ndarray],
  unit_weight: int,
  *,
  mean_norm: float | None,
  weight_norm_order: int,
  per_row: bool,
) -> Iterator[UnitRows]:
  """Yields the rows of all units, sorted by unit and class.

  Formal guarantees: what a unit contributes is a function of its own rows
  alone; its weights are integers with Σ w^p ≤ W^p, p = `weight_norm_order`;
  rows of zeros do not count.

  Args:
    parts: all stored rows, in any order.
    is_own: whether this host sums the units of these ids, [r] → [r].
    unit_weight: W.
    mean_norm: the norm to which means of several rows are brought; None leaves
      them as they are.
    weight_norm_order: p, 1 or 2.
    per_row: yields the rows of units one by one, at weight ⌊W/k⌋, in place of
      their means.
  """
  stored = _concatenate_own(parts, is_own)
  if stored is None:
    return
  row, label, unit = stored
  # A group is what becomes one row: the rows of one class of one unit.
  order = np.lexsort((label, unit))
  label, unit = label[order], unit[order]
  is_first = np.arange(len(unit)) == 0
  is_first |= np.diff(unit, prepend=0) != 0
  is_first |= np.diff(label, prepend=0) != 0
  start = np.flatnonzero(is_first | per_row)
  count = np.diff(start, append=len(unit))
  weight = _weights(unit_weight, unit[start], count, weight_norm_order)
  for first in range(0, len(start), _ROWS_AT_ONCE):
    groups = slice(first, first + _ROWS_AT_ONCE)
    stop = start[first] + count[groups].sum()
    total = np.add.reduceat(
      row[order[start[first] : stop]],
      start[groups] - start[first],
      dtype=np.int64,
    )
    z = _means(total, count[groups], mean_norm)
    yield UnitRows(
      row=z,
      label=label[start[groups]].astype(np.int32),
      weight=(weight[groups] * z.any(axis=1)).astype(np.int32),
    )


def _concatenate_own(
  parts: Iterable[StoredRows], is_own: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
  """This host's rows that are not zeros, their labels and unit ids, if any."""
  rows = []
  labels = []
  units = []
  for part in parts:
    is_kept = (part.weight > 0) & is_own(part.unit)
    rows.append(part.row[is_kept])
    labels.append(part.label[is_kept].astype(int))
    units.append(part.unit[is_kept])
  if not rows:
    return None
  row = np.concatenate(rows)
  rows.clear()  # the largest array, which is not needed twice
  return row, np.concatenate(labels), np.concatenate(units)


def _weights(
  unit_weight: int,
  unit: Int64[np.ndarray, " P"],
  count: np.ndarray,
  weight_norm_order: int,
) -> Int64[np.ndarray, " P"]:
  """⌊W·k_c/k⌋ for each class of each unit, or with order 2 ⌊W·k_c/√Σk_c²⌋.

  In Python's integers: (W·k_c)² may exceed int64.
  """
  pairs = list(zip(unit.tolist(), count.tolist(), strict=True))
  total: dict[int, int] = {}
  for unit_id, rows in pairs:
    total[unit_id] = total.get(unit_id, 0) + rows**weight_norm_order
  weights = []
  for unit_id, rows in pairs:
    power = (unit_weight * rows) ** weight_norm_order // total[unit_id]
    weights.append(math.isqrt(power) if weight_norm_order == 2 else power)
  return np.array(weights, int)


def _means(
  total: Int64[np.ndarray, "P d"], count: np.ndarray, mean_norm: float | None
) -> Int16[np.ndarray, "P d"]:
  """The mean rows of sums Σz of k rows.

  They are trunc(Σz/k), or, where rows are directions, Σz brought to
  `mean_norm`. A single row stays what it is.
  """
  k = count[:, None]
  if mean_norm is None:
    return (np.sign(total) * (np.abs(total) // k)).astype(np.int16)
  # Shifted so that squares, of numbers below 2²⁵, add up exactly in float64.
  bits = np.frexp(k.astype(np.float64))[1].astype(np.int64)
  part = (total >> np.maximum(bits - 10, 0)).astype(np.float64)
  norm = np.sqrt(np.square(part).sum(axis=1, keepdims=True))
  z = np.rint(part * (mean_norm / np.maximum(norm, 1)))
  return np.where(k == 1, total, z).astype(np.int16)
